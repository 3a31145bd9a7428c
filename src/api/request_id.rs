//! Request ids, which identify a request in the log, in its response and in error bodies.

use std::cell::RefCell;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

/// Header of the request id.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Request id: 1–64 characters of `[A-Za-z0-9._-]`.
#[derive(Debug, Clone)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// Returns the id that the client sent, so that it finds its request in the log, or a new one if that is invalid.
    pub fn of(headers: &HeaderMap) -> Self {
        let sent = headers.get(X_REQUEST_ID).filter(|id| {
            let mut bytes = id.as_bytes().iter();
            (1..=64).contains(&id.len())
                && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte))
        });
        Self(sent.cloned().unwrap_or_else(random_id))
    }

    /// Returns the id as a header value.
    pub fn header(&self) -> HeaderValue {
        self.0.clone()
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

/// Returns a new id of 128 random bits, unique across replicas.
pub fn random_id() -> HeaderValue {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 32];
    for (digits, byte) in text.chunks_exact_mut(2).zip(random_bits()) {
        digits[0] = DIGITS[usize::from(byte >> 4)];
        digits[1] = DIGITS[usize::from(byte & 15)];
    }
    HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("none"))
}

/// Returns bits that are drawn for 64 ids at a time: the system call costs more than the rest of an id.
fn random_bits() -> [u8; 16] {
    thread_local! {
        static DRAWN: RefCell<(usize, [u8; 1024])> = const { RefCell::new((1024, [0; 1024])) };
    }
    DRAWN.with_borrow_mut(|(at, drawn)| {
        if *at == drawn.len() {
            // If this fails, the ids are useless, but the requests need not fail.
            let _ = getrandom::fill(drawn);
            *at = 0;
        }
        let mut bits = [0; 16];
        bits.copy_from_slice(&drawn[*at..*at + 16]);
        *at += 16;
        bits
    })
}
