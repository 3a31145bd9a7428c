//! Tests: one message of the type `test` each, whose outcome is returned. They are no deliveries.

use std::{
    panic::resume_unwind,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use chrono::Utc;
use tokio::time::timeout;

use super::send::{Message, Sender};
use crate::{
    db::{self, Database},
    domain::{id::WebhookId, webhook::Attempt},
};

/// Maximum time for a permit and the request.
const TIMEOUT: Duration = Duration::from_secs(12);

/// Sends a test and stores its outcome among the attempts of the webhook, which is returned. Returns `None` if the webhook is
/// disabled, does not exist, or has a test in progress. Holds no connection meanwhile. Goes on if the caller does not wait.
pub async fn test(
    database: Database,
    sender: Sender,
    id: WebhookId,
) -> Result<Option<Attempt>, db::Error> {
    let tested = tokio::spawn(async move {
        let receiver = database
            .run(async |connection| db::webhooks::begin_test(connection, id, TIMEOUT).await);
        let Some(receiver) = receiver.await? else {
            return Ok(None);
        };
        #[expect(clippy::disallowed_methods, reason = "the time of the attempt")]
        let now = Utc::now();
        let message = Message::test(&receiver, now);
        let is_slow = AtomicBool::new(false);
        let sent = async {
            let permit = sender.permit(|| is_slow.load(Relaxed)).await?;
            let sent = sender.send(&receiver, &message, permit, &is_slow).await;
            Some(sent.attempt)
        };
        let attempt = timeout(TIMEOUT, sent).await.ok().flatten();
        let attempt = attempt.unwrap_or_else(|| Attempt {
            at: now,
            position: None,
            status: None,
            error: Some(
                "no request could be sent within 12 s, since too many others are in progress"
                    .to_owned(),
            ),
            duration_seconds: TIMEOUT.as_secs_f64(),
            response: None,
        });
        let stored =
            database.run(async |connection| db::webhooks::end_test(connection, id, &attempt).await);
        stored.await?;
        Ok(Some(attempt))
    });
    tested
        .await
        .unwrap_or_else(|error| resume_unwind(error.into_panic()))
}
