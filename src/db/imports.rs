//! Many pets at once: gathered by `COPY` where nobody sees them, then added in one transaction.
//!
//! Invariants: an import is done wholly or not at all; what was gathered survives the end of the
//! process, so that the same file is not read twice. These statements take as long as they take: a
//! person waits for them, on a connection of their own.

use sqlx::{Connection as _, PgConnection, Row as _};

use super::{Error, SecretHash, codec::PetColumns};
use crate::domain::pet::NewPet;

/// Any number, as long as it is always the same and nobody else's.
const LOCK: i64 = 0x7065_7473_696d_706f;
/// How many conflicts are told at once.
const TOLD: i64 = 100;

/// An import that goes on. Dropped, it stays as far as it has come.
#[derive(Debug)]
pub struct Import {
    connection: PgConnection,
    gathered: u64,
}

/// A pet of a file.
#[derive(Debug)]
pub struct Record {
    /// Where it begins, from 1.
    pub line: u64,
    /// The pet.
    pub pet: NewPet,
}

/// An identifier that a record chose and cannot have.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken {
    /// Where the record begins.
    pub line: u64,
    /// The identifier.
    pub id: i64,
    /// Whether a pet has it; else an earlier record of the file.
    pub by_a_pet: bool,
}

/// How an import ended.
#[derive(Debug)]
pub enum Outcome {
    /// So many pets were added.
    Added(u64),
    /// Nothing was added: the file must be mended. The first of the reasons.
    Taken(Vec<Taken>),
    /// Nothing was added: meanwhile a client chose an identifier of the file.
    Raced,
}

impl Import {
    /// Begins an import of the file with that SHA-256, or goes on with it; what was gathered of another
    /// file is given up. `None`: another process imports right now.
    pub async fn open(
        mut connection: PgConnection,
        file: &SecretHash,
    ) -> Result<Option<Self>, Error> {
        let alone: bool = sqlx::query_scalar("select pg_try_advisory_lock($1)")
            .bind(LOCK)
            .fetch_one(&mut connection)
            .await?;
        if !alone {
            return Ok(None);
        }
        let gathered: Option<i64> =
            sqlx::query_scalar("select records from pet_imports where file = $1")
                .bind(file)
                .fetch_optional(&mut connection)
                .await?;
        if gathered.is_none() {
            let mut transaction = connection.begin().await?;
            clear(&mut transaction).await?;
            sqlx::query("insert into pet_imports (file) values ($1)")
                .bind(file)
                .execute(&mut *transaction)
                .await?;
            transaction.commit().await?;
        }
        Ok(Some(Self {
            connection,
            gathered: gathered.unwrap_or(0).unsigned_abs(),
        }))
    }

    /// How many records of the file need not be read again.
    #[must_use]
    pub const fn gathered(&self) -> u64 {
        self.gathered
    }

    /// Gathers the next records of the file; once this has succeeded they need not be read again.
    pub async fn gather(&mut self, records: &[Record]) -> Result<(), Error> {
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
        self.gathered += records.len() as u64;
        Ok(())
    }

    /// Makes pets of all that was gathered, or of none of it.
    pub async fn finish(mut self) -> Result<Outcome, Error> {
        let mut transaction = self.connection.begin().await?;
        // Nothing is known of the rows yet, and the joins below would be planned for a few.
        sqlx::query("analyze pet_import_rows")
            .execute(&mut *transaction)
            .await?;
        let taken = taken(&mut transaction).await?;
        if !taken.is_empty() {
            // The file will be another one once it is mended.
            clear(&mut transaction).await?;
            transaction.commit().await?;
            return Ok(Outcome::Taken(taken));
        }
        give_free_ids(&mut transaction).await?;
        // In the order of identifiers, as everybody adds many at once: nobody waits crosswise.
        let added = sqlx::query(
            "insert into pets (id, status, name, category, photo_urls, tags)
             select id, status, name, category, photo_urls, tags from pet_import_rows order by id",
        )
        .execute(&mut *transaction)
        .await;
        let added = match added {
            Ok(done) => done.rows_affected(),
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                return Ok(Outcome::Raced);
            }
            Err(error) => return Err(error.into()),
        };
        clear(&mut transaction).await?;
        transaction.commit().await?;
        Ok(Outcome::Added(added))
    }
}

async fn clear(transaction: &mut PgConnection) -> Result<(), Error> {
    sqlx::raw_sql("truncate pet_imports, pet_import_rows")
        .execute(transaction)
        .await?;
    Ok(())
}

/// The first identifiers, in the order of lines, that were chosen and are not free.
async fn taken(transaction: &mut PgConnection) -> Result<Vec<Taken>, Error> {
    let rows = sqlx::query(
        "select line, id, by_a_pet
         from (
             select chosen.line, chosen.id, pets.id is not null as by_a_pet,
                    row_number() over (partition by chosen.id order by chosen.line) as turn
             from pet_import_rows chosen left join pets on pets.id = chosen.id
             where not chosen.by_server
         ) chosen
         where by_a_pet or turn > 1
         order by line
         limit $1",
    )
    .bind(TOLD)
    .fetch_all(transaction)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(Taken {
                line: row.try_get::<i64, _>("line")?.unsigned_abs(),
                id: row.try_get("id")?,
                by_a_pet: row.try_get("by_a_pet")?,
            })
        })
        .collect()
}

/// Gives the rows whose identifiers the server chose others, where clients or the file chose the same.
async fn give_free_ids(transaction: &mut PgConnection) -> Result<(), Error> {
    // However many a client chose in a row, a stride that doubles is soon past them.
    let mut stride = 1_i64;
    loop {
        let collided = sqlx::query(
            "update pet_import_rows given set id = nextval('pet_ids')
             where by_server
               and (exists (select from pets where pets.id = given.id)
                    or exists (select from pet_import_rows chosen
                               where chosen.id = given.id and not chosen.by_server))",
        )
        .execute(&mut *transaction)
        .await?;
        if collided.rows_affected() == 0 {
            return Ok(());
        }
        sqlx::query("select setval('pet_ids', last_value + $1) from pet_ids")
            .bind(stride)
            .execute(&mut *transaction)
            .await?;
        stride = stride.saturating_mul(2);
    }
}

/// One line of `COPY`'s text format.
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

/// A text array as PostgreSQL reads it: each element quoted.
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
