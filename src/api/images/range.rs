//! `Range` (RFC 9110 §14.2): the bytes of an image that a client requests.
//!
//! `http-range-header` 0.4 and `headers` 0.4 do not suffice: for a suffix longer than the image (`bytes=-1000` of 100
//! bytes), RFC 9110 §14.1.2 requires all bytes, and both return none.

use std::ops::Range;

use axum::http::{HeaderMap, header};

use crate::api::error::Error;

/// Reads the header for a total of `size` bytes. Returns `None` for all bytes: the header is absent, malformed, or has
/// more than one range. Fails with [`Error::RangeNotSatisfiable`] if the range begins after the end.
pub fn requested_range(headers: &HeaderMap, size: u64) -> Result<Option<Range<u64>>, Error> {
    let mut values = headers.get_all(header::RANGE).iter();
    let range = match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok().and_then(|value| parse(value, size)),
        _ => None,
    };
    match range {
        Some(range) if range.is_empty() => Err(Error::RangeNotSatisfiable(size)),
        range => Ok(range),
    }
}

/// Parses a single range, which is empty if it is outside of the bytes. Returns `None` if `value` is anything else.
fn parse(value: &str, size: u64) -> Option<Range<u64>> {
    let (unit, range) = value.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    match range.trim().split_once('-')? {
        ("", length) => Some(size.saturating_sub(position(length)?)..size),
        (first, "") => Some(position(first)?..size),
        (first, last) => {
            let (first, last) = (position(first)?, position(last)?);
            (first <= last).then(|| first..size.min(last.saturating_add(1)))
        }
    }
}

/// Parses a decimal number; one that is too large is read as the largest number.
fn position(digits: &str) -> Option<u64> {
    let are_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    are_digits.then(|| digits.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn ranges_are_read_as_the_rfc_has_them() {
        let read = |value: &'static str| {
            let headers = HeaderMap::from_iter([(header::RANGE, HeaderValue::from_static(value))]);
            requested_range(&headers, 100).map_err(|error| error.to_string())
        };
        for (value, range) in [
            ("bytes=0-0", 0..1),
            ("bytes=0-99", 0..100),
            ("bytes=10-", 10..100),
            ("bytes=90-1000", 90..100),
            ("bytes=-1", 99..100),
            ("bytes=-1000", 0..100),
            ("BYTES=5-6", 5..7),
            ("bytes=0-99999999999999999999999", 0..100),
        ] {
            assert_eq!(read(value), Ok(Some(range)), "{value}");
        }
        for value in "bytes=100- bytes=100-200 bytes=-0 bytes=99999999999999999999999-".split(' ') {
            assert!(read(value).is_err(), "{value}");
        }
        let whole = " bytes bytes= bytes=- bytes=5-4 bytes=a-b bytes=0-1,5-6 items=0-1 bytes=+1-2 bytes=1--2";
        for value in whole.split(' ') {
            assert_eq!(read(value), Ok(None), "{value}");
        }
    }
}
