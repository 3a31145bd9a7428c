//! Requests to webhooks, as Standard Webhooks has them (<https://www.standardwebhooks.com>).
//!
//! Invariants:
//! - A response begins within [`TIMEOUT`], its body is read for [`MAX_READ`], and no redirect or proxy of the environment is followed.
//! - Unless `webhooks.allow_private` is set, a connection is opened only to an address that was checked to be public.

use std::{sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use chrono::{DateTime, SecondsFormat, Utc};
use hmac::{Hmac, KeyInit, Mac};
use reqwest::{Client, Response};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};
use tracing::Instrument;

use crate::{
    api::changes::ChangeBody,
    config,
    db::deliveries::Claimed,
    domain::{
        change::{Change, Position},
        id::WebhookId,
        webhook::{WebhookSecret, WebhookUrl},
    },
    http_client::{self, PublicAddresses, with_causes},
    trace_context,
};

/// Maximum time until a response begins, with the resolution of the name.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Number of bytes of a response after which it is read no further, and time for it. Its connection can be used again if it is
/// shorter.
const MAX_RESPONSE: usize = 1 << 10;
const MAX_READ: Duration = Duration::from_secs(1);
/// Maximum number of characters of a reason.
const MAX_REASON: usize = 500;

/// Sends the requests of a replica.
pub struct Sender {
    client: Client,
    requests: Semaphore,
    /// Half of them, for what has failed before, so that receivers that do not respond leave room for others.
    repetitions: Semaphore,
    allow_private: bool,
}

impl Sender {
    /// Creates the client. Fails with the reason.
    pub fn new(config: &config::Webhooks) -> Result<Self, String> {
        let mut builder = http_client::builder().map_err(|error| error.to_string())?;
        if !config.allow_private {
            builder = builder.dns_resolver(Arc::new(PublicAddresses));
        }
        let max = config.max_deliveries.get();
        Ok(Self {
            client: builder.build().map_err(|error| with_causes(&error))?,
            requests: Semaphore::new(max),
            repetitions: Semaphore::new(max.div_ceil(2)),
            allow_private: config.allow_private,
        })
    }

    /// Waits until a request may be sent, which has failed before or not.
    pub async fn permit(&self, is_repetition: bool) -> Option<Permit<'_>> {
        let repetition = if is_repetition {
            Some(self.repetitions.acquire().await.ok()?)
        } else {
            None
        };
        Some(Permit(repetition, self.requests.acquire().await.ok()?))
    }

    /// Sends a message. Returns the reason if there is no response with status 2xx.
    pub async fn send(&self, webhook: &Claimed, message: Message) -> Result<(), String> {
        let id = webhook.id;
        let span = tracing::debug_span!(target: trace_context::TARGET, "deliver to a webhook", webhook = %id, message = message.id);
        let sent = self.request(webhook, message).instrument(span).await;
        sent.map_err(|reason| reason.chars().take(MAX_REASON).collect())
    }

    async fn request(&self, webhook: &Claimed, message: Message) -> Result<(), String> {
        let url = WebhookUrl::from_stored(&webhook.url, self.allow_private);
        let url = url.map_err(|reason| format!("the URL {reason}"))?;
        let request = self
            .client
            .post(url.get().clone())
            .header("content-type", "application/json")
            .header("webhook-signature", message.sign(&webhook.secret))
            .header("webhook-id", message.id)
            .header("webhook-timestamp", message.timestamp)
            .body(message.body);
        let failed = |error: reqwest::Error| with_causes(&error.without_url());
        let mut request = request.build().map_err(failed)?;
        trace_context::inject(request.headers_mut());
        let response = timeout(TIMEOUT, self.client.execute(request)).await;
        let response =
            response.map_err(|_| format!("no response within {} s", TIMEOUT.as_secs()))?;
        let response = response.map_err(failed)?;
        let status = response.status();
        if !status.is_success() {
            return Err(format!("the response has status {status}"));
        }
        let _ = timeout(MAX_READ, read(response)).await;
        Ok(())
    }
}

/// Reads a response, unless it is long.
async fn read(mut response: Response) {
    let mut length = 0;
    while length <= MAX_RESPONSE
        && let Ok(Some(chunk)) = response.chunk().await
    {
        length += chunk.len();
    }
}

/// Permit of a request in progress.
pub struct Permit<'a>(
    #[expect(dead_code, reason = "held")] Option<SemaphorePermit<'a>>,
    #[expect(dead_code, reason = "held")] SemaphorePermit<'a>,
);

/// Message to a webhook.
pub struct Message {
    id: String,
    timestamp: i64,
    body: String,
}

impl Message {
    /// Creates the message for a change, or for a test.
    pub fn new(
        webhook: WebhookId,
        position: Position,
        change: Option<&Change>,
        now: DateTime<Utc>,
    ) -> Self {
        let (kind, at, data) = match change {
            None => ("test".to_owned(), now, json!({"webhook": webhook.get()})),
            Some(change) => {
                let data = serde_json::to_value(ChangeBody::from(change.clone()));
                (
                    format!("{}.{}", change.kind, change.action),
                    change.at,
                    data.unwrap_or(Value::Null),
                )
            }
        };
        let timestamp = at.to_rfc3339_opts(SecondsFormat::AutoSi, true);
        Self {
            id: format!("{webhook}-{position}"),
            timestamp: now.timestamp(),
            body: json!({"type": kind, "timestamp": timestamp, "data": data}).to_string(),
        }
    }

    /// Returns the signature: the HMAC-SHA256 of the identifier, the time and the body.
    fn sign(&self, WebhookSecret(secret): &WebhookSecret) -> String {
        // HMAC pads a shorter key with zeros to the size of a block (RFC 2104 §2).
        let mut key = [0; 64];
        key[..secret.len()].copy_from_slice(secret);
        let mut hmac = Hmac::<Sha256>::new(&key.into());
        hmac.update(format!("{}.{}.{}", self.id, self.timestamp, self.body).as_bytes());
        format!(
            "v1,{}",
            BASE64_STANDARD.encode(hmac.finalize().into_bytes())
        )
    }
}
