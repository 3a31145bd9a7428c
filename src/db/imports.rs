//! Imports many pets: stages records in a separate table with `COPY`, then adds all of them in one transaction.
//!
//! Invariants:
//! - An import is done completely or not at all.
//! - Staged records survive the end of the process, so that they need not be read again.
//! - Statements have no timeout: a person waits for them, on a separate connection.

use sqlx::{Connection as _, PgConnection, Row as _};

use super::{
    codec::{PetColumns, SecretHash},
    error::Error,
};
use crate::domain::pet::NewPet;

/// Key of the advisory lock: an arbitrary number that never changes and has no other use.
const LOCK_KEY: i64 = 0x7065_7473_696d_706f;
/// Maximum number of reported conflicts.
const MAX_REPORTED_CONFLICTS: i64 = 100;

/// Import in progress. Staged records are kept when it is dropped.
#[derive(Debug)]
pub struct Import {
    connection: PgConnection,
    staged: u64,
}

/// Record of the file.
#[derive(Debug)]
pub struct Record {
    /// Line at which the record begins, from 1.
    pub line: u64,
    /// Pet.
    pub pet: NewPet,
}

/// Identifier that a record chose, but that is taken.
#[derive(Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Line at which the record begins.
    pub line: u64,
    /// Identifier.
    pub id: i64,
    /// True if a stored pet has it, false if an earlier record of the file has it.
    pub is_stored: bool,
}

/// Outcome of an import.
#[derive(Debug)]
pub enum ImportOutcome {
    /// Number of pets that were added.
    Added(u64),
    /// First conflicts in the file, which must be fixed. No pet was added.
    Conflicts(Vec<Conflict>),
    /// A client chose an identifier of the file in the meantime. No pet was added.
    ConcurrentInsert,
}

impl Import {
    /// Begins or resumes the import of the file with this SHA-256. Staged records of another file are deleted. Returns
    /// `None` if another process is importing.
    pub async fn open(
        mut connection: PgConnection,
        file: &SecretHash,
    ) -> Result<Option<Self>, Error> {
        let has_lock: bool = sqlx::query_scalar("select pg_try_advisory_lock($1)")
            .bind(LOCK_KEY)
            .fetch_one(&mut connection)
            .await?;
        if !has_lock {
            return Ok(None);
        }
        let staged: Option<i64> =
            sqlx::query_scalar("select records from pet_imports where file = $1")
                .bind(file)
                .fetch_optional(&mut connection)
                .await?;
        if staged.is_none() {
            let mut transaction = connection.begin().await?;
            delete_staged(&mut transaction).await?;
            sqlx::query("insert into pet_imports (file) values ($1)")
                .bind(file)
                .execute(&mut *transaction)
                .await?;
            transaction.commit().await?;
        }
        Ok(Some(Self {
            connection,
            staged: staged.unwrap_or(0).unsigned_abs(),
        }))
    }

    /// Returns the number of records that are staged already and need not be read again.
    #[must_use]
    pub const fn staged(&self) -> u64 {
        self.staged
    }

    /// Stages the next records of the file. After success they need not be read again.
    pub async fn stage(&mut self, records: &[Record]) -> Result<(), Error> {
        let mut transaction = self.connection.begin().await?;
        let without_id = records.iter().filter(|record| record.pet.id.is_none());
        let ids: Vec<i64> =
            sqlx::query_scalar("select nextval('pet_ids') from generate_series(1, $1)")
                .bind(as_i64(without_id.count()))
                .fetch_all(&mut *transaction)
                .await?;
        let mut ids = ids.into_iter();
        let mut lines = String::new();
        for record in records {
            let (id, by_server) = match record.pet.id {
                Some(id) => (id.get(), false),
                None => (ids.next().unwrap_or_default(), true),
            };
            push_line(&mut lines, record, id, by_server)?;
        }
        let mut copy = transaction
            .copy_in_raw(
                "copy pet_import_rows (line, id, by_server, status, name, category, photo_urls, tags)
                 from stdin",
            )
            .await?;
        copy.send(lines.into_bytes()).await?;
        copy.finish().await?;
        sqlx::query("update pet_imports set records = records + $1")
            .bind(as_i64(records.len()))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        self.staged += records.len() as u64;
        Ok(())
    }

    /// Adds pets for all staged records, or for none of them.
    pub async fn finish(mut self) -> Result<ImportOutcome, Error> {
        let mut transaction = self.connection.begin().await?;
        // Without statistics, the joins below would be planned for a few rows.
        sqlx::query("analyze pet_import_rows")
            .execute(&mut *transaction)
            .await?;
        let conflicts = find_conflicts(&mut transaction).await?;
        if !conflicts.is_empty() {
            // Once fixed, it is another file, with another SHA-256.
            delete_staged(&mut transaction).await?;
            transaction.commit().await?;
            return Ok(ImportOutcome::Conflicts(conflicts));
        }
        assign_free_ids(&mut transaction).await?;
        // In the order of identifiers, like all inserts of many pets, so that none of them deadlock.
        let added = sqlx::query(
            "insert into pets (id, status, name, category, photo_urls, tags)
             select id, status, name, category, photo_urls, tags from pet_import_rows order by id",
        )
        .execute(&mut *transaction)
        .await;
        let added = match added {
            Ok(result) => result.rows_affected(),
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                return Ok(ImportOutcome::ConcurrentInsert);
            }
            Err(error) => return Err(error.into()),
        };
        delete_staged(&mut transaction).await?;
        transaction.commit().await?;
        Ok(ImportOutcome::Added(added))
    }
}

async fn delete_staged(transaction: &mut PgConnection) -> Result<(), Error> {
    sqlx::raw_sql("truncate pet_imports, pet_import_rows")
        .execute(transaction)
        .await?;
    Ok(())
}

/// Returns the first chosen identifiers that are taken, in the order of lines.
async fn find_conflicts(transaction: &mut PgConnection) -> Result<Vec<Conflict>, Error> {
    let rows = sqlx::query(
        "select line, id, is_stored
         from (
             select chosen.line, chosen.id, pets.id is not null as is_stored,
                    row_number() over (partition by chosen.id order by chosen.line) as occurrence
             from pet_import_rows chosen left join pets on pets.id = chosen.id
             where not chosen.by_server
         ) chosen
         where is_stored or occurrence > 1
         order by line
         limit $1",
    )
    .bind(MAX_REPORTED_CONFLICTS)
    .fetch_all(transaction)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(Conflict {
                line: row.try_get::<i64, _>("line")?.unsigned_abs(),
                id: row.try_get("id")?,
                is_stored: row.try_get("is_stored")?,
            })
        })
        .collect()
}

/// Replaces identifiers from the sequence that a pet or a record of the file has chosen as well.
async fn assign_free_ids(transaction: &mut PgConnection) -> Result<(), Error> {
    // Doubled each time, to get past a long run of chosen identifiers soon.
    let mut stride = 1_i64;
    loop {
        let updated = sqlx::query(
            "update pet_import_rows given set id = nextval('pet_ids')
             where by_server
               and (exists (select from pets where pets.id = given.id)
                    or exists (select from pet_import_rows chosen
                               where chosen.id = given.id and not chosen.by_server))",
        )
        .execute(&mut *transaction)
        .await?;
        if updated.rows_affected() == 0 {
            return Ok(());
        }
        sqlx::query("select setval('pet_ids', last_value + $1) from pet_ids")
            .bind(stride)
            .execute(&mut *transaction)
            .await?;
        stride = stride.saturating_mul(2);
    }
}

/// Appends a record in the text format of `COPY`.
fn push_line(
    lines: &mut String,
    Record { line, pet }: &Record,
    id: i64,
    by_server: bool,
) -> Result<(), Error> {
    let columns = PetColumns::from(&pet.details);
    let json = |result: serde_json::Result<String>| {
        result.map_err(|error| Error::Corrupt(error.to_string()))
    };
    let category = columns
        .category
        .map(|category| json(serde_json::to_string(&category.0)));
    let cells = [
        Some(line.to_string()),
        Some(id.to_string()),
        Some(by_server.to_string()),
        Some(columns.status.to_owned()),
        Some(columns.name.to_owned()),
        category.transpose()?,
        Some(array_literal(&columns.photo_urls)),
        Some(json(serde_json::to_string(&columns.tags.0))?),
    ];
    for (column, cell) in cells.iter().enumerate() {
        if column > 0 {
            lines.push('\t');
        }
        match cell {
            Some(text) => push_escaped(lines, text),
            None => lines.push_str("\\N"),
        }
    }
    lines.push('\n');
    Ok(())
}

fn push_escaped(line: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '\\' => line.push_str("\\\\"),
            '\t' => line.push_str("\\t"),
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            other => line.push(other),
        }
    }
}

/// Returns an array literal of PostgreSQL, with each element quoted.
fn array_literal(texts: &[&str]) -> String {
    let quoted: Vec<String> = texts
        .iter()
        .map(|text| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")))
        .collect();
    format!("{{{}}}", quoted.join(","))
}

fn as_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
