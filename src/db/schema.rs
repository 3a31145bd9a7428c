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

/// Tables of the schema.
pub const TABLES: [&str; 24] = [
    "_sqlx_migrations",
    "caller_usage",
    "callers",
    "changes",
    "changes_clock",
    "credentials",
    "idempotency_keys",
    "image_contents",
    "image_leftovers",
    "image_place",
    "image_renderings",
    "images",
    "inventory_changes",
    "last_backup",
    "limit_usage",
    "new_changes",
    "orders",
    "pet_tags",
    "pets",
    "tag_names",
    "users",
    "webhook_attempts",
    "webhook_retries",
    "webhooks",
];

/// What a backup leaves out: tables and columns. It has all others that the database has, generated columns excepted.
pub const OMITTED: [&str; 18] = [
    // Of one database.
    "_sqlx_migrations",
    "image_leftovers",
    "image_place",
    "last_backup",
    // Filled again by triggers or the service.
    "image_renderings",
    "inventory_changes",
    "pet_tags",
    "pets.folded_name",
    "tag_names",
    // The use of limits in the last day.
    "limit_usage",
    // Numbers that a restore gives anew, in their order.
    "new_changes.seq",
    // Only for a look.
    "webhook_attempts",
    // A turn, a test or a rotation in progress.
    "webhooks.lease",
    "webhooks.leased_until",
    "webhooks.next_at",
    "webhooks.old_secret",
    "webhooks.old_secret_until",
    "webhooks.test_until",
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
