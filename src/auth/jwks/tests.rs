//! Tests that need no issuer: damaged tokens and caller names.

use std::time::Duration;

use chrono::DateTime;
use proptest::{
    collection::vec,
    prelude::{Just, Strategy, any, prop, prop_assert, prop_oneof, proptest},
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
    let Some(token) = Token::parse(text) else {
        return false;
    };
    let now = DateTime::from_timestamp(now, 0).expect("a time");
    token.claims.expires_in(now, issuer().leeway).is_some()
        && matches!(keys.verify(&token), Some(Ok(())))
}

#[test]
fn a_token_ends_when_its_leeway_does() {
    let keys = keys();
    let token = Signer::ed25519().token(&claims());
    for (now, good) in [(NOW, true), (NOW + 89, true), (NOW + 90, false)] {
        assert_eq!(is_valid(&keys, &token, now), good, "{now}");
    }
    let mut later = claims();
    later["nbf"] = json!(NOW);
    let token = Signer::ed25519().token(&later);
    for (now, good) in [(NOW, true), (NOW - 30, true), (NOW - 31, false)] {
        assert_eq!(is_valid(&keys, &token, now), good, "{now}");
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
    assert_ne!(
        named(ISSUER, &"x".repeat(254)),
        named(ISSUER, &"x".repeat(255))
    );
    for hidden in ["with space", "Zoë", "\u{202e}evil", &"x".repeat(38)] {
        assert_eq!(named(ISSUER, hidden).len(), 26, "{hidden:?}");
    }
    assert_eq!(named(ISSUER, &"x".repeat(37)).len(), 64);
}

#[derive(Debug, Clone)]
enum Damage {
    Replace(prop::sample::Index, char),
    Insert(prop::sample::Index, char),
    Remove(prop::sample::Index),
    Swap(prop::sample::Index, prop::sample::Index),
    Truncate(prop::sample::Index),
    Repeat(prop::sample::Index),
}

impl Damage {
    fn apply(&self, text: &mut Vec<char>) {
        if text.is_empty() {
            return;
        }
        let length = text.len();
        match self {
            Self::Replace(at, character) => text[at.index(length)] = *character,
            Self::Insert(at, character) => text.insert(at.index(length + 1), *character),
            Self::Remove(at) => drop(text.remove(at.index(length))),
            Self::Swap(one, other) => text.swap(one.index(length), other.index(length)),
            Self::Truncate(at) => text.truncate(at.index(length)),
            Self::Repeat(at) => text.extend_from_within(at.index(length)..),
        }
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>;
    let character = || {
        prop_oneof![
            prop::char::range('!', '~'),
            Just('.'),
            Just('\0'),
            any::<char>()
        ]
    };
    prop_oneof![
        (at(), character()).prop_map(|(at, to)| Damage::Replace(at, to)),
        (at(), character()).prop_map(|(at, to)| Damage::Insert(at, to)),
        at().prop_map(Damage::Remove),
        (at(), at()).prop_map(|(one, other)| Damage::Swap(one, other)),
        at().prop_map(Damage::Truncate),
        at().prop_map(Damage::Repeat),
    ]
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
        for damage in &damages {
            damage.apply(&mut damaged);
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
