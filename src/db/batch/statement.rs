//! Trait of statements that requests share.

use std::{cmp::Ordering, future::Future};

use crate::db::{connect::Connection, error::Error};

/// Kind of statement that is executed in batches. The batcher limits its duration.
pub(in crate::db) trait BatchedStatement: Sized + 'static {
    type Input: Clone + Send + Sync + 'static;
    type Output: Send + 'static;

    /// Operation and table, for traces (`db.query.summary`).
    const SUMMARY: &'static str;
    /// True if no row is locked. Then only a lock of the whole table can delay a batch, and a retry would meet it too.
    const IS_READ_ONLY: bool = false;

    /// Compares two requests by the order in which a statement is to process them; by default in order of arrival.
    fn compare(_: &Self::Input, _: &Self::Input) -> Ordering {
        Ordering::Equal
    }

    /// Returns true if these requests need a transaction, because they are executed with several statements.
    fn needs_transaction(_: &[Self::Input]) -> bool {
        false
    }

    /// Executes all requests together, and returns their results in order: for a single request, the final
    /// one, unless `execute_one` gives it. Drains `inputs`, unless the statement fails.
    fn execute_all(
        connection: &mut Connection,
        inputs: &mut Vec<Self::Input>,
    ) -> impl Future<Output = Result<Vec<BatchResult<Self>>, Error>> + Send;

    /// Executes a single request.
    fn execute_one(
        connection: &mut Connection,
        input: Self::Input,
    ) -> impl Future<Output = Result<Self::Output, Error>> + Send {
        async {
            let mut results = Self::execute_all(connection, &mut vec![input]).await?;
            match results.pop() {
                Some(BatchResult::Done(output)) => Ok(output),
                _ => Err(Error::Corrupt(format!("no result of {}", Self::SUMMARY))),
            }
        }
    }
}

/// Result of one request of a batch.
pub(in crate::db) enum BatchResult<B: BatchedStatement> {
    Done(B::Output),
    /// No result: the request must be executed separately, after the statement has been committed.
    ExecuteSeparately(B::Input),
}
