//! Tests: one message of the type `test` each, which is no delivery. The outcome is returned.

use std::{panic::resume_unwind, time::Duration};

use chrono::Utc;

use super::send::{Message, Sender};
use crate::{
    db::{self, Database},
    domain::{id::WebhookId, webhook::Attempt},
};

/// Time after which a test has ended, also if this process has died.
const MAX_TIME: Duration = Duration::from_secs(20);

/// Sends a test and stores its outcome among the attempts of the webhook, which is returned. Returns `None` if the webhook is
/// disabled, does not exist, or has a test in progress. Holds no connection meanwhile. Goes on if the caller does not wait.
pub async fn test(
    database: Database,
    sender: Sender,
    id: WebhookId,
) -> Result<Option<Attempt>, db::Error> {
    let tested = tokio::spawn(async move {
        let receiver = database
            .run(async |connection| db::deliveries::begin_test(connection, id, MAX_TIME).await);
        let Some(receiver) = receiver.await? else {
            return Ok(None);
        };
        #[expect(clippy::disallowed_methods, reason = "the time of the attempt")]
        let now = Utc::now();
        let message = Message::test(&receiver, now);
        let attempt = sender.send(&receiver, message).await.attempt;
        let stored = database
            .run(async |connection| db::deliveries::end_test(connection, id, &attempt).await);
        stored.await?;
        Ok(Some(attempt))
    });
    tested
        .await
        .unwrap_or_else(|error| resume_unwind(error.into_panic()))
}
