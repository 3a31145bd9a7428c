//! Sequences of identifiers, of which clients may choose some themselves.

use sqlx::AssertSqlSafe;

use super::{connect::Connection, deadline::with_timeout, error::Error};

/// Maximum number of identifiers that are skipped at once: some 50 ms, also if millions are taken in a row.
const MAX_SKIPPED: i64 = 100_000;

/// Moves a sequence past its last value and the identifiers behind it that rows of `table` have. Returns true if there may be
/// more of them.
///
/// The sequence stays where it is moved to, also if the transaction is rolled back: a repetition continues there.
pub(super) async fn skip_chosen_ids(
    connection: &mut Connection,
    table: &'static str,
    sequence: &'static str,
) -> Result<bool, Error> {
    let statement = format!(
        "select count(*), setval('{sequence}', max(taken.id) + 1, false)
         from (select last_value as first from {sequence}) known
         cross join lateral (
             select id, row_number() over (order by id) as number
             from (select id from {table} where id >= known.first order by id limit {MAX_SKIPPED}) next
         ) taken
         where taken.id = known.first + taken.number - 1
         having count(*) > 0"
    );
    let query = sqlx::query_scalar(AssertSqlSafe(statement));
    let skipped: Option<i64> = with_timeout(query.fetch_optional(connection)).await?;
    Ok(skipped == Some(MAX_SKIPPED))
}
