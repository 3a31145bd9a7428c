//! Parses an issuer's public keys (JWK Set, RFC 7517) and finds the key of a token.
//!
//! Invariants:
//! - A [`Key`] has one algorithm, which follows from its type and is a configured one.
//! - Symmetric keys, RSA keys outside of [`RSA_BITS`], encryption keys, and keys with a private part are dropped.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{self as jwt, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

use super::token::Token;
use crate::config::Algorithm;

/// Maximum number of keys in a set.
const MAX_KEYS: usize = 100;
/// Accepted sizes of RSA keys in bits. Smaller keys can be factored; larger ones cost more than they help.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=4096;

pub struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    public: DecodingKey,
}

#[derive(Default)]
pub struct KeySet(Vec<Key>);

/// Result of a key lookup for a token.
pub enum Lookup<'a> {
    Found(&'a Key),
    /// The named key has another algorithm, or several keys fit.
    Wrong,
    /// There is no such key.
    Unknown,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
    /// Private part, for any key type.
    d: Option<Value>,
}

impl KeySet {
    /// Parses a set and keeps the keys for these algorithms.
    ///
    /// # Errors
    /// If it is not a JWK Set or has too many keys.
    pub fn read(json: &[u8], algorithms: &[Algorithm]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let set: Set = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        if set.keys.len() > MAX_KEYS {
            return Err(format!("more than {MAX_KEYS} keys"));
        }
        // RFC 7517 §5: keys that are not understood are ignored.
        let keys = set.keys.into_iter().filter_map(|value| {
            let key = Key::read(serde_json::from_value(value).ok()?)?;
            algorithms.contains(&key.algorithm).then_some(key)
        });
        Ok(Self(keys.collect()))
    }

    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Finds the key of a token. Keys with the same identifier are told apart by their algorithm (RFC 7517 §4.5).
    pub fn find(&self, token: &Token<'_>) -> Lookup<'_> {
        let named = |key: &&Key| match &token.key_id {
            Some(id) => key.id.as_ref() == Some(id),
            None => true,
        };
        let mut fitting = self
            .0
            .iter()
            .filter(named)
            .filter(|key| key.algorithm.as_str() == token.algorithm);
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => Lookup::Found(key),
            (Some(_), Some(_)) => Lookup::Wrong,
            (None, _) if token.key_id.is_some() && self.0.iter().any(|key| named(&key)) => {
                Lookup::Wrong
            }
            (None, _) => Lookup::Unknown,
        }
    }
}

impl Key {
    fn read(jwk: Jwk) -> Option<Self> {
        let signs = jwk.usage.as_deref().is_none_or(|usage| usage == "sig")
            && jwk
                .key_ops
                .is_none_or(|operations| operations.iter().any(|it| it == "verify"));
        if !signs || jwk.d.is_some() {
            return None;
        }
        let (algorithm, public) = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => {
                let (n, e) = (decode(&jwk.n?)?, decode(&jwk.e?)?);
                if !RSA_BITS.contains(&bits(&n)) {
                    return None;
                }
                (
                    Algorithm::Rs256,
                    DecodingKey::from_rsa_raw_components(&n, &e),
                )
            }
            ("EC", Some("P-256")) => {
                let (x, y) = (coordinate(jwk.x.as_deref())?, coordinate(jwk.y.as_deref())?);
                // Uncompressed point (SEC 1 §2.3.3).
                let point = [&[4], x.as_slice(), &y].concat();
                (Algorithm::Es256, DecodingKey::from_ec_der(&point))
            }
            ("OKP", Some("Ed25519")) => {
                let x = coordinate(jwk.x.as_deref())?;
                (Algorithm::EdDsa, DecodingKey::from_ed_der(&x))
            }
            _ => return None,
        };
        if jwk.alg.is_some_and(|alg| alg != algorithm.as_str()) {
            return None;
        }
        let key = Self {
            id: jwk.kid,
            algorithm,
            public,
        };
        // This detects a point that is not on its curve.
        jwt::crypto::verify("", b"", &key.public, key.algorithm())
            .is_ok()
            .then_some(key)
    }

    /// Returns true if this key signed the token. The key determines the algorithm, not the token.
    pub fn signed(&self, token: &Token<'_>) -> bool {
        jwt::crypto::verify(
            token.signature,
            token.signed,
            &self.public,
            self.algorithm(),
        )
        .unwrap_or(false)
    }

    const fn algorithm(&self) -> jwt::Algorithm {
        match self.algorithm {
            Algorithm::Rs256 => jwt::Algorithm::RS256,
            Algorithm::Es256 => jwt::Algorithm::ES256,
            Algorithm::EdDsa => jwt::Algorithm::EdDSA,
        }
    }
}

fn decode(base64: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(base64).ok()
}

/// Decodes exactly 32 bytes.
fn coordinate(base64: Option<&str>) -> Option<[u8; 32]> {
    decode(base64?)?.try_into().ok()
}

/// Returns the length of a number in bits, without leading zeros.
fn bits(number: &[u8]) -> usize {
    let digits = number.iter().skip_while(|byte| **byte == 0);
    let leading = digits.clone().next().map_or(0, |byte| byte.leading_zeros());
    digits.count() * 8 - leading as usize
}
