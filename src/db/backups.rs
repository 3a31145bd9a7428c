//! Backups: the rows of one snapshot in the text format of `COPY`, and their restore into an empty database.
//!
//! Invariants:
//! - A backup is one snapshot. While it is read, the blobs of its rows are not deleted ([`is_in_progress`]).
//! - A restore is one transaction: until its commit, the database is empty.
//! - Statements have no timeout: a person waits for them, on a separate connection.
//! - Both work behind a transaction pooler.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use futures_util::{Stream, TryStreamExt};
use serde::{Deserialize, Serialize};
use sqlx::{
    AssertSqlSafe, Connection as _, Executor as _, FromRow, PgConnection, Row as _,
    postgres::PgCopyIn,
};

use super::{
    deadline::with_timeout,
    error::Error,
    record::{self, Record},
    schema::{OMITTED, SEQUENCES},
};
use crate::domain::{
    change::{Action, Initiator, Kind},
    clock::rfc3339,
};

/// Tables in which a migration adds a row.
const TABLES_WITH_A_ROW: [&str; 2] = ["changes", "changes_clock"];

/// Credentials in a backup. Sessions and access tokens are left out: they are short-lived, and one that was revoked after
/// the backup would be valid again.
const CREDENTIALS: &str = "where kind not in ('session', 'access_token')";

/// Advance of the sequences of ids by a restore, so that no id is given again that a client got after the backup.
const IDS_AFTER_BACKUP: i64 = 1 << 20;
/// Minimum advance of the versions of pets by a restore. Versions also begin at the time of the restore, in microseconds
/// since 1970, so that those of two restores of one backup differ.
const VERSIONS_AFTER_BACKUP: i64 = 1 << 32;

/// Last value of each of [`SEQUENCES`], by name; 0 for one that has given none.
pub type Sequences = BTreeMap<String, i64>;

/// Table of an archive.
#[derive(Debug, Clone, PartialEq, Eq, FromRow, Serialize, Deserialize)]
pub struct Table {
    /// Name, quoted if SQL needs it.
    pub name: String,
    /// Names of the columns in the order of the rows, quoted if SQL needs it.
    pub columns: Vec<String>,
    /// Names of the other tables that its rows refer to.
    #[serde(skip)]
    references: Vec<String>,
}

/// Returns all tables and columns of the schema but [`OMITTED`] ones and those of extensions. Each table comes after those that its
/// rows refer to. Of the catalogs, `information_schema` lacks those that the role may not read, which must not be lost silently.
async fn tables(connection: &mut PgConnection) -> Result<Vec<Table>, Error> {
    let query = sqlx::query_as(
        "select quote_ident(relname) as name, array_agg(quote_ident(attname) order by attnum) as columns,
                array(
                    select distinct quote_ident(referenced.relname) from pg_constraint
                    join pg_class referenced on referenced.oid = confrelid
                    where conrelid = pg_class.oid and contype = 'f' and confrelid <> conrelid
                ) as references
         from pg_class join pg_attribute on attrelid = pg_class.oid
         where relnamespace = (select relnamespace from pg_class where oid = '_sqlx_migrations'::regclass) and relkind = 'r'
             and attnum > 0 and not attisdropped and attgenerated = ''
             and relname <> all ($1) and relname || '.' || attname <> all ($1)
             and not exists (select from pg_depend where objid = pg_class.oid and deptype = 'e')
         group by pg_class.oid, relname order by relname",
    );
    let query = query.bind(&OMITTED[..]);
    let mut rest: Vec<Table> = query.fetch_all(connection).await?;
    let mut ordered: Vec<Table> = Vec::with_capacity(rest.len());
    while !rest.is_empty() {
        let names: Vec<_> = rest.iter().map(|table| table.name.clone()).collect();
        let waits = |table: &Table| table.references.iter().any(|it| names.contains(it));
        let next = rest.iter().position(|table| !waits(table));
        // Tables that refer to each other are not of this program.
        ordered.push(rest.remove(next.unwrap_or_default()));
    }
    Ok(ordered)
}

/// Bytes of an image in the image store.
#[derive(Debug, FromRow)]
pub struct StoredImage {
    /// SHA-256 of the bytes, in hexadecimal.
    pub sha256: String,
    /// Key in the image store.
    pub key: String,
    /// Size in bytes.
    #[sqlx(try_from = "i64")]
    pub size: u64,
    /// Pet that has the image, for messages.
    pub pet_id: Option<i64>,
}

/// Snapshot that is being read.
#[derive(Debug)]
pub struct Backup {
    connection: PgConnection,
    /// Time of the snapshot.
    pub created_at: DateTime<Utc>,
    /// Tables of the snapshot, in the order of an archive.
    pub tables: Vec<Table>,
    /// SHA-256s, in hexadecimal, of images that are left out.
    pub left_out: Vec<String>,
}

impl Backup {
    /// Takes the snapshot, of a database that has the schema.
    pub async fn begin(mut connection: PgConnection) -> Result<Self, Error> {
        // The lock comes before the first statement that takes a snapshot. It excludes nothing; `is_in_progress` finds it.
        const BEGIN: &str = "begin isolation level repeatable read, read only;
            set local statement_timeout = 0; set local idle_in_transaction_session_timeout = 0;
            lock table image_leftovers in row share mode;
            deallocate all";
        connection.execute(BEGIN).await?;
        let query = sqlx::query_scalar("select now()");
        let created_at = query.fetch_one(&mut connection).await?;
        Ok(Self {
            created_at,
            tables: tables(&mut connection).await?,
            connection,
            left_out: Vec::new(),
        })
    }

    /// Streams the rows of a table. Each chunk ends with a complete row, and each row with a line break, which rows do not
    /// contain otherwise.
    pub async fn rows(
        &mut self,
        Table { name, columns, .. }: &Table,
    ) -> Result<impl Stream<Item = Result<impl AsRef<[u8]>, Error>>, Error> {
        let condition = match &**name {
            "credentials" => CREDENTIALS.to_owned(),
            "new_changes" => "order by seq".to_owned(),
            "image_contents" | "images" => {
                let left_out = self.left_out.join(",");
                format!("where encode(sha256, 'hex') <> all ('{{{left_out}}}')")
            }
            _ => String::new(),
        };
        let columns = columns.join(", ");
        let statement = format!("copy (select {columns} from {name} {condition}) to stdout");
        let chunks = self.connection.copy_out_raw(&statement).await?;
        Ok(chunks.map_err(Error::from))
    }

    /// Streams the images, each content once.
    pub fn images(&mut self) -> impl Stream<Item = Result<StoredImage, Error>> {
        let query = sqlx::query_as(
            "select encode(sha256, 'hex') as sha256, key, size,
                    (select pet_id from images where sha256 = content.sha256 limit 1)
             from image_contents content where encode(sha256, 'hex') <> all ($1)",
        );
        let query = query.bind(&self.left_out);
        query.fetch(&mut self.connection).map_err(Error::from)
    }

    /// Returns the sequences, with at least the values of the snapshot.
    pub async fn sequences(&mut self) -> Result<Sequences, Error> {
        let query = sqlx::query_as(
            "select sequencename::text, coalesce(last_value, 0) from pg_sequences
             where schemaname = any (current_schemas(false)) and sequencename = any ($1)",
        );
        let query = query.bind(SEQUENCES);
        let sequences: Vec<(String, i64)> = query.fetch_all(&mut self.connection).await?;
        Ok(sequences.into_iter().collect())
    }
}

/// Returns true if a backup of this database is in progress, which may need the blobs of rows that have been deleted since
/// its snapshot. Keys that were read before this call may be deleted after it: no later snapshot refers to them.
pub async fn is_in_progress(connection: &mut PgConnection) -> Result<bool, Error> {
    let query = sqlx::query_scalar(
        "select exists (
             select from pg_locks join pg_database on pg_database.oid = pg_locks.database
             where datname = current_database() and relation = 'image_leftovers'::regclass
               and mode = 'RowShareLock' and granted
         )",
    );
    with_timeout(query.fetch_one(connection)).await
}

/// Stores the time of the snapshot of a complete backup, for [`last`].
pub async fn set_last(connection: &mut PgConnection, at: DateTime<Utc>) -> Result<(), Error> {
    let query = sqlx::query(
        "insert into last_backup (at) values ($1) on conflict (is_only) do update set at = excluded.at",
    );
    with_timeout(query.bind(at).execute(connection)).await?;
    Ok(())
}

/// Returns the time of the snapshot of the last complete backup in seconds since 1970, or 0 if there is none.
pub async fn last(connection: &mut PgConnection) -> Result<f64, Error> {
    let query = sqlx::query_scalar(
        "select coalesce(extract(epoch from max(at)), 0)::float8 from last_backup",
    );
    with_timeout(query.fetch_one(connection)).await
}

/// Returns true if the database has any table, of this program or of another.
pub async fn has_tables(connection: &mut PgConnection) -> Result<bool, Error> {
    // A plain-text query: behind a pooler, nothing can be prepared outside a transaction.
    const QUERY: &str =
        "select exists (select from pg_tables where schemaname = any (current_schemas(false)))";
    Ok(connection.fetch_one(QUERY).await?.try_get(0)?)
}

/// Restore in progress. Dropped before its commit, it changes nothing.
#[derive(Debug)]
pub struct Restore {
    connection: PgConnection,
    tables: Vec<Table>,
}

impl Restore {
    /// Begins a restore into a database with the schema. Returns `None` if one of its tables has rows. Other transactions can only
    /// read them until the end.
    pub async fn begin(mut connection: PgConnection) -> Result<Option<Self>, Error> {
        const BEGIN: &str = "begin; set local statement_timeout = 0; set local idle_in_transaction_session_timeout = 0;
            deallocate all";
        connection.execute(BEGIN).await?;
        let tables = tables(&mut connection).await?;
        let names: Vec<_> = tables.iter().map(|table| &*table.name).collect();
        let lock = format!("lock table {} in exclusive mode", names.join(", "));
        connection.execute(AssertSqlSafe(lock)).await?;
        let empty = names
            .iter()
            .filter(|name| !TABLES_WITH_A_ROW.contains(name));
        let has_rows: Vec<_> = empty
            .map(|name| format!("exists (select from {name})"))
            .collect();
        let has_rows = AssertSqlSafe(format!("select {}", has_rows.join(" or ")));
        let has_rows: bool = sqlx::query_scalar(has_rows)
            .fetch_one(&mut connection)
            .await?;
        if has_rows {
            return Ok(None);
        }
        for table in TABLES_WITH_A_ROW {
            let delete = AssertSqlSafe(format!("delete from {table}"));
            connection.execute(delete).await?;
        }
        Ok(Some(Self { connection, tables }))
    }

    /// Returns a table or column of an archive that the database lacks, if there is one.
    pub fn lacks(&self, archived: &[Table]) -> Option<String> {
        archived.iter().find_map(|table| {
            let Some(found) = self.tables.iter().find(|it| it.name == table.name) else {
                return Some(table.name.clone());
            };
            let mut columns = table.columns.iter();
            let column = columns.find(|column| !found.columns.contains(column))?;
            Some(format!("{}.{column}", table.name))
        })
    }

    /// Begins to add rows to a table that the database does not [lack](Self::lacks), of which an archive may have several parts.
    pub async fn rows(
        &mut self,
        Table { name, columns, .. }: &Table,
    ) -> Result<RestoredRows<'_>, Error> {
        let statement = format!("copy {name} ({}) from stdin", columns.join(", "));
        Ok(RestoredRows(self.connection.copy_in_raw(&statement).await?))
    }

    /// Returns true if each table has this number of rows.
    pub async fn has_rows(&mut self, rows: &BTreeMap<String, u64>) -> Result<bool, Error> {
        for Table { name, .. } in &self.tables {
            if let Some(expected) = rows.get(name) {
                let count = AssertSqlSafe(format!("select count(*) from {name}"));
                let count: i64 = sqlx::query_scalar(count)
                    .fetch_one(&mut self.connection)
                    .await?;
                if u64::try_from(count) != Ok(*expected) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Returns the size in bytes of the image with this SHA-256, in hexadecimal. Returns `None` if no row has it.
    pub async fn image_size(&mut self, sha256: &str) -> Result<Option<i64>, Error> {
        let query =
            sqlx::query_scalar("select size from image_contents where sha256 = decode($1, 'hex')");
        let query = query.bind(sha256);
        Ok(query.fetch_optional(&mut self.connection).await?)
    }

    /// Replaces the key of the image with this SHA-256, in hexadecimal.
    pub async fn set_key(&mut self, sha256: &str, key: &str) -> Result<(), Error> {
        let query =
            sqlx::query("update image_contents set key = $2 where sha256 = decode($1, 'hex')");
        let query = query.bind(sha256).bind(key);
        query.execute(&mut self.connection).await?;
        Ok(())
    }

    /// Returns true if each image has one of these keys.
    pub async fn has_keys(&mut self, keys: &[String]) -> Result<bool, Error> {
        let query = sqlx::query_scalar(
            "select not exists (select key from image_contents except select unnest($1::text[]))",
        );
        let query = query.bind(keys);
        Ok(query.fetch_one(&mut self.connection).await?)
    }

    /// Sets the sequences, so that no id or version of the backup is given again, and none that was given after it. Returns
    /// false if they are not those of the schema, or not in range.
    pub async fn set_sequences(&mut self, sequences: Sequences) -> Result<bool, Error> {
        let is_complete = sequences.keys().eq(SEQUENCES);
        let advanced = sequences.into_iter().map(|(name, value)| {
            let advance = match &*name {
                "pet_versions" => VERSIONS_AFTER_BACKUP,
                _ => IDS_AFTER_BACKUP,
            };
            let value = value.checked_add(advance).filter(|_| value >= 0)?;
            Some((name, value))
        });
        let advanced: Option<(Vec<String>, Vec<i64>)> = advanced.collect();
        let Some((names, values)) = advanced.filter(|_| is_complete) else {
            return Ok(false);
        };
        let query = sqlx::query(
            "select setval(format('%I.%I', schemaname, sequencename)::regclass, least(max_value, greatest(
                 value, last_value,
                 case name when 'pet_versions' then (extract(epoch from clock_timestamp()) * 1000000)::bigint end
             )))
             from unnest($1::text[], $2::bigint[]) as saved (name, value)
             join pg_sequences on sequencename = name and schemaname = any (current_schemas(false))",
        );
        let query = query.bind(names).bind(values);
        query.execute(&mut self.connection).await?;
        Ok(true)
    }

    /// Returns true if the clock of the record has the position of its newest change: one that is ahead would give no positions, and
    /// one that is behind would give some again.
    pub async fn has_newest_position(&mut self) -> Result<bool, Error> {
        let query = sqlx::query_scalar(
            "select count(*) = 1 and coalesce(max(position) = (select max(position) from changes), false)
                    and max(position) between 0 and extract(epoch from now() + interval '1 year') * 1000000
             from changes_clock",
        );
        Ok(query.fetch_one(&mut self.connection).await?)
    }

    /// Records the restore of the backup of this time as one change.
    pub async fn record(&mut self, created_at: DateTime<Utc>) -> Result<(), Error> {
        let operator = Initiator::operator();
        let time = rfc3339(created_at);
        let record = Record::new(Kind::Restore, &time, Action::Created, &operator);
        record::write(&mut self.connection, &[record]).await
    }

    /// Disables all webhooks: their receivers may have got the changes from the database that was backed up, which may be in use.
    /// Returns their number.
    pub async fn disable_webhooks(&mut self) -> Result<u64, Error> {
        let query = sqlx::query("update webhooks set enabled = false where enabled");
        let disabled = query.execute(&mut self.connection).await?;
        Ok(disabled.rows_affected())
    }

    /// Commits. After an error, it is unknown whether the rows are in the database.
    pub async fn commit(mut self) -> Result<(), Error> {
        self.connection.execute("commit").await?;
        Ok(self.connection.close().await?)
    }
}

/// Rows of one table that are being added.
pub struct RestoredRows<'a>(PgCopyIn<&'a mut PgConnection>);

impl RestoredRows<'_> {
    /// Adds a piece of the rows.
    pub async fn add(&mut self, piece: Vec<u8>) -> Result<(), Error> {
        self.0.send(piece).await?;
        Ok(())
    }

    /// Returns the number of added rows. Fails if PostgreSQL does not accept them.
    pub async fn finish(self) -> Result<u64, Error> {
        Ok(self.0.finish().await?)
    }
}
