//! `If-Match`, `If-None-Match` and `If-Range`: the lists are those that a state machine reads byte by byte.

use axum::{
    extract::FromRequestParts,
    http::{HeaderName, HeaderValue, Method, Request, header, request::Parts},
};
use futures_util::FutureExt;
use pet_inventory::{
    api::conditional::{Conditions, admits_range},
    domain::{condition::Tags, pet::Version},
};

crate::target!("entity_tags", check);

/// Checks header values, one a line.
fn check(input: &[u8]) {
    let values = input
        .split(|byte| *byte == b'\n')
        .map(HeaderValue::from_bytes);
    let Ok(values) = values.collect::<Result<Vec<_>, _>>() else {
        return;
    };
    let list: Vec<_> = values.iter().map(HeaderValue::as_bytes).collect();
    let expected = model(&list.join(&b','));
    let parts = |name: HeaderName| {
        let mut parts = Request::new(()).into_parts().0;
        for value in &values {
            parts.headers.append(&name, value.clone());
        }
        parts
    };
    let read = |name, method| {
        let mut parts = parts(name);
        parts.method = method;
        let conditions = Conditions::from_request_parts(&mut parts, &()).now_or_never();
        conditions.expect("it reads no body")
    };
    let if_match = read(header::IF_MATCH, Method::PUT);
    let if_none_match = read(header::IF_NONE_MATCH, Method::PUT);
    let if_none_match_of_read = read(header::IF_NONE_MATCH, Method::GET).expect("never refused");
    let is_known = |tag| if_none_match_of_read.is_known(tag).expect("no If-Match");
    check_if_range(&parts(header::IF_RANGE), expected.as_ref());

    let Some(expected) = expected else {
        assert!(if_match.is_err() && if_none_match.is_err());
        assert!(!is_known(""));
        return;
    };
    let if_match = if_match.expect("the model accepts it");
    let if_none_match = if_none_match.expect("the model accepts it");
    let Model::Listed(tags) = expected else {
        assert!(if_match.check("any").is_ok() && if_none_match.check("any").is_err());
        assert!(is_known("any"));
        assert_eq!(if_match.into_versions().any_of, Some(Tags::Any));
        return;
    };
    for (_, tag) in &tags {
        let is_strong = tags.contains(&(false, tag.clone()));
        assert_eq!(if_match.check(tag).is_ok(), is_strong);
        assert!(if_none_match.check(tag).is_err() && is_known(tag));
    }
    assert!(if_match.check("not listed").is_err() && if_none_match.check("not listed").is_ok());
    let strong = tags.iter().filter(|(is_weak, _)| !is_weak);
    let versions = strong.filter_map(|(_, tag)| {
        let version = tag.parse().ok()?;
        // Only the form that the service writes.
        (i64::to_string(&version) == *tag).then_some(Version(version))
    });
    let versions = Tags::Listed(versions.collect());
    assert_eq!(if_match.into_versions().any_of, Some(versions));
}

fn check_if_range(parts: &Parts, expected: Option<&Model>) {
    let tag = match expected {
        Some(Model::Listed(tags)) if tags.len() == 1 => &tags[0],
        _ => &(true, String::new()),
    };
    let (is_weak, opaque) = tag;
    assert_eq!(admits_range(&parts.headers, opaque), !is_weak);
    assert!(!admits_range(&parts.headers, "not listed"));
}

enum Model {
    Any,
    /// Each tag, and true for a weak one.
    Listed(Vec<(bool, String)>),
}

enum State {
    /// Before an element of the list, which may be missing.
    Element,
    /// After the `W` of a weak tag.
    Weak,
    /// Before the opening quote.
    Quote,
    /// Between the quotes.
    Opaque,
    /// After an element.
    End,
}

/// Reads `"*" / 1#entity-tag` (RFC 9110 §5.6.1, §8.8.3), without the bytes beyond ASCII. Returns `None` if it is
/// malformed.
fn model(value: &[u8]) -> Option<Model> {
    if value.trim_ascii() == b"*" {
        return Some(Model::Any);
    }
    let (mut tags, mut state) = (Vec::new(), State::Element);
    let mut tag = (false, String::new());
    for byte in value {
        state = match (state, byte) {
            (State::Element, b' ' | b'\t' | b',') => State::Element,
            (State::Element, b'W') => State::Weak,
            (State::Weak, b'/') => {
                tag.0 = true;
                State::Quote
            }
            (State::Element | State::Quote, b'"') => State::Opaque,
            (State::Opaque, b'"') => {
                tags.push(std::mem::take(&mut tag));
                State::End
            }
            (State::Opaque, b'!'..=b'~') => {
                tag.1.push(char::from(*byte));
                State::Opaque
            }
            (State::End, b' ' | b'\t') => State::End,
            (State::End, b',') => State::Element,
            _ => return None,
        };
    }
    let is_complete = matches!(state, State::Element | State::End) && !tags.is_empty();
    is_complete.then_some(Model::Listed(tags))
}
