//! Webhooks: where changes are sent, with which signature, and when again.

use std::{fmt, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use url::{Host, Url};
use utoipa::ToSchema;

use super::{
    Invalid,
    address::is_public,
    change::{Kind, Position},
    id::WebhookId,
};

/// Maximum number of webhooks.
pub const MAX_WEBHOOKS: usize = 100;
/// Time for which a delivery waits before its next failure parks it.
pub const GIVE_UP_AFTER: Duration = Duration::from_hours(24);
/// Time for which requests are signed with the secret before a rotation, too: by default, and at most.
pub const DEFAULT_OVERLAP: Duration = Duration::from_hours(24);
/// See [`DEFAULT_OVERLAP`].
pub const MAX_OVERLAP: Duration = Duration::from_hours(7 * 24);
/// Maximum time between two attempts.
const MAX_DELAY: Duration = Duration::from_mins(5);

/// Returns the time until the next attempt, after this many that failed: it doubles from 1 s to 5 minutes, of which a random
/// share of up to a half is taken off.
pub fn delay(attempts: u32, random: u8) -> Duration {
    let doubled = Duration::from_secs(1 << attempts.saturating_sub(1).min(9)).min(MAX_DELAY);
    doubled.saturating_sub(doubled * u32::from(random) / 512)
}

/// URL of a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookUrl(Url);

impl WebhookUrl {
    /// Maximum number of characters.
    pub const MAX_LENGTH: usize = 2_000;
    /// Maximum number of bytes as it is stored, in which other characters than those of ASCII are longer.
    const MAX_STORED: usize = 2_048;

    /// Validates a URL, as [`Self::from_stored`] does, and its length.
    pub fn new(text: &str, allow_private: bool) -> Result<Self, Invalid> {
        const LONG: Invalid = Invalid::because("must be at most 2000 characters");
        if text.chars().count() > Self::MAX_LENGTH {
            return Err(LONG);
        }
        // The parser drops some of them, so that the URL would not be the one that was given.
        if text.chars().any(char::is_control) {
            return Err(Invalid::because("must not contain control characters"));
        }
        let url = Self::from_stored(text, allow_private)?;
        if url.as_str().len() > Self::MAX_STORED {
            return Err(LONG);
        }
        Ok(url)
    }

    /// Validates a stored URL again: the setting may have changed. It must be `https`, without a private address as its host,
    /// unless `allow_private` is set. Names are not resolved here: what they resolve to can change.
    pub fn from_stored(text: &str, allow_private: bool) -> Result<Self, Invalid> {
        const INVALID: Invalid = Invalid::because("must be a URL such as https://example.com/pets");
        let url = Url::parse(text).map_err(|_| INVALID)?;
        let is_private = match url.host().ok_or(INVALID)? {
            Host::Ipv4(address) => !is_public(address.into()),
            Host::Ipv6(address) => !is_public(address.into()),
            Host::Domain(_) => false,
        };
        match url.scheme() {
            "https" => {}
            "http" if allow_private => {}
            "http" => {
                return Err(Invalid::because(
                    "must be https, unless webhooks.allow_private is set",
                ));
            }
            _ => return Err(INVALID),
        }
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err(Invalid::because("must have no user, password or fragment"));
        }
        if is_private && !allow_private {
            return Err(Invalid::because(
                "must not have a private address, unless webhooks.allow_private is set",
            ));
        }
        Ok(Self(url))
    }

    /// Returns the URL.
    pub const fn get(&self) -> &Url {
        &self.0
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

/// Key of the signatures of a webhook.
#[derive(Clone)]
pub struct WebhookSecret(pub [u8; 32]);

impl WebhookSecret {
    /// Returns the text that its receiver gets, in the form of Standard Webhooks.
    pub fn expose(&self) -> String {
        format!("whsec_{}", BASE64_STANDARD.encode(self.0))
    }
}

/// Shows no part of the key.
impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret")
    }
}

/// Receiver of the messages of a webhook.
#[derive(Debug, Clone)]
pub struct Receiver {
    /// Identifier of the webhook.
    pub id: WebhookId,
    /// URL, as it is stored.
    pub url: String,
    /// Key of the signatures.
    pub secret: WebhookSecret,
    /// Key before the last rotation, until its overlap ends.
    pub old_secret: Option<WebhookSecret>,
}

/// Attempt to send a message to a webhook.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "at": "2026-01-31T12:00:00.25Z",
    "position": 1_769_860_800_000_000_i64,
    "status": 503,
    "error": "the response has status 503 Service Unavailable",
    "durationSeconds": 0.012,
    "response": "try again later"
}))]
pub struct Attempt {
    /// Time at which the request was sent, in UTC.
    #[schema(value_type = String, format = "date-time", max_length = 64)]
    pub at: DateTime<Utc>,
    /// Position of the change; absent for a test.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = i64, required = false, nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    pub position: Option<Position>,
    /// Status of the response; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 100, maximum = 999)]
    pub status: Option<u16>,
    /// Reason of the failure; absent if the message was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 512, pattern = r"^[^\x00]*$")]
    pub error: Option<String>,
    /// Time until the response, or the failure.
    #[schema(minimum = 0)]
    pub duration_seconds: f64,
    /// First 1,024 bytes of the response, as far as they arrived within a second, as text; absent if it is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 1_024, pattern = r"^[^\x00]*$")]
    pub response: Option<String>,
}

/// Webhook to be stored.
#[derive(Debug, Clone)]
pub struct NewWebhook {
    /// URL.
    pub url: WebhookUrl,
    /// Key of the signatures.
    pub secret: WebhookSecret,
    /// Wanted kinds of changes; empty for all.
    pub kinds: Vec<Kind>,
}

/// New values of a webhook; `None` keeps the old one.
#[derive(Debug, Clone, Default)]
pub struct WebhookChange {
    /// URL.
    pub url: Option<WebhookUrl>,
    /// Wanted kinds of changes; empty for all.
    pub kinds: Option<Vec<Kind>>,
    /// True to deliver, false to stop: the position is kept.
    pub is_enabled: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_to_five_minutes() {
        let longest =
            [1, 2, 3, 4, 9, 10, 11, u32::MAX].map(|attempts| delay(attempts, 0).as_secs());
        assert_eq!(longest, [1, 2, 4, 8, 256, 300, 300, 300]);
        assert!(delay(9, u8::MAX) >= Duration::from_secs(128));
        assert!(delay(9, u8::MAX) < Duration::from_secs(129));
    }

    #[test]
    fn urls_are_public_unless_private_ones_are_allowed() {
        for (text, is_allowed, is_allowed_private) in [
            ("https://example.com/hooks?a=b", true, true),
            ("https://93.184.215.14/", true, true),
            (
                "https://[2606:2800:21f:cb07:6820:80da:af6b:8b2c]/",
                true,
                true,
            ),
            ("http://example.com/", false, true),
            ("https://127.0.0.1/", false, true),
            // Other notations of 127.0.0.1: decimal, hexadecimal, octal, short, full width, mapped.
            ("https://2130706433/", false, true),
            ("https://0x7f000001/", false, true),
            ("https://017700000001/", false, true),
            ("https://0177.0.0.1/", false, true),
            ("https://127.1/", false, true),
            ("https://１２７.0.0.1/", false, true),
            ("https://[::ffff:127.0.0.1]/", false, true),
            ("https://[::ffff:7f00:1]/", false, true),
            ("https://[::1]/", false, true),
            ("https://0/", false, true),
            // Metadata services.
            ("https://169.254.169.254/latest/meta-data", false, true),
            ("https://[fd00:ec2::254]/", false, true),
            ("https://10.0.0.1/", false, true),
            ("ftp://example.com/", false, false),
            ("https://user@example.com/", false, false),
            ("https://user:password@example.com/", false, false),
            ("https://example.com/#fragment", false, false),
            ("https://", false, false),
            ("example.com", false, false),
            ("file:///etc/passwd", false, false),
            ("https://exa\tmple.com/", false, false),
            ("https://example.com/\r\nhost: other", false, false),
            ("https://example.com/\u{85}", false, false),
            ("https://168.63.129.16/machine", false, true),
            ("", false, false),
        ] {
            assert_eq!(WebhookUrl::new(text, false).is_ok(), is_allowed, "{text}");
            let private = WebhookUrl::new(text, true);
            assert_eq!(private.is_ok(), is_allowed_private, "{text}");
        }
        let long = format!("https://example.com/{}", "x".repeat(WebhookUrl::MAX_LENGTH));
        WebhookUrl::new(&long, true).expect_err("too long");
        let longer = format!(
            "https://example.com/{}",
            "é".repeat(WebhookUrl::MAX_LENGTH / 4)
        );
        WebhookUrl::new(&longer, true).expect_err("too long when it is encoded");
    }
}
