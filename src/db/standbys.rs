//! Reads from standbys (`database.read_url`) for requests that say which position they follow.
//!
//! A connection to a standby first asks for its position, then reads: the snapshot of the read is later, so the read has every
//! change before that position. `.github/decisions/0025-reads-from-standbys.md` has the reasons.
//!
//! Invariant: a standby that is away, behind, or of another timeline delays a request by at most [`TIMEOUT`]; then it reads at
//! the primary.

use std::time::Duration;

use metrics::Counter;
use tokio::time::timeout;

use super::{
    batch::{BatchResult, BatchedStatement, Batchers},
    connect::Connection,
    error::Error,
    pool::Pool,
    position::{self, Position},
};

/// Time after which a request reads at the primary instead.
const TIMEOUT: Duration = Duration::from_millis(250);
/// Results of reads in the label `result`.
const RESULTS: [&str; 5] = ["served", "behind", "other_timeline", "large", "unavailable"];

/// Standbys, as one worker reads from them.
#[derive(Debug)]
pub(super) struct Standbys {
    pub pool: Pool,
    batchers: Batchers,
}

impl Standbys {
    pub fn new(pool: Pool) -> Self {
        // Registered, so that the series begin at 0.
        let _ = RESULTS.map(counter);
        Self {
            batchers: Batchers::new(pool.clone()),
            pool,
        }
    }

    /// Returns a handle for another worker.
    pub fn for_worker(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            batchers: self.batchers.for_worker(),
        }
    }

    /// Executes a read of the current request, unless it follows no position, or no standby has reached that in time.
    pub async fn read<B: BatchedStatement>(&self, input: &B::Input) -> Option<B::Output> {
        let position = position::wanted()?;
        let read = self.batchers.execute::<Gated<B>>((position, input.clone()));
        let read = timeout(TIMEOUT, Box::pin(read)).await;
        let (result, output) = match read {
            Ok(Ok(Ok(output))) => ("served", Some(output)),
            Ok(Ok(Err(reason))) => (reason, None),
            Ok(Err(_)) => ("unavailable", None),
            Err(_) => {
                self.pool.connector.breaker.probe_soon();
                position::forget_wanted();
                ("unavailable", None)
            }
        };
        counter(result).increment(1);
        output
    }

    pub async fn close(&self) {
        self.batchers.close().await;
        self.pool.close().await;
    }
}

fn counter(result: &'static str) -> Counter {
    metrics::counter!("db_client_standby_reads_total", "result" => result)
}

/// Statement at a standby, for requests whose positions it has reached. The output of others is the reason.
struct Gated<B>(B);

impl<B: BatchedStatement> BatchedStatement for Gated<B> {
    type Input = (Position, B::Input);
    type Output = Result<B::Output, &'static str>;

    const SUMMARY: &'static str = B::SUMMARY;
    const IS_READ_ONLY: bool = true;

    async fn execute_all(
        connection: &mut Connection,
        inputs: &mut Vec<Self::Input>,
    ) -> Result<Vec<BatchResult<Self>>, Error> {
        let reached = Position::of_standby(connection).await?;
        let checks: Vec<_> = inputs.iter().map(|(it, _)| reached.check(*it)).collect();
        let admitted = inputs
            .iter()
            .zip(&checks)
            .filter(|(_, check)| check.is_ok());
        let mut admitted: Vec<_> = admitted.map(|((_, input), _)| input.clone()).collect();
        let read = if admitted.is_empty() {
            Vec::new()
        } else {
            B::execute_all(connection, &mut admitted).await?
        };
        let mut read = read.into_iter();
        inputs.clear();
        let results = checks.into_iter().map(|check| {
            BatchResult::Done(match check.map(|()| read.next()) {
                Ok(Some(BatchResult::Done(output))) => Ok(output),
                // The primary has a bound for large rows.
                Ok(_) => Err("large"),
                Err(reason) => Err(reason),
            })
        });
        Ok(results.collect())
    }
}
