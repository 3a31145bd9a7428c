//! The schema: its migrations, those that a database lacks, and its tables and sequences.

use sqlx::{
    PgConnection,
    migrate::{Migrate as _, MigrateError, Migration, Migrator},
};

use super::error::Error;

/// Migrations in `migrations/`, compiled in.
pub(super) static MIGRATOR: Migrator = sqlx::migrate!();

/// First migration. Databases of earlier ones cannot be continued.
const FIRST: i64 = 301;

/// What to do with the data of an earlier schema.
pub const EXPORT: &str = "export its pets with the build that wrote it (pet-inventory export pets.jsonl; the last one is \
                          of commit a180a31), and import them with this one (pet-inventory import pets.jsonl)";

/// Returns true if an archive of this schema can be restored.
pub fn is_known(schema: i64) -> bool {
    (FIRST..=latest()).contains(&schema)
}

/// Returns the version of the schema after all migrations.
pub fn latest() -> i64 {
    let versions = MIGRATOR.iter().map(|migration| migration.version);
    versions.max().unwrap_or_default()
}

/// Returns the pending migrations, in order. Fails if an applied one has failed, or differs from the one compiled in.
pub(super) async fn pending_on(
    connection: &mut PgConnection,
) -> Result<Vec<&'static Migration>, Error> {
    let has_table = sqlx::query_scalar("select to_regclass('_sqlx_migrations') is not null");
    let applied = if has_table.fetch_one(&mut *connection).await? {
        let table = &MIGRATOR.table_name;
        if let Some(version) = connection.dirty_version(table).await? {
            return Err(MigrateError::Dirty(version).into());
        }
        connection.list_applied_migrations(table).await?
    } else {
        Vec::new()
    };
    let earlier = applied.iter().map(|applied| applied.version);
    if let Some(version) = earlier.filter(|version| *version < FIRST).max() {
        return Err(Error::Unmet(vec![format!(
            "the database has the schema {version:04} of a build before 0.1.0, and is left as it is: {EXPORT}, into another \
             database (DATABASE_URL)"
        )]));
    }
    let mut pending = Vec::new();
    for migration in MIGRATOR.iter() {
        let mut applied = applied.iter();
        match applied.find(|applied| applied.version == migration.version) {
            Some(applied) if applied.checksum == migration.checksum => {}
            Some(_) => return Err(MigrateError::VersionMismatch(migration.version).into()),
            None => pending.push(migration),
        }
    }
    Ok(pending)
}

/// Tables of a backup, each after those that its rows refer to, with the columns in the order of an archive. An archive
/// does not name them: a migration that adds a column keeps this list for the schemas before it.
pub const TABLES: [(&str, &str); 14] = [
    ("callers", "id, name, plan, scopes, created_at, disabled_at"),
    (
        "credentials",
        "id, caller_id, kind, hash, hint, scopes, created_at, expires_at, revoked_at, client_id, issued_by, last_used_at, name, rotated_at",
    ),
    ("pets", "id, version, status, details"),
    (
        "orders",
        "id, owner, pet_id, held_pet, quantity, ship_date, status, complete, created_at",
    ),
    (
        "users",
        "id, caller_id, username, folded, first_name, last_name, email, phone, user_status, password_hash, created_at",
    ),
    (
        "idempotency_keys",
        "caller, key, fingerprint, answer, created_at",
    ),
    (
        "image_contents",
        "sha256, key, media_type, size, width, height",
    ),
    ("images", "id, pet_id, sha256, created_at"),
    (
        "changes",
        "position, at, kind, resource, action, version, owner, actor, request_id, data",
    ),
    (
        "new_changes",
        "at, kind, resource, action, version, owner, actor, request_id, data",
    ),
    ("changes_clock", "is_only, position"),
    ("caller_usage", "caller_id, day, admitted, refused"),
    (
        "webhooks",
        "id, url, secret, kinds, created_at, position, enabled",
    ),
    (
        "webhook_retries",
        "webhook_id, position, kind, resource, attempts, next_at, last_error, created_at, parked_at",
    ),
];

/// Tables that a backup leaves out: triggers or the service fill them again (`inventory_changes`, `pet_tags`,
/// `tag_names`, `image_renderings`); they belong to one database (`_sqlx_migrations`, `image_place`, `image_leftovers`); they count the use
/// of limits (`limit_usage`); or they are only for a look (`webhook_attempts`).
pub const OMITTED_TABLES: [&str; 9] = [
    "_sqlx_migrations",
    "image_leftovers",
    "image_place",
    "image_renderings",
    "inventory_changes",
    "limit_usage",
    "pet_tags",
    "tag_names",
    "webhook_attempts",
];

/// Sequences of a backup: those of the schema, except that of `new_changes`, whose rows get new numbers in their order.
pub const SEQUENCES: [&str; 7] = [
    "callers_id_seq",
    "credentials_id_seq",
    "order_ids",
    "pet_ids",
    "pet_versions",
    "user_ids",
    "webhooks_id_seq",
];
