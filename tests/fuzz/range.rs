//! `Range`: the bytes are those that a model with 128-bit numbers selects.

use std::ops::Range;

use axum::http::{HeaderMap, HeaderValue, header};
use pet_inventory::api::{error::Error, images::range::requested_range};

crate::target!("range", check);

/// Checks the size and, after a space, the value of the header.
fn check(input: &[u8]) {
    let (size, value) = crate::split(input, b' ');
    let size = str::from_utf8(size).ok().and_then(|size| size.parse().ok());
    let size: u64 = size.unwrap_or(1_000);
    let Ok(value) = HeaderValue::from_bytes(value) else {
        return;
    };
    let expected = model(value.as_bytes(), size.into());
    let headers = HeaderMap::from_iter([(header::RANGE, value)]);
    match requested_range(&headers, size) {
        Ok(range) => {
            let range = range.map(|range| range.start.into()..range.end.into());
            assert_eq!(range, expected);
        }
        Err(Error::RangeNotSatisfiable(total)) => {
            assert_eq!(total, size);
            assert!(expected.is_some_and(|range| range.is_empty()));
        }
        Err(error) => panic!("{error:?}"),
    }
}

/// Returns the positions that RFC 9110 §14.1.2 selects: none if the range is outside, `None` if it is malformed.
fn model(value: &[u8], size: u128) -> Option<Range<u128>> {
    let is_text = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~');
    let text = value.iter().all(is_text).then_some(value)?;
    let equals = text.iter().position(|byte| *byte == b'=')?;
    let (unit, range) = (&text[..equals], text[equals + 1..].trim_ascii());
    let dash = range.iter().position(|byte| *byte == b'-')?;
    let (first, last) = (&range[..dash], &range[dash + 1..]);
    if !unit.trim_ascii().eq_ignore_ascii_case(b"bytes") {
        return None;
    }
    let (start, end) = match (first.is_empty(), last.is_empty()) {
        (true, true) => return None,
        (true, false) => (size - number(last)?.min(size), size),
        (false, true) => (number(first)?, size),
        (false, false) => {
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return None;
            }
            (first, size.min(last + 1))
        }
    };
    Some(start..end)
}

/// Returns a decimal number, or the largest 64-bit number instead of a larger one.
fn number(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number: u128, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        Some((10 * number + u128::from(digit)).min(u64::MAX.into()))
    })
}
