//! Requirements on a database and its role: one list for the start, for all commands, and for `check`.

use sqlx::{PgConnection, Row as _, migrate::Migration};

use super::{
    deadline::with_timeout,
    error::Error,
    schema::{SEQUENCES, TABLES, pending_on},
    server::ServerVersion,
};

/// State of a database. Every sentence is about something that has to be corrected before the service can start.
#[derive(Debug, Default)]
pub struct Conditions {
    /// Sentences about the server and its database.
    pub server: Vec<String>,
    /// Sentences about the schema and the rights of the role.
    pub schema: Vec<String>,
    /// Migrations that are not applied yet, in order.
    pub pending: Vec<&'static Migration>,
}

impl Conditions {
    /// Reads the state in a transaction that changes nothing. Fails for a schema that was changed or is of an earlier build.
    pub(super) async fn read(connection: &mut PgConnection) -> Result<Self, Error> {
        const FACTS: &str = "
            select current_setting('server_version_num')::int as version,
                current_setting('server_encoding') as encoding,
                current_user::text as role,
                current_schema()::text as schema,
                coalesce(has_schema_privilege(current_schema(), 'create'), false) as may_create,
                to_regclass('_sqlx_migrations') is not null as has_migrations,
                array(select name from unnest($1) name where to_regclass(name) is not null) as present,
                array(select name from unnest($1) name where to_regclass(name) is null) as missing,
                array(
                    select distinct pg_get_userbyid(relowner)::text from unnest($1) name
                    join pg_class on pg_class.oid = to_regclass(name) where not pg_has_role(relowner, 'usage')
                ) as owners,
                array(
                    select privilege || ' on ' || name
                    from unnest($1) name cross join unnest('{select,insert,update,delete}'::text[]) privilege
                    where to_regclass(name) is not null and not has_table_privilege(name, privilege)
                        and (name <> '_sqlx_migrations' or privilege = 'select')
                    union all
                    select privilege || ' on ' || name
                    from unnest($2) name cross join unnest('{usage,select,update}'::text[]) privilege
                    where to_regclass(name) is not null and not has_sequence_privilege(name, privilege)
                ) as denied";
        let query = sqlx::query(FACTS).bind(&TABLES[..]).bind(&SEQUENCES[..]);
        let facts = with_timeout(query.fetch_one(&mut *connection)).await?;
        let names = |column: &str| facts.try_get::<Vec<String>, _>(column);
        let mut state = Self::default();

        let version = ServerVersion(facts.try_get("version")?);
        let oldest = ServerVersion::OLDEST_SUPPORTED;
        if version < oldest {
            state.server.push(format!(
                "PostgreSQL {version} is too old: upgrade to {oldest} or newer"
            ));
        }
        let encoding: &str = facts.try_get("encoding")?;
        if encoding != "UTF8" {
            state.server.push(format!(
                "the database has the encoding {encoding}, which lacks characters of names: create one with \
                 create database NAME template template0 encoding 'UTF8'"
            ));
        }
        let role: &str = facts.try_get("role")?;
        let Some(schema) = facts.try_get::<Option<&str>, _>("schema")? else {
            state.schema.push(format!(
                "the search_path of the role {role} has no schema that it may use: grant usage on schema public to {role}"
            ));
            return Ok(state);
        };
        let (present, missing, denied) = (names("present")?, names("missing")?, names("denied")?);
        let has_migrations: bool = facts.try_get("has_migrations")?;
        if !has_migrations && !present.is_empty() {
            state.schema.push(format!(
                "the database has tables of another program ({}): use an empty one",
                present.join(", ")
            ));
            return Ok(state);
        }
        if !denied.iter().any(|it| it.contains("_sqlx_migrations")) {
            state.pending = pending_on(connection).await?;
        }
        let owners = names("owners")?;
        let is_owner = facts.try_get("may_create")? && owners.is_empty();
        if !state.pending.is_empty() {
            if !is_owner {
                let owner = owners.first().map_or("its owner", String::as_str);
                state.schema.push(format!(
                    "{} migrations are pending, and the role {role} may not change the schema {schema}: run \
                     pet-inventory migrate as {owner}",
                    state.pending.len()
                ));
            }
            return Ok(state);
        }
        if !missing.is_empty() {
            state.schema.push(format!(
                "tables are missing ({}): restore a backup into an empty database",
                missing.join(", ")
            ));
        }
        if !denied.is_empty() {
            state.schema.push(format!(
                "the role {role} lacks rights ({}): as the owner, grant select, insert, update, delete on all tables in schema \
                 {schema} to {role}; grant usage, select, update on all sequences in schema {schema} to {role}",
                denied.join(", ")
            ));
        }
        Ok(state)
    }

    /// Fails if something has to be corrected.
    pub(super) fn met(self) -> Result<Vec<&'static Migration>, Error> {
        let unmet = [self.server, self.schema].concat();
        if unmet.is_empty() {
            return Ok(self.pending);
        }
        Err(Error::Unmet(unmet))
    }
}
