//! What a request is called in our log, in its answer, and by whoever asks about it.

use std::cell::RefCell;

use axum::http::{HeaderMap, HeaderValue};

use super::error::X_REQUEST_ID;

/// A request's id, 1–64 characters of `[A-Za-z0-9._-]`.
#[derive(Debug, Clone)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// The caller's own id where it is fit, so that it finds its request in our log; else a new one.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let fit = |value: &&HeaderValue| {
            let id = value.as_bytes();
            (1..=64).contains(&id.len())
                && id
                    .iter()
                    .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b))
        };
        Self(
            headers
                .get(X_REQUEST_ID)
                .filter(fit)
                .cloned()
                .unwrap_or_else(random_id),
        )
    }

    /// For the answer's head.
    #[must_use]
    pub fn header(&self) -> HeaderValue {
        self.0.clone()
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

/// A new id: 128 random bits, so that ids of all replicas differ.
#[must_use]
pub fn random_id() -> HeaderValue {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 32];
    for (digits, byte) in text.chunks_exact_mut(2).zip(random_bits()) {
        digits[0] = DIGITS[usize::from(byte >> 4)];
        digits[1] = DIGITS[usize::from(byte & 15)];
    }
    HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("none"))
}

/// From the operating system, for many ids at a time: asking it costs more than all else about an id.
fn random_bits() -> [u8; 16] {
    thread_local! {
        static DRAWN: RefCell<(usize, [u8; 1024])> = const { RefCell::new((1024, [0; 1024])) };
    }
    DRAWN.with_borrow_mut(|(at, drawn)| {
        if *at == drawn.len() {
            // Without random numbers the id is useless, the request is not.
            let _ = getrandom::fill(drawn);
            *at = 0;
        }
        let mut bits = [0; 16];
        bits.copy_from_slice(&drawn[*at..*at + 16]);
        *at += 16;
        bits
    })
}
