//! Imports many pets: their records go into a temporary table first, which ends with the connection, then all into the pets in one
//! transaction.
//!
//! Invariants:
//! - An import is done completely or not at all. One that is interrupted leaves nothing.
//! - While the file is read, which may be a slow pipe, no transaction is open.
//! - Statements have no timeout: a person waits for them, on a separate connection.

use serde_json::json;
use sqlx::{Executor as _, FromRow, PgConnection};

use super::{codec::PetRows, error::Error, record, sequences::skip_chosen_ids};
use crate::domain::{
    change::{Action, Initiator, Kind},
    pet::NewPet,
};

/// Import in progress. When it is dropped, its connection ends, and with it the table and the transaction.
#[derive(Debug)]
pub struct Import(PgConnection);

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

impl Import {
    /// Begins an import.
    pub async fn begin(mut connection: PgConnection) -> Result<Self, Error> {
        connection
            .execute(
                "set statement_timeout = 0; set idle_in_transaction_session_timeout = 0;
                 create temporary table imported as
                 select 0::bigint as line, false as by_server, id, status, details, folded_name from pets with no data",
            )
            .await?;
        Ok(Self(connection))
    }

    /// Adds the next records of the file to the temporary table.
    pub async fn add(&mut self, records: &[Record]) -> Result<(), Error> {
        let (mut lines, mut rows) = (Vec::new(), PetRows::default());
        for Record { line, pet } in records {
            lines.push(i64::try_from(*line).unwrap_or(i64::MAX));
            rows.push(pet.id, &pet.details);
        }
        let query = sqlx::query(
            "insert into imported
             select line, id is null, coalesce(id, nextval('pet_ids')), status, details::json, folded_name
             from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[])
                 as pet (line, id, status, details, folded_name)",
        );
        query
            .bind(lines)
            .bind(rows.ids)
            .bind(rows.statuses)
            .bind(rows.details)
            .bind(rows.folded_names)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    /// Begins the transaction, once all records have been added. Returns the first chosen identifiers that are taken, up to `max`, in
    /// the order of lines.
    pub async fn find_conflicts(&mut self, max: usize) -> Result<Vec<Conflict>, Error> {
        // Without statistics, this and the next joins would be planned for a few rows.
        self.0.execute("begin; analyze imported").await?;
        let query = sqlx::query_as(
            "select line, id, is_stored
             from (
                 select chosen.line, chosen.id, pets.id is not null as is_stored,
                        row_number() over (partition by chosen.id order by chosen.line) as occurrence
                 from imported chosen left join pets on pets.id = chosen.id
                 where not chosen.by_server
             ) chosen
             where is_stored or occurrence > 1
             order by line
             limit $1",
        );
        let query = query.bind(i64::try_from(max).unwrap_or(i64::MAX));
        Ok(query.fetch_all(&mut self.0).await?)
    }

    /// Adds pets for all records, which have no conflicts. Returns their number, or `None` if a client chose an identifier of the
    /// file in the meantime, and no pet was added.
    pub async fn finish(self) -> Result<Option<u64>, Error> {
        let Self(mut connection) = self;
        assign_free_ids(&mut connection).await?;
        // In the order of identifiers, like all inserts of many pets, so that none of them deadlock.
        let added = connection
            .execute(
                "insert into pets (id, status, details, folded_name)
                 select id, status, details, folded_name from imported order by id",
            )
            .await;
        let added = match added {
            Ok(result) => result.rows_affected(),
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        record_import(&mut connection).await?;
        connection.execute("commit").await?;
        // Otherwise clients would wait for it: of millions, too long. If it fails, the pets have been added even so.
        while let Ok(true) = skip_chosen_ids(&mut connection, "pets", "pet_ids").await {}
        Ok(Some(added))
    }
}

/// Replaces identifiers from the sequence that a pet or a record of the file has chosen as well.
async fn assign_free_ids(connection: &mut PgConnection) -> Result<(), Error> {
    // Doubled each time, to get past a long run of chosen identifiers soon.
    let mut stride = 1_i64;
    loop {
        let updated = connection
            .execute(
                "update imported given set id = nextval('pet_ids')
                 where by_server
                   and (exists (select from pets where pets.id = given.id)
                        or exists (select from imported chosen
                                   where chosen.id = given.id and not chosen.by_server))",
            )
            .await?;
        if updated.rows_affected() == 0 {
            return Ok(());
        }
        let skip = sqlx::query("select setval('pet_ids', last_value + $1) from pet_ids");
        skip.bind(stride).execute(&mut *connection).await?;
        stride = stride.saturating_mul(2);
    }
}

/// Records the import as one change: of the number of its pets, and of their first and last identifiers.
async fn record_import(connection: &mut PgConnection) -> Result<(), Error> {
    let query =
        sqlx::query_as("select count(*), min(id), max(id) from imported having count(*) > 0");
    let pets: Option<(i64, i64, i64)> = query.fetch_optional(&mut *connection).await?;
    let Some((count, first, last)) = pets else {
        return Ok(());
    };
    let operator = Initiator::operator();
    let record = record::Record::new(Kind::Import, &first, Action::Created, &operator);
    let record = record.with_data(Some(json!({"pets": count, "ids": [first, last]})));
    record::write(connection, &[record]).await
}
