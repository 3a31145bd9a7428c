//! Requests to webhooks, as Standard Webhooks has them (<https://www.standardwebhooks.com>).
//!
//! Invariants:
//! - A response begins within [`TIMEOUT`], its body is read for [`MAX_READ`], and no redirect or proxy of the environment is followed.
//! - Unless `webhooks.allow_private` is set, a connection is opened only to an address that was checked to be public.

use std::{sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use chrono::{DateTime, SecondsFormat, Utc};
use hmac::{Hmac, KeyInit, Mac};
use reqwest::{Client, Response, StatusCode, header};
use serde::Serialize;
use serde_json::json;
use sha2::Sha256;
use tokio::time::{Instant, timeout};
use tracing::Instrument;

use crate::{
    config,
    domain::{
        change::{Change, Position},
        webhook::{Attempt, Receiver, WebhookSecret, WebhookUrl},
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
/// Maximum time for which a receiver can put a delivery off.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);

/// Sends the requests of a process.
#[derive(Clone)]
pub struct Sender {
    client: Client,
    allow_private: bool,
    /// Maximum number of requests to a webhook that are in progress.
    pub max_deliveries: usize,
}

/// Outcome of a message.
pub struct Sent {
    /// The attempt.
    pub attempt: Attempt,
    /// Time for which the receiver puts the delivery off (RFC 9110 §10.2.3).
    pub retry_after: Option<Duration>,
}

impl Sent {
    /// Returns true if the message was accepted.
    pub const fn is_accepted(&self) -> bool {
        self.attempt.error.is_none()
    }

    /// Returns true if the receiver wants no further messages.
    pub fn is_gone(&self) -> bool {
        self.attempt.status == Some(StatusCode::GONE.as_u16())
    }
}

impl Sender {
    /// Creates the client. Fails with the reason.
    pub fn new(config: &config::Webhooks) -> Result<Self, String> {
        let mut builder = http_client::builder().map_err(|error| error.to_string())?;
        if !config.allow_private {
            builder = builder.dns_resolver(Arc::new(PublicAddresses));
        }
        Ok(Self {
            client: builder.build().map_err(|error| with_causes(&error))?,
            allow_private: config.allow_private,
            max_deliveries: config.max_deliveries,
        })
    }

    /// Sends a message.
    #[expect(
        clippy::disallowed_methods,
        reason = "the signature has the time of the attempt"
    )]
    pub async fn send(&self, receiver: &Receiver, message: Message) -> Sent {
        let (at, began) = (Utc::now(), Instant::now());
        let span = tracing::debug_span!(target: trace_context::TARGET, "deliver to a webhook", webhook = %receiver.id, message = message.id);
        let position = message.position;
        let answer = self.request(receiver, message, at).instrument(span).await;
        let duration = began.elapsed();
        let mut sent = Sent {
            attempt: Attempt {
                at,
                position,
                status: None,
                error: None,
                duration_seconds: (duration.as_secs_f64() * 1_000.0).round() / 1_000.0,
                response: None,
            },
            retry_after: None,
        };
        match answer {
            Ok(response) => {
                let status = response.status();
                sent.attempt.status = Some(status.as_u16());
                if !status.is_success() {
                    sent.attempt.error = Some(format!("the response has status {status}"));
                }
                sent.retry_after = retry_after(&response, at);
                sent.attempt.response = read(response).await;
            }
            Err(reason) => {
                sent.attempt.error = Some(reason.chars().take(MAX_REASON).collect());
            }
        }
        sent
    }

    async fn request(
        &self,
        receiver: &Receiver,
        message: Message,
        at: DateTime<Utc>,
    ) -> Result<Response, String> {
        let url = WebhookUrl::from_stored(&receiver.url, self.allow_private);
        let url = url.map_err(|reason| format!("the URL {reason}"))?;
        let secrets = [Some(&receiver.secret), receiver.old_secret.as_ref()];
        let signatures: Vec<_> = secrets
            .into_iter()
            .flatten()
            .map(|secret| message.sign(at, secret))
            .collect();
        let request = self
            .client
            .post(url.get().clone())
            .header("content-type", "application/json")
            .header("webhook-signature", signatures.join(" "))
            .header("webhook-id", &message.id)
            .header("webhook-timestamp", at.timestamp())
            .body(message.body);
        let failed = |error: reqwest::Error| with_causes(&error.without_url());
        let mut request = request.build().map_err(failed)?;
        trace_context::inject(request.headers_mut());
        let response = timeout(TIMEOUT, self.client.execute(request)).await;
        let response =
            response.map_err(|_| format!("no response within {} s", TIMEOUT.as_secs()))?;
        response.map_err(failed)
    }
}

/// Reads the beginning of a response as text, without NUL, which PostgreSQL cannot store.
async fn read(mut response: Response) -> Option<String> {
    let mut bytes = Vec::new();
    let all = async {
        while bytes.len() <= MAX_RESPONSE
            && let Ok(Some(chunk)) = response.chunk().await
        {
            bytes.extend_from_slice(&chunk[..chunk.len().min(MAX_RESPONSE + 1)]);
        }
    };
    let _ = timeout(MAX_READ, all).await;
    bytes.truncate(MAX_RESPONSE);
    let text = String::from_utf8_lossy(&bytes).replace('\0', "");
    (!text.is_empty()).then_some(text)
}

/// Returns the time of `Retry-After`, in seconds or as a date, if the status is one with which receivers limit their load.
fn retry_after(response: &Response, now: DateTime<Utc>) -> Option<Duration> {
    if !matches!(
        response.status(),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    ) {
        return None;
    }
    let value = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    let wait = if value.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number may have any length.
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        let date = httpdate::parse_http_date(value).ok()?;
        date.duration_since(now.into()).unwrap_or_default()
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

/// Message to a webhook.
pub struct Message {
    id: String,
    /// `None` for a test.
    position: Option<Position>,
    body: String,
}

impl Message {
    /// Creates the message for a change.
    pub fn of(change: &Change, receiver: &Receiver) -> Self {
        let kind = format!("{}.{}", change.kind, change.action);
        Self {
            id: format!("{}-{}", receiver.id, change.position),
            position: Some(change.position),
            body: body(&kind, change.at, change),
        }
    }

    /// Creates the message of a test.
    pub fn test(receiver: &Receiver, now: DateTime<Utc>) -> Self {
        let data = json!({"webhook": receiver.id.get()});
        Self {
            id: format!("{}-test-{}", receiver.id, now.timestamp_micros()),
            position: None,
            body: body("test", now, &data),
        }
    }

    /// Returns the signature: the HMAC-SHA256 of the identifier, the time and the body.
    fn sign(&self, at: DateTime<Utc>, WebhookSecret(secret): &WebhookSecret) -> String {
        // HMAC pads a shorter key with zeros to the size of a block (RFC 2104 §2).
        let mut key = [0; 64];
        key[..secret.len()].copy_from_slice(secret);
        let mut hmac = Hmac::<Sha256>::new(&key.into());
        hmac.update(format!("{}.{}.{}", self.id, at.timestamp(), self.body).as_bytes());
        format!(
            "v1,{}",
            BASE64_STANDARD.encode(hmac.finalize().into_bytes())
        )
    }
}

fn body(kind: &str, at: DateTime<Utc>, data: &impl Serialize) -> String {
    #[derive(Serialize)]
    struct Body<'a, D> {
        r#type: &'a str,
        timestamp: String,
        data: &'a D,
    }
    let body = Body {
        r#type: kind,
        timestamp: at.to_rfc3339_opts(SecondsFormat::AutoSi, true),
        data,
    };
    // It cannot fail: all keys are texts.
    let mut body = serde_json::to_string(&body).unwrap_or_default();
    // It has room for up to as much again, and is held until the receiver responds.
    body.shrink_to_fit();
    body
}
