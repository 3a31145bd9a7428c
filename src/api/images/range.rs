//! Parses `Range` (RFC 9110 §14), the part of some bytes that a client requests.

use std::ops::Range;

use axum::http::{HeaderMap, header};

/// Part of the bytes to send.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// All bytes: the header is absent, malformed, or has more than one range.
    Whole,
    /// These bytes.
    Part(Range<u64>),
    /// A range outside of the bytes.
    Unsatisfiable,
}

/// Reads the header for a total of `size` bytes.
pub(super) fn asked(headers: &HeaderMap, size: u64) -> Asked {
    let mut values = headers.get_all(header::RANGE).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value
            .to_str()
            .ok()
            .and_then(|value| read(value, size))
            .unwrap_or(Asked::Whole),
        _ => Asked::Whole,
    }
}

/// Returns `None` if `value` is not a single range of bytes.
fn read(value: &str, size: u64) -> Option<Asked> {
    let (unit, range) = value.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, last) = range.trim().split_once('-')?;
    let range = match (first, last) {
        ("", length) => size.saturating_sub(position(length)?)..size,
        (first, "") => position(first)?..size,
        (first, last) => {
            let (first, last) = (position(first)?, position(last)?);
            if first > last {
                return None;
            }
            first..size.min(last.saturating_add(1))
        }
    };
    Some(if range.is_empty() {
        Asked::Unsatisfiable
    } else {
        Asked::Part(range)
    })
}

/// Parses a decimal number; one that is too large is read as the largest number.
fn position(digits: &str) -> Option<u64> {
    let are_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    are_digits.then(|| digits.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_rfc_has_them() {
        let read = |value: &str| read(value, 100).unwrap_or(Asked::Whole);
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
            assert_eq!(read(value), Asked::Part(range), "{value}");
        }
        for value in [
            "bytes=100-",
            "bytes=100-200",
            "bytes=-0",
            "bytes=99999999999999999999999-",
        ] {
            assert_eq!(read(value), Asked::Unsatisfiable, "{value}");
        }
        for value in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=5-4",
            "bytes=a-b",
            "bytes=0-1,5-6",
            "items=0-1",
            "bytes=+1-2",
            "bytes=1--2",
        ] {
            assert_eq!(read(value), Asked::Whole, "{value}");
        }
    }
}
