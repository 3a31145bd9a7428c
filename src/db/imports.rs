//! Imports many pets: stages records in a separate table with `COPY`, then adds all of them in one transaction.
//!
//! Invariants:
//! - An import is done completely or not at all.
//! - Staged records survive the end of the process, so that they need not be read again.
//! - Statements have no timeout: a person waits for them, on a separate connection.

use serde_json::json;
use sqlx::{Connection as _, Executor as _, FromRow, PgConnection};

use super::{
    codec::{PetRow, SecretHash, client_columns},
    error::Error,
    record,
    sequences::skip_chosen_ids,
};
use crate::domain::{
    change::{Action, Initiator, Kind},
    id::PetId,
    pet::NewPet,
};

/// Key of the advisory lock: an arbitrary number that never changes and has no other use.
const LOCK_KEY: i64 = 0x7065_7473_696d_706f;
const DELETE_STAGED: &str = "truncate pet_imports, pet_import_rows";
/// Maximum number of reported conflicts.
const MAX_REPORTED_CONFLICTS: i64 = 100;

/// Import in progress. Staged records are kept when it is dropped.
#[derive(Debug)]
pub struct Import {
    connection: PgConnection,
    /// Number of records that are staged already and need not be read again.
    pub staged: u64,
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
#[derive(Debug, PartialEq, Eq, FromRow)]
pub struct Conflict {
    /// Line at which the record begins.
    #[sqlx(try_from = "i64")]
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
        let lock = sqlx::query_scalar("select pg_try_advisory_lock($1)").bind(LOCK_KEY);
        let is_locked: bool = lock.fetch_one(&mut connection).await?;
        if !is_locked {
            return Ok(None);
        }
        let staged = sqlx::query_scalar("select records from pet_imports where file = $1");
        let staged: Option<i64> = staged.bind(file).fetch_optional(&mut connection).await?;
        if staged.is_none() {
            let mut transaction = connection.begin().await?;
            transaction.execute(DELETE_STAGED).await?;
            let insert = sqlx::query("insert into pet_imports (file) values ($1)").bind(file);
            insert.execute(&mut *transaction).await?;
            transaction.commit().await?;
        }
        Ok(Some(Self {
            connection,
            staged: staged.unwrap_or(0).unsigned_abs(),
        }))
    }

    /// Stages the next records of the file. After success they need not be read again.
    pub async fn stage(&mut self, records: &[Record]) -> Result<(), Error> {
        let mut transaction = self.connection.begin().await?;
        let without_id = records.iter().filter(|record| record.pet.id.is_none());
        let ids = sqlx::query_scalar("select nextval('pet_ids') from generate_series(1, $1)")
            .bind(as_i64(without_id.count()));
        let ids: Vec<i64> = ids.fetch_all(&mut *transaction).await?;
        let mut ids = ids.into_iter();
        let mut lines = String::new();
        for record in records {
            let id = record.pet.id.map(PetId::get).or_else(|| ids.next());
            let line = line(record, id.unwrap_or_default());
            lines += &line.map_err(|error| Error::Corrupt(error.to_string()))?;
        }
        let mut copy = transaction
            .copy_in_raw(concat!(
                "copy pet_import_rows (line, id, by_server, ",
                client_columns!(""),
                ") from stdin"
            ))
            .await?;
        copy.send(lines.into_bytes()).await?;
        copy.finish().await?;
        let count = sqlx::query("update pet_imports set records = records + $1");
        let count = count.bind(as_i64(records.len()));
        count.execute(&mut *transaction).await?;
        transaction.commit().await?;
        self.staged += records.len() as u64;
        Ok(())
    }

    /// Adds pets for all staged records, or for none of them.
    pub async fn finish(mut self) -> Result<ImportOutcome, Error> {
        let mut transaction = self.connection.begin().await?;
        // Without statistics, the joins below would be planned for a few rows.
        transaction.execute("analyze pet_import_rows").await?;
        let conflicts = find_conflicts(&mut transaction).await?;
        if !conflicts.is_empty() {
            // Once fixed, it is another file, with another SHA-256.
            transaction.execute(DELETE_STAGED).await?;
            transaction.commit().await?;
            return Ok(ImportOutcome::Conflicts(conflicts));
        }
        assign_free_ids(&mut transaction).await?;
        // In the order of identifiers, like all inserts of many pets, so that none of them deadlock.
        let added = sqlx::query(concat!(
            "insert into pets (id, ",
            client_columns!(""),
            ") select id, ",
            client_columns!(""),
            " from pet_import_rows order by id",
        ))
        .execute(&mut *transaction)
        .await;
        let added = match added {
            Ok(result) => result.rows_affected(),
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                return Ok(ImportOutcome::ConcurrentInsert);
            }
            Err(error) => return Err(error.into()),
        };
        record_import(&mut transaction).await?;
        transaction.execute(DELETE_STAGED).await?;
        transaction.commit().await?;
        // Otherwise clients would wait for it: of millions, too long.
        while skip_chosen_ids(&mut self.connection, "pets", "pet_ids").await? {}
        Ok(ImportOutcome::Added(added))
    }
}

/// Records the import as one change: of the number of its pets, and of their first and last identifiers.
async fn record_import(transaction: &mut PgConnection) -> Result<(), Error> {
    let query = sqlx::query_as(
        "select count(*), min(id), max(id) from pet_import_rows having count(*) > 0",
    );
    let pets: Option<(i64, i64, i64)> = query.fetch_optional(&mut *transaction).await?;
    let Some((count, first, last)) = pets else {
        return Ok(());
    };
    let operator = Initiator::operator();
    let record = record::Record::new(Kind::Import, &first, Action::Created, &operator);
    let record = record.with_data(Some(json!({"pets": count, "ids": [first, last]})));
    record::write(transaction, &[record]).await
}

/// Returns the first chosen identifiers that are taken, in the order of lines.
async fn find_conflicts(transaction: &mut PgConnection) -> Result<Vec<Conflict>, Error> {
    let conflicts = sqlx::query_as(
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
    .fetch_all(transaction);
    Ok(conflicts.await?)
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
        let skip = sqlx::query("select setval('pet_ids', last_value + $1) from pet_ids");
        skip.bind(stride).execute(&mut *transaction).await?;
        stride = stride.saturating_mul(2);
    }
}

/// Returns a record in the text format of `COPY`.
fn line(Record { line, pet }: &Record, id: i64) -> serde_json::Result<String> {
    let row = PetRow::new(pet.id, &pet.details);
    let cells = [
        Some(line.to_string()),
        Some(id.to_string()),
        Some(pet.id.is_none().to_string()),
        Some(row.status.to_owned()),
        Some(row.name.to_owned()),
        row.category
            .map(|category| serde_json::to_string(&category))
            .transpose()?,
        Some(array_literal(&row.photo_urls)),
        Some(serde_json::to_string(&row.tags)?),
        Some(row.folded_name),
    ];
    let cells = cells.map(|cell| cell.map_or("\\N".to_owned(), |text| escape(&text)));
    Ok(cells.join("\t") + "\n")
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('\t', "\\t")
        .replace('\n', "\\n")
        .replace('\r', "\\r")
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
