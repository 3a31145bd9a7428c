//! Parses JSON Web Tokens (RFC 7519) in the compact form of RFC 7515, strictly.
//!
//! Invariants:
//! - A token does not choose how it is verified; its key headers (`jwk`, `jku`, `x5u`, `x5c`) are not read.
//! - A [`Token`] is untrusted until [`Key::signed`](super::keys::Key::signed) returns true.

use std::{collections::BTreeMap, fmt};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::{DateTime, Utc};
use serde::{
    Deserialize,
    de::{self, MapAccess, Visitor},
};
use serde_json::Value;

use crate::{
    config,
    domain::{
        caller::{Scope, Scopes},
        plan::Plan,
    },
};

/// Maximum length of a token in bytes.
const MAX_LENGTH: usize = 8 << 10;
const MAX_SUBJECT: usize = 255;

/// Unverified token.
pub struct Token<'a> {
    /// `alg` header.
    pub algorithm: String,
    /// `kid` header: arbitrary text.
    pub key_id: Option<String>,
    /// Signed bytes.
    pub signed: &'a [u8],
    /// Signature in base64url.
    pub signature: &'a str,
    claims: Object,
}

/// Validated claims.
#[derive(Debug)]
pub struct Claims {
    /// `sub`: 1–255 characters, none of them a control character.
    pub subject: String,
    /// Scopes that the token claims.
    pub scopes: Scopes,
    /// Plan; `None` if the configuration has no plan claim for the issuer.
    pub plan: Option<Plan>,
    /// Expiry with leeway, in seconds since 1970.
    pub expires_at: f64,
}

impl<'a> Token<'a> {
    /// Returns true if the text has three parts, like a JWT.
    pub fn resembles(text: &str) -> bool {
        text.bytes().filter(|byte| *byte == b'.').count() == 2
    }

    /// Parses a token. Returns `None` if it is malformed or uses unsupported features.
    pub fn read(text: &'a str) -> Option<Self> {
        if text.len() > MAX_LENGTH {
            return None;
        }
        let (signed, signature) = text.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        if claims.contains('.') || signature.is_empty() {
            return None;
        }
        let header = Object::read(header)?;
        // `crit` and `b64` (RFC 7797) change the meaning of a token, `enc` and `zip` that of its parts. None is
        // supported (RFC 7515 §4.1.11).
        if ["crit", "b64", "enc", "zip"]
            .iter()
            .any(|name| header.0.contains_key(*name))
        {
            return None;
        }
        match header.0.get("typ") {
            None => {}
            Some(Value::String(kind)) if is_token(kind) => {}
            Some(_) => return None,
        }
        let key_id = match header.0.get("kid") {
            None => None,
            Some(Value::String(id)) => Some(id.clone()),
            Some(_) => return None,
        };
        Some(Self {
            algorithm: header.text("alg")?.to_owned(),
            key_id,
            signed: signed.as_bytes(),
            signature,
            claims: Object::read(claims)?,
        })
    }

    pub fn issuer(&self) -> Option<&str> {
        self.claims.text("iss")
    }

    /// Returns the claims if they are valid at `now` for this issuer.
    pub fn claims(&self, issuer: &config::Issuer, now: DateTime<Utc>) -> Option<Claims> {
        let claims = &self.claims;
        let leeway = issuer.leeway.as_secs_f64();
        let now = seconds(now);
        if claims.text("iss")? != issuer.issuer || !names(claims.0.get("aud")?, &issuer.audience) {
            return None;
        }
        let expires_at = claims.time("exp").ok()?? + leeway;
        let begins = [claims.time("nbf").ok()?, claims.time("iat").ok()?];
        if now >= expires_at || begins.into_iter().flatten().any(|at| at > now + leeway) {
            return None;
        }
        let subject = claims.text("sub")?;
        if subject.is_empty()
            || subject.chars().count() > MAX_SUBJECT
            || subject.chars().any(char::is_control)
        {
            return None;
        }
        let plan = issuer.plan_claim.as_deref();
        Some(Claims {
            subject: subject.to_owned(),
            scopes: scopes(claims.0.get(&issuer.scope_claim), issuer.allow_admin),
            plan: plan.map(|name| {
                let plan = claims.text(name).and_then(|plan| plan.parse().ok());
                plan.unwrap_or(Plan::Free)
            }),
            expires_at,
        })
    }
}

/// Returns true for the media types of a JWT (RFC 7519 §5.1, RFC 9068 §2.1), in any case, `application/` optional.
fn is_token(kind: &str) -> bool {
    const APPLICATION: &str = "application/";
    let kind = match kind.split_at_checked(APPLICATION.len()) {
        Some((front, rest)) if front.eq_ignore_ascii_case(APPLICATION) => rest,
        _ => kind,
    };
    ["JWT", "at+jwt"]
        .iter()
        .any(|known| kind.eq_ignore_ascii_case(known))
}

/// Returns true if `aud`, a string or an array of strings, contains `audience`.
fn names(aud: &Value, audience: &str) -> bool {
    match aud {
        Value::String(one) => one == audience,
        Value::Array(many) => {
            many.iter().all(Value::is_string) && many.iter().any(|one| one == audience)
        }
        _ => false,
    }
}

/// Returns the known scopes of a claim.
fn scopes(claim: Option<&Value>, allow_admin: bool) -> Scopes {
    let names: Vec<&str> = match claim {
        Some(Value::String(names)) => names.split(' ').collect(),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    names
        .into_iter()
        .filter_map(|name| name.parse().ok())
        .filter(|scope| allow_admin || *scope != Scope::Admin)
        .collect()
}

/// Returns seconds since 1970, the unit of time in tokens.
#[expect(
    clippy::cast_precision_loss,
    reason = "an f64 holds milliseconds since 1970 exactly for 285,000 years"
)]
pub fn seconds(at: DateTime<Utc>) -> f64 {
    at.timestamp_millis() as f64 / 1000.0
}

/// JSON object without duplicate names, which different parsers could read differently.
struct Object(BTreeMap<String, Value>);

impl Object {
    fn read(base64: &str) -> Option<Self> {
        let json = URL_SAFE_NO_PAD.decode(base64).ok()?;
        serde_json::from_slice(&json).ok()
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }

    /// Returns a `NumericDate` (RFC 7519 §2), which may have a fraction. `Err` if the value is something else.
    fn time(&self, name: &str) -> Result<Option<f64>, ()> {
        match self.0.get(name) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or(()),
        }
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: de::Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Unique;
        impl<'de> Visitor<'de> for Unique {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut object = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if object.insert(name, value).is_some() {
                        return Err(de::Error::custom("duplicate name"));
                    }
                }
                Ok(Object(object))
            }
        }
        json.deserialize_map(Unique)
    }
}
