//! Limits and spaces the attempts at a transaction that conflicts with others.

use std::time::Duration;

/// Maximum number of attempts.
pub(super) const MAX_ATTEMPTS: u32 = 4;
/// Unit of the backoff: the pause after attempt n is 2ⁿ times as long.
const BACKOFF: Duration = Duration::from_millis(5);

/// Waits before the attempt that follows number `attempt`.
pub(super) async fn back_off(attempt: u32) {
    metrics::counter!("db_client_transaction_retries_total").increment(1);
    tokio::time::sleep(BACKOFF * 2_u32.pow(attempt)).await;
}
