//! Sequences of identifiers, of which clients may choose some themselves.

use sqlx::AssertSqlSafe;

use super::{connect::Connection, deadline::with_timeout, error::Error};

/// Moves a sequence past its last value, to the first identifier that no row of `table` has. This is one scan of the primary
/// key, however many identifiers are taken in a row.
pub(super) async fn skip_chosen_ids(
    connection: &mut Connection,
    table: &'static str,
    sequence: &'static str,
) -> Result<(), Error> {
    let statement = format!(
        "select setval('{sequence}', free.id, false)
         from (
             select taken.id + 1 as id
             from {table} taken
             where taken.id >= (select last_value from {sequence})
               and not exists (select from {table} next where next.id = taken.id + 1)
             order by taken.id
             limit 1
         ) free"
    );
    let query = sqlx::query(AssertSqlSafe(statement));
    with_timeout(query.execute(connection)).await.map(drop)
}
