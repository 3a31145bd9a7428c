//! Parses JSON Web Tokens (RFC 7519) and checks what `jsonwebtoken` does not.
//!
//! The library verifies the signature, the algorithm, `iss` and `aud`. These checks are ours:
//! - Length: the library has no maximum.
//! - `typ`, `crit`, `b64`, `enc`, `zip`: the library ignores them. A `null` counts as absent.
//! - Duplicate claims: the library uses the last one; other parsers may use the first.
//! - `exp`, `nbf`, `iat`: the library reads the system clock, accepts a token at the instant of `exp` (RFC 7519 §4.1.4
//!   forbids it), and does not check `iat`.
//! - `sub`: the library only compares it with one expected value.
//!
//! Invariants:
//! - A token does not choose how it is verified; its key headers (`jwk`, `jku`, `x5u`, `x5c`) are not used.
//! - A [`Token`] is untrusted until [`KeySet::verify`](super::keys::KeySet::verify) succeeds.

use std::{collections::BTreeMap, fmt, time::Duration};

use chrono::{DateTime, Utc};
use jsonwebtoken::{self as jwt, Header};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::Value;

use crate::{
    auth::error::Error,
    config::Issuer,
    domain::{
        caller::{Scope, Scopes},
        plan::Plan,
    },
};

/// Maximum length of a token in bytes.
const MAX_LENGTH: usize = 8 << 10;
/// Maximum length of `sub` in characters.
const MAX_SUBJECT: usize = 255;

/// Parsed token with an unverified signature.
pub struct Token<'a> {
    /// Text of the token.
    pub text: &'a str,
    /// Header.
    pub header: Header,
    /// Claims.
    pub claims: Claims,
}

/// Claims of a token. A registered claim with the value `null` makes the token malformed.
#[derive(Debug, Deserialize)]
pub struct Claims {
    /// Issuer.
    #[serde(rename = "iss")]
    pub issuer: String,
    /// 1–255 characters, none of them a control character.
    #[serde(rename = "sub")]
    pub subject: String,
    /// Seconds since 1970, like `nbf` and `iat`; may have a fraction (RFC 7519 §2).
    exp: f64,
    #[serde(default, deserialize_with = "not_null")]
    nbf: Option<f64>,
    #[serde(default, deserialize_with = "not_null")]
    iat: Option<f64>,
    #[serde(flatten, deserialize_with = "without_duplicates")]
    others: BTreeMap<String, Value>,
}

/// Logs why a token is refused, which its client is not told.
pub fn refused(reason: &str) -> Error {
    tracing::debug!(reason, "refused a token of an issuer");
    Error::Invalid
}

/// Returns true if the text has three parts, like a JWT.
pub fn looks_like_jwt(text: &str) -> bool {
    text.bytes().filter(|byte| *byte == b'.').count() == 2
}

impl<'a> Token<'a> {
    /// Parses a token. Returns the reason if it is malformed or uses unsupported features.
    pub fn parse(text: &'a str) -> Result<Self, &'static str> {
        if text.len() > MAX_LENGTH {
            return Err("it is longer than 8 KiB");
        }
        let header = jwt::decode_header(text);
        let header = header.map_err(|_| "its header is malformed, or its alg unknown")?;
        if !is_supported(&header) {
            return Err("its header has another typ, or a parameter that is not supported");
        }
        let claims = jwt::dangerous::insecure_decode_claims::<Claims>(text);
        let claims =
            claims.map_err(|_| "its claims are malformed, or one is missing or repeated")?;
        if !is_valid_subject(&claims.subject) {
            return Err("its sub is empty, too long or has control characters");
        }
        Ok(Self {
            text,
            header,
            claims,
        })
    }
}

impl Claims {
    /// Returns true if `aud` names this audience.
    pub fn is_for(&self, audience: &str) -> bool {
        match self.others.get("aud") {
            Some(Value::String(one)) => one == audience,
            Some(Value::Array(many)) => many.iter().any(|one| one == audience),
            _ => false,
        }
    }

    /// Returns the time until the token expires, including leeway. Returns `None` if it is not valid at `now`.
    pub fn expires_in(&self, now: DateTime<Utc>, leeway: Duration) -> Option<Duration> {
        let now = (now - DateTime::UNIX_EPOCH).as_seconds_f64();
        let leeway = leeway.as_secs_f64();
        let mut starts = [self.nbf, self.iat].into_iter().flatten();
        let remaining = self.exp + leeway - now;
        (remaining > 0.0 && starts.all(|start| start <= now + leeway))
            .then(|| Duration::try_from_secs_f64(remaining).unwrap_or(Duration::MAX))
    }

    /// Returns the claimed plan, Free by default. Returns `None` if the configuration has no plan claim for the issuer.
    pub fn plan(&self, issuer: &Issuer) -> Option<Plan> {
        let plan = self.others.get(issuer.plan_claim.as_ref()?);
        let plan = plan.and_then(Value::as_str).map(str::parse);
        Some(plan.and_then(Result::ok).unwrap_or(Plan::Free))
    }

    /// Returns the known scopes that the token claims. `admin` counts only if the configuration allows it.
    pub fn scopes(&self, issuer: &Issuer) -> Scopes {
        let names: Vec<&str> = match self.others.get(&issuer.scope_claim) {
            Some(Value::String(names)) => names.split(' ').collect(),
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        names
            .into_iter()
            .filter_map(|name| name.parse().ok())
            .filter(|scope| issuer.allow_admin || *scope != Scope::Admin)
            .collect()
    }
}

/// Returns true if the media type is that of a JWT (RFC 7519 §5.1, RFC 9068 §2.1) and no header changes the meaning of
/// the token (RFC 7515 §4.1.11, RFC 7797) or of its parts.
fn is_supported(header: &Header) -> bool {
    let typ = header.typ.as_deref().unwrap_or("JWT").to_ascii_lowercase();
    let typ = typ.strip_prefix("application/").unwrap_or(&typ);
    matches!(typ, "jwt" | "at+jwt")
        && header.crit.is_none()
        && header.enc.is_none()
        && header.zip.is_none()
        && !header.extras.inner().contains_key("b64")
}

fn is_valid_subject(subject: &str) -> bool {
    (1..=MAX_SUBJECT).contains(&subject.chars().count()) && !subject.chars().any(char::is_control)
}

/// Deserializes a claim that may be missing but not `null`.
fn not_null<'de, D: Deserializer<'de>>(claim: D) -> Result<Option<f64>, D::Error> {
    f64::deserialize(claim).map(Some)
}

/// Deserializes a map. Fails if a name is not unique.
fn without_duplicates<'de, D: Deserializer<'de>>(
    map: D,
) -> Result<BTreeMap<String, Value>, D::Error> {
    struct UniqueNames;
    impl<'de> Visitor<'de> for UniqueNames {
        type Value = BTreeMap<String, Value>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut object = BTreeMap::new();
            while let Some((name, value)) = map.next_entry()? {
                if object.insert(name, value).is_some() {
                    return Err(A::Error::custom("duplicate name"));
                }
            }
            Ok(object)
        }
    }
    map.deserialize_map(UniqueNames)
}
