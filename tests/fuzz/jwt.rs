//! JWTs: what is accepted has three parts, and the header and the claims of a general parser.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use chrono::DateTime;
use pet_inventory::auth::jwks::{Token, looks_like_jwt};
use serde_json::Value;

crate::target!("jwt", check);

/// Checks the input as a token, and as the lines of its header and its claims.
fn check(input: &[u8]) {
    if let Ok(text) = str::from_utf8(input) {
        check_token(text);
    }
    let (header, claims) = crate::split(input, b'\n');
    let [header, claims] = [header, claims].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part));
    check_token(&format!("{header}.{claims}.c2lnbmF0dXJl"));
}

fn check_token(text: &str) {
    let (token, memory) = crate::measure(|| Token::parse(text));
    let max_memory = 100 * text.len() as u64 + 16_384;
    assert!(memory <= max_memory, "{memory} bytes for {}", text.len());
    let Ok(Token { claims, header, .. }) = token else {
        return;
    };
    assert!(looks_like_jwt(text) && text.len() <= 8_192);
    let parts: Vec<_> = text.split('.').map(decode).collect();
    for extension in ["crit", "b64", "enc", "zip"] {
        assert!(
            parts[0].get(extension).is_none_or(Value::is_null),
            "{extension}"
        );
    }
    assert_eq!(parts[0]["alg"], format!("{:?}", header.alg));
    assert_eq!(parts[1]["iss"], claims.issuer);
    assert_eq!(parts[1]["sub"], claims.subject);
    assert!((1..=255).contains(&claims.subject.chars().count()));
    // Once expired, a token stays so.
    let times = [0, 1_000_000_000, 2_000_000_000].map(|time| {
        let now = DateTime::from_timestamp(time, 0).expect("a time");
        claims.expires_in(now, std::time::Duration::ZERO)
    });
    let expiry = parts[1]["exp"].as_f64().expect("a number");
    for (valid_for, time) in times.into_iter().zip([0.0, 1e9, 2e9]) {
        assert!(valid_for.is_none() || expiry > time);
    }
    if claims.is_for("audience") {
        assert!(parts[1]["aud"].to_string().contains("\"audience\""));
    }
}

fn decode(part: &str) -> Value {
    let json = BASE64_URL_SAFE_NO_PAD.decode(part).unwrap_or_default();
    serde_json::from_slice(&json).unwrap_or_default()
}
