//! Streaming parser of `multipart/form-data` (RFC 7578), for chunks of any size.
//!
//! `multer` 3.1 does not suffice: it holds all that the client sends at once (10 MiB in chunks of 16 KiB became one
//! chunk), has no limit for the head of a part, takes 12 s for a preamble of 4 MiB in chunks of 64 bytes (0.05 s here),
//! and rejects a file name with a NUL.
//!
//! Invariants:
//! - No more is held in memory than [`MAX_HEAD`] and one chunk.
//! - Each byte is examined a bounded number of times.
//! - File names are never used, only their presence.

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use memchr::memmem;

use crate::{
    api::{body::LimitedBody, error::Error},
    limits::resources::Uploads,
};

/// Maximum number of bytes in a form besides the image.
const MAX_OTHER: u64 = 64 << 10;
/// Maximum number of bytes in the head of a part.
const MAX_HEAD: usize = 8 << 10;
/// Maximum number of parts.
const MAX_PARTS: usize = 32;
/// Maximum length of a boundary (RFC 2046 §5.1.1).
const MAX_BOUNDARY: usize = 70;

/// Head of a part.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Name of the form field.
    pub name: String,
    /// True if the part has a file name.
    pub is_file: bool,
}

/// Form whose parts are read one after the other.
pub struct Multipart {
    body: LimitedBody,
    /// Bytes that end every part.
    delimiter: Vec<u8>,
    /// Bytes received but not parsed yet.
    buffer: BytesMut,
    /// True until the delimiter after the preamble, or after the data of a part.
    in_data: bool,
    parts: usize,
}

impl Multipart {
    /// Creates a parser for a body of this `Content-Type`.
    pub fn new(content_type: &str, body: Body, uploads: &Uploads) -> Result<Self, Error> {
        let (_, parameters) = content_type.split_once(';').unwrap_or_default();
        let boundary = parameter(parameters, "boundary").unwrap_or_default();
        if !(1..=MAX_BOUNDARY).contains(&boundary.len()) || !boundary.is_ascii() {
            let reason = "must have a boundary of 1 to 70 characters";
            return Err(Error::one_violation("Content-Type", reason));
        }
        Ok(Self {
            body: LimitedBody::new(body, uploads.body, MAX_OTHER)?,
            delimiter: format!("\r\n--{boundary}").into_bytes(),
            // Lets the first delimiter match, which may have no line break before it.
            buffer: BytesMut::from(&b"\r\n"[..]),
            in_data: true,
            parts: 0,
        })
    }

    /// Skips the rest of the current part. Returns the next one, or `None` once the body has ended after the last.
    pub async fn next_part(&mut self) -> Result<Option<Part>, Error> {
        while self.data().await?.is_some() {}
        while !self.buffer.starts_with(b"--") {
            // From the rest of the delimiter's line to the empty line.
            let length = self.buffer.len().min(MAX_HEAD);
            if let Some(end) = memmem::find(&self.buffer[..length], b"\r\n\r\n") {
                self.parts += 1;
                if self.parts > MAX_PARTS {
                    return Err(malformed("must have at most 32 parts"));
                }
                self.in_data = true;
                return Part::read(&self.buffer.split_to(end + 4)).map(Some);
            }
            if length == MAX_HEAD {
                return Err(malformed("must have part headers of at most 8 KiB"));
            }
            self.receive().await?;
        }
        while self.body.next().await?.is_some() {}
        Ok(None)
    }

    /// Returns more data of the current part, or `None` at its end.
    pub async fn data(&mut self) -> Result<Option<Bytes>, Error> {
        while self.in_data {
            let end = match memmem::find(&self.buffer, &self.delimiter) {
                Some(0) => {
                    let _ = self.buffer.split_to(self.delimiter.len());
                    self.in_data = false;
                    break;
                }
                Some(at) => at,
                // The last bytes may be the beginning of a delimiter.
                None => self.buffer.len().saturating_sub(self.delimiter.len() - 1),
            };
            if end > 0 {
                return Ok(Some(self.buffer.split_to(end).freeze()));
            }
            self.receive().await?;
        }
        Ok(None)
    }

    async fn receive(&mut self) -> Result<(), Error> {
        let bytes = self.body.next().await?;
        let bytes = bytes.ok_or_else(|| malformed("must be a complete form; it ends early"))?;
        self.buffer.extend_from_slice(&bytes);
        Ok(())
    }
}

fn malformed(reason: &'static str) -> Error {
    Error::one_violation("body", reason)
}

impl Part {
    fn read(head: &[u8]) -> Result<Self, Error> {
        let head = String::from_utf8_lossy(head);
        // Only spaces and tabs may follow a boundary on its line.
        if !head.trim_start_matches([' ', '\t']).starts_with("\r\n") {
            return Err(malformed("must have a line break after each boundary"));
        }
        let disposition = head
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.trim().eq_ignore_ascii_case("content-disposition"));
        let (_, parameters) = disposition
            .and_then(|(_, value)| value.split_once(';'))
            .unwrap_or_default();
        let mut names = ["filename", "filename*"].into_iter();
        Ok(Self {
            name: parameter(parameters, "name").unwrap_or_default(),
            is_file: names.any(|name| parameter(parameters, name).is_some()),
        })
    }
}

/// Returns a parameter of a header value: a token or a quoted string.
fn parameter(parameters: &str, wanted: &str) -> Option<String> {
    let mut rest = parameters;
    loop {
        let (name, after) = rest.split_once('=')?;
        let name = name.trim_start_matches([';', ' ', '\t']).trim_end();
        let (value, after) = match after.trim_start().strip_prefix('"') {
            Some(quoted) => unquote(quoted),
            None => {
                let (token, after) = after.split_once(';').unwrap_or((after, ""));
                (token.trim().to_owned(), after)
            }
        };
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = after;
    }
}

/// Returns a quoted string up to its closing quote, and the rest.
fn unquote(quoted: &str) -> (String, &str) {
    let mut text = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (text, &quoted[at + 1..]),
            '\\' => text.extend(characters.next().map(|(_, escaped)| escaped)),
            plain => text.push(plain),
        }
    }
    (text, "")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use proptest::prelude::*;

    use super::*;
    use crate::config::Config;

    type Parts = Vec<(Part, Vec<u8>)>;

    fn multipart(content_type: &str, body: Body) -> Result<Multipart, Error> {
        let config = Config::defaults().expect("a configuration").images;
        Multipart::new(
            content_type,
            body,
            &Uploads::new(&config, config.upload_timeout),
        )
    }

    /// Parses a body that arrives in chunks of `piece` bytes.
    fn read(body: &[u8], piece: usize) -> Result<Parts, Error> {
        let pieces: Vec<_> = body.chunks(piece).map(Bytes::copy_from_slice).collect();
        let pieces = stream::iter(pieces.into_iter().map(Ok::<_, Infallible>));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.expect("a runtime").block_on(async {
            let body = Body::from_stream(pieces);
            let mut multipart = multipart("multipart/form-data; boundary=\"x y\"", body)?;
            let mut parts = Parts::new();
            while let Some(part) = multipart.next_part().await? {
                let mut data = Vec::new();
                while let Some(bytes) = multipart.data().await? {
                    data.extend(bytes);
                }
                parts.push((part, data));
            }
            Ok(parts)
        })
    }

    fn part(name: &str, is_file: bool) -> Part {
        let name = name.to_owned();
        Part { name, is_file }
    }

    #[test]
    fn parts_are_found_whatever_is_around_them() {
        let body = b"preamble --x y\r\n--x y \t\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n\
            --x y\r\nX: y\r\ncontent-disposition: form-data; filename=\"a\\\"; name=no.png\"; name=\"b\"\r\n\r\n\
            \r\n--x z\r\n-\r\n--x y\r\n\r\nnameless\r\n--x y--epilogue";
        for length in 1..body.len() {
            let parts = read(body, length).expect("well formed");
            let expected = [
                (part("a", false), b"".to_vec()),
                (part("b", true), b"\r\n--x z\r\n-".to_vec()),
                (part("", false), b"nameless".to_vec()),
            ];
            assert_eq!(parts, expected, "in pieces of {length}");
        }
    }

    #[test]
    fn what_is_no_multipart_is_refused() {
        for content_type in [
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "multipart/form-data; boundary=\"\"",
            &format!("multipart/form-data; boundary={}", "x".repeat(71)),
        ] {
            let multipart = multipart(content_type, Body::empty());
            assert!(multipart.is_err(), "{content_type}");
        }
        assert!(read(b"--x y garbage\r\n\r\n", 7).is_err());
        let endless_head = [b"--x y\r\nX: ".as_slice(), &vec![b'a'; MAX_HEAD + 100]].concat();
        assert!(read(&endless_head, 100).is_err());
        assert!(read(&b"--x y\r\n\r\n\r\n".repeat(33), 100).is_err());
        // The closing delimiter is missing.
        assert!(read(b"--x y\r\n\r\nabc\r\n--x y", 3).is_err());
    }

    proptest! {
        #[test]
        fn data_comes_out_as_it_went_in(
            data in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'\r'), Just(b'-')], 0..200),
            piece in 1_usize..50,
        ) {
            let body = [b"--x y\r\n\r\n".as_slice(), &data, b"\r\n--x y--"].concat();
            let parts = read(&body, piece).expect("well formed");
            prop_assert_eq!(&parts[0].1, &data);
        }

        #[test]
        fn smoke_test_arbitrary_bytes(
            bytes in prop::collection::vec(any::<u8>(), 0..300), piece in 1_usize..50,
        ) {
            let body = [b"--x y\r\nContent-Disposition:".as_slice(), &bytes].concat();
            let _ = read(&body, piece);
        }
    }
}
