//! Tests that need no issuer: damaged tokens and caller names.

use std::time::Duration;

use chrono::DateTime;
use proptest::{
    char::range,
    collection::vec,
    prelude::{Just, Strategy, any, prop_assert, prop_oneof, proptest},
    sample::Index,
    test_runner::Config,
};
use serde_json::{Value, json};
use test_support::signer::Signer;

use super::{caller_name, keys::KeySet, token::Token};
use crate::config::{Algorithm, Issuer};

const ISSUER: &str = "https://issuer.example";
const NOW: i64 = 1_800_000_000;

fn issuer() -> Issuer {
    Issuer {
        issuer: ISSUER.to_owned(),
        audience: "us".to_owned(),
        jwks_url: None,
        algorithms: vec![Algorithm::Es256, Algorithm::EdDsa],
        plan_claim: None,
        scope_claim: "scope".to_owned(),
        allow_admin: false,
        leeway: Duration::from_secs(30),
    }
}

fn keys() -> KeySet {
    let keys = [Signer::p256().jwk(), Signer::ed25519().jwk()];
    let set = json!({ "keys": keys }).to_string();
    let keys = KeySet::parse(set.as_bytes(), &issuer()).expect("a set");
    assert_eq!(keys.len(), 2);
    keys
}

fn claims() -> Value {
    json!({"iss": ISSUER, "aud": "us", "sub": "s", "exp": NOW + 60, "scope": "read:pets"})
}

/// Returns true if the token is valid, without the checks that need a database.
fn is_valid(keys: &KeySet, text: &str, now: i64) -> bool {
    let now = DateTime::from_timestamp(now, 0).expect("a time");
    Token::parse(text).is_ok_and(|token| {
        token.claims.expires_in(now, issuer().leeway).is_some()
            && matches!(keys.verify(&token), Some(Ok(())))
    })
}

#[test]
fn a_token_begins_and_ends_with_its_leeway() {
    let mut claims = claims();
    claims["nbf"] = json!(NOW);
    let (keys, token) = (keys(), Signer::ed25519().token(&claims));
    for (after, good) in [
        (-31, false),
        (-30, true),
        (0, true),
        (89, true),
        (90, false),
    ] {
        assert_eq!(is_valid(&keys, &token, NOW + after), good, "{after}");
    }
}

#[test]
fn no_two_subjects_share_a_name() {
    let named = |issuer: &str, subject: &str| {
        let name = caller_name(issuer, subject).expect("a name");
        name.as_str().to_owned()
    };
    let short = named(ISSUER, "user-17");
    assert!(short.starts_with("jwt:") && short.ends_with(":user-17"));
    assert_ne!(short, named("https://another.example", "user-17"));
    let long = |length| named(ISSUER, &"x".repeat(length));
    assert_ne!(long(254), long(255));
    for hidden in ["with space", "Zoë", "\u{202e}evil", &"x".repeat(38)] {
        assert_eq!(named(ISSUER, hidden).len(), 26, "{hidden:?}");
    }
    assert_eq!(long(37).len(), 64);
}

/// Change of a token: its kind, two positions and a character.
type Damage = (u8, Index, Index, char);

fn damage() -> impl Strategy<Value = Damage> {
    let character = prop_oneof![range('!', '~'), Just('.'), Just('\0'), any::<char>()];
    (0..6_u8, any::<Index>(), any::<Index>(), character)
}

fn apply((kind, at, other, character): Damage, text: &mut Vec<char>) {
    if text.is_empty() {
        return;
    }
    let length = text.len();
    match kind {
        0 => text[at.index(length)] = character,
        1 => text.insert(at.index(length + 1), character),
        2 => drop(text.remove(at.index(length))),
        3 => text.swap(at.index(length), other.index(length)),
        4 => text.truncate(at.index(length)),
        _ => text.extend_from_within(at.index(length)..),
    }
}

#[test]
fn a_damaged_token_is_never_good() {
    let keys = keys();
    let tokens = [Signer::p256(), Signer::ed25519()].map(|signer| signer.token(&claims()));
    for token in &tokens {
        assert!(is_valid(&keys, token, NOW));
    }
    proptest!(Config::with_cases(1_000), |(which in 0..2_usize, damages in vec(damage(), 1..4))| {
        let mut damaged: Vec<char> = tokens[which].chars().collect();
        for damage in damages {
            apply(damage, &mut damaged);
        }
        let damaged: String = damaged.into_iter().collect();
        prop_assert!(damaged == tokens[which] || !is_valid(&keys, &damaged, NOW), "{damaged}");
    });
}

#[test]
fn a_signed_text_is_a_token_or_none_but_never_a_panic() {
    let (keys, signer) = (keys(), Signer::ed25519());
    proptest!(Config::with_cases(50), |(header in ".{0,60}", payload in ".{0,60}", value in "[\\[\\]{}\",:0-9a-z.e-]{0,20}")| {
        let _ = is_valid(&keys, &signer.token_of(&header, &payload), NOW);
        // Signed content can also be arbitrary.
        for name in ["iss", "aud", "exp", "nbf", "iat", "sub", "scope"] {
            let claims = claims().to_string().replacen('{', &format!("{{\"{name}2\":0,"), 1);
            let claims = claims.replace(&format!("\"{name}\":"), &format!("\"{name}\":{value},\"x\":"));
            let _ = is_valid(&keys, &signer.token_of(&signer.header().to_string(), &claims), NOW);
        }
        let _ = KeySet::parse(payload.as_bytes(), &issuer());
        let set = format!("{{\"keys\":[{{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"{value}\"}}]}}");
        let _ = KeySet::parse(set.as_bytes(), &issuer());
    });
}
