//! Signs valid and invalid JWTs with keys that exist only for tests. The library's unit tests use this file, too.

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use jsonwebtoken::{Algorithm, EncodingKey, crypto, jwk::Jwk};
use serde_json::{Value, json};

/// Private key with its `kid` and `alg`.
pub struct Signer {
    /// Value of `kid`.
    pub id: &'static str,
    /// Value of `alg`.
    pub algorithm: Algorithm,
    key: EncodingKey,
}

macro_rules! signer {
    ($(#[$doc:meta] $name:ident: $algorithm:ident $from_der:ident $file:literal;)*) => {
        $(#[$doc]
        pub fn $name() -> Self {
            Self {
                id: stringify!($name),
                algorithm: Algorithm::$algorithm,
                key: EncodingKey::$from_der(&der(include_str!(concat!("keys/", $file)))),
            }
        })*
    };
}

impl Signer {
    signer! {
        /// RSA of 2,048 bits.
        rsa: RS256 from_rsa_der "test_rsa.pem";
        /// A second RSA key.
        rsa_other: RS256 from_rsa_der "test_rsa_other.pem";
        /// RSA of 1,024 bits, which is refused as too small.
        rsa_tiny: RS256 from_rsa_der "test_rsa_tiny.pem";
        /// ECDSA on P-256.
        p256: ES256 from_ec_der "test_p256.pem";
        /// ECDSA on P-384, which is not supported.
        p384: ES384 from_ec_der "test_p384.pem";
        /// Ed25519.
        ed25519: EdDSA from_ed_der "test_ed25519.pem";
        /// A second Ed25519 key.
        ed25519_other: EdDSA from_ed_der "test_ed25519_other.pem";
    }

    /// Returns the signer with another `kid`.
    pub const fn named(mut self, id: &'static str) -> Self {
        self.id = id;
        self
    }

    /// Returns the public key as issuers publish it.
    pub fn jwk(&self) -> Value {
        let jwk = Jwk::from_encoding_key(&self.key, self.algorithm).expect("a key of ours");
        let mut jwk = serde_json::to_value(jwk).expect("JSON");
        jwk["kid"] = json!(self.id);
        jwk["use"] = json!("sig");
        jwk
    }

    /// Returns the header of its tokens.
    pub fn header(&self) -> Value {
        json!({ "alg": self.algorithm, "kid": self.id, "typ": "JWT" })
    }

    /// Returns a token with the given claims.
    pub fn token(&self, claims: &Value) -> String {
        self.token_of(&self.header().to_string(), &claims.to_string())
    }

    /// Returns a signed token of any two texts, valid or not.
    pub fn token_of(&self, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", base64(header), base64(claims));
        let signature = self.signature(&signed);
        format!("{signed}.{signature}")
    }

    /// Signs a text.
    pub fn signature(&self, signed: &str) -> String {
        crypto::sign(signed.as_bytes(), &self.key, self.algorithm).expect("a signature")
    }
}

/// Returns a token signed with a shared secret.
pub fn hs256(header: &Value, claims: &Value, secret: &[u8]) -> String {
    let signed = format!(
        "{}.{}",
        base64(header.to_string()),
        base64(claims.to_string())
    );
    let key = EncodingKey::from_secret(secret);
    let signature = crypto::sign(signed.as_bytes(), &key, Algorithm::HS256).expect("a signature");
    format!("{signed}.{signature}")
}

/// Encodes bytes as part of a token (base64url without padding, RFC 7515 §2).
pub fn base64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Decodes the content of a PEM file.
pub fn der(pem: &str) -> Vec<u8> {
    let lines: String = pem
        .lines()
        .filter(|line| !line.starts_with("---"))
        .collect();
    STANDARD.decode(lines).expect("PEM")
}
