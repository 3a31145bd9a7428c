//! Parses an issuer's public keys (JWK Set, RFC 7517) and verifies tokens with them.
//!
//! Invariants:
//! - A [`Key`] has one algorithm, which follows from its type and is a configured one.
//! - Symmetric keys, RSA keys outside of [`RSA_BITS`], encryption keys, and keys with a private part are dropped.
//!
//! The library's `JwkSet` is not used: one unsupported key makes it reject the whole set, but RFC 7517 §5 requires
//! such keys to be ignored.

use jsonwebtoken::{
    self as jwt, DecodingKey, DecodingKeyKind, Validation,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse},
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;

use super::token::{Token, refused};
use crate::{
    auth::error::Error,
    config::{Algorithm, Issuer},
};

/// Maximum number of keys in a set.
const MAX_KEYS: usize = 100;
/// Maximum number of keys with which a token is verified.
const MAX_CANDIDATES: usize = 16;
/// Accepted sizes of RSA keys in bits. Smaller keys can be factored; larger ones cost more than they help.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=4096;
/// Length of an Ed25519 key in bytes. The library panics on shorter keys and truncates longer ones.
const ED25519_LENGTH: usize = 32;

/// Public key of an issuer.
struct Key {
    id: Option<String>,
    algorithm: jwt::Algorithm,
    public: DecodingKey,
    validation: Validation,
}

/// Usable keys of an issuer.
pub struct KeySet(Vec<Key>);

impl KeySet {
    /// Parses a set and keeps the keys that can verify the issuer's tokens. Fails if it is not a JWK Set or has too
    /// many keys.
    pub fn parse(json: &[u8], issuer: &Issuer) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let set: Set = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        if set.keys.len() > MAX_KEYS {
            return Err(format!("more than {MAX_KEYS} keys"));
        }
        let keys = set.keys.into_iter();
        let keys = keys.filter_map(|jwk| Key::parse(jwk, issuer));
        Ok(Self(keys.collect()))
    }

    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Verifies a token. Returns `None` if its key is not in the set, so that fetching the keys again may help.
    ///
    /// Tries the keys with its identifier, or all if it has none, that are for its algorithm (RFC 7517 §4.5).
    pub fn verify(&self, token: &Token<'_>) -> Option<Result<(), Error>> {
        let id = token.header.kid.as_ref();
        let mut named = (self.0.iter()).filter(|key| id.is_none() || key.id.as_ref() == id);
        let matching = (named.clone()).filter(|key| key.algorithm == token.header.alg);
        let mut candidates = matching.take(MAX_CANDIDATES).peekable();
        if candidates.peek().is_none() {
            let has_key = id.is_some() && named.next().is_some();
            return has_key.then(|| Err(refused("the key with its kid is for another algorithm")));
        }
        let is_valid = candidates.any(|key| key.verifies(token));
        let reason = "no key of the issuer verifies it, or its iss or aud is another";
        Some(is_valid.then_some(()).ok_or_else(|| refused(reason)))
    }
}

impl Key {
    /// Parses a key. Returns `None` if it cannot verify the issuer's tokens.
    fn parse(jwk: Value, issuer: &Issuer) -> Option<Self> {
        // The library ignores a private part.
        if jwk.get("d").is_some() {
            return None;
        }
        let jwk: Jwk = serde_json::from_value(jwk).ok()?;
        let public = DecodingKey::from_jwk(&jwk).ok()?;
        let (configured, algorithm) = match (&jwk.algorithm, public.kind()) {
            (AlgorithmParameters::RSA(_), DecodingKeyKind::RsaModulusExponent { n, .. })
                if RSA_BITS.contains(&bits(n)) =>
            {
                (Algorithm::Rs256, jwt::Algorithm::RS256)
            }
            (AlgorithmParameters::EllipticCurve(key), _) if key.curve == EllipticCurve::P256 => {
                (Algorithm::Es256, jwt::Algorithm::ES256)
            }
            (AlgorithmParameters::OctetKeyPair(key), DecodingKeyKind::SecretOrDer(bytes))
                if key.curve == EllipticCurve::Ed25519 && bytes.len() == ED25519_LENGTH =>
            {
                (Algorithm::EdDsa, jwt::Algorithm::EdDSA)
            }
            _ => return None,
        };
        let common = jwk.common;
        let (usage, operations) = (common.public_key_use, common.key_operations);
        let named = common.key_algorithm;
        let may_verify = usage.is_none_or(|usage| usage == PublicKeyUse::Signature)
            && operations.is_none_or(|it| it.contains(&KeyOperations::Verify))
            && named.is_none_or(|named| named == algorithm.into())
            && issuer.algorithms.contains(&configured)
            // This detects a point that is not on its curve.
            && jwt::crypto::verify("", b"", &public, algorithm).is_ok();
        // The checks of the library. `Token` and its claims have the others.
        let mut validation = Validation::new(algorithm);
        validation.set_required_spec_claims(&["iss", "aud"]);
        validation.set_issuer(&[&issuer.issuer]);
        validation.set_audience(&[&issuer.audience]);
        validation.validate_exp = false;
        may_verify.then(|| Self {
            id: common.key_id,
            algorithm,
            public,
            validation,
        })
    }

    fn verifies(&self, token: &Token<'_>) -> bool {
        // The claims have been parsed; this verifies the signature and the registered claims.
        jwt::decode::<IgnoredAny>(token.text, &self.public, &self.validation).is_ok()
    }
}

/// Returns the length of a number in bits, without leading zeros.
fn bits(number: &[u8]) -> usize {
    let digits = number.iter().skip_while(|byte| **byte == 0);
    let leading = digits.clone().next().map_or(0, |byte| byte.leading_zeros());
    digits.count() * 8 - leading as usize
}
