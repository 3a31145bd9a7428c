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

use bytes::{Bytes, BytesMut};
use memchr::memmem;

/// Maximum number of bytes in the head of a part.
const MAX_HEAD: usize = 8 << 10;
/// Maximum number of parts.
const MAX_PARTS: usize = 32;
/// Maximum length of a boundary (RFC 2046 §5.1.1).
const MAX_BOUNDARY: usize = 70;

/// Reason for which a body is not valid `multipart/form-data`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Malformed(pub &'static str);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Beginning of a part.
    Part(Part),
    /// Data of the part.
    Data(Bytes),
    /// End of the last part.
    End,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub name: String,
    /// True if the part has a file name.
    pub is_file: bool,
}

#[derive(Debug)]
pub(super) struct Multipart {
    /// Bytes that end every part.
    delimiter: Vec<u8>,
    /// Bytes received but not parsed yet.
    buffer: BytesMut,
    state: State,
    parts: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Preamble,
    /// After a delimiter.
    Head,
    Data,
    End,
}

impl Multipart {
    /// Creates a parser for a body of this `Content-Type`.
    pub fn new(content_type: &str) -> Result<Self, Malformed> {
        let (_, parameters) = content_type.split_once(';').unwrap_or_default();
        let boundary = parameter(parameters, "boundary").unwrap_or_default();
        if !(1..=MAX_BOUNDARY).contains(&boundary.len()) || !boundary.is_ascii() {
            return Err(Malformed("must have a boundary of 1 to 70 characters"));
        }
        Ok(Self {
            delimiter: format!("\r\n--{boundary}").into_bytes(),
            // Lets the first delimiter match, which may have no line break before it.
            buffer: BytesMut::from(&b"\r\n"[..]),
            state: State::Preamble,
            parts: 0,
        })
    }

    pub fn push(&mut self, bytes: &[u8]) {
        if self.state != State::End {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// Returns the next event, or `None` if it needs more bytes.
    pub fn next(&mut self) -> Result<Option<Event>, Malformed> {
        loop {
            match self.state {
                State::Preamble | State::Data => match self.up_to_delimiter() {
                    Some(data) if self.state == State::Data => return Ok(Some(Event::Data(data))),
                    Some(_preamble) => {}
                    None if self.state == State::Head => {}
                    None => return Ok(None),
                },
                State::Head if self.buffer.starts_with(b"--") => {
                    self.state = State::End;
                    self.buffer.clear();
                    return Ok(Some(Event::End));
                }
                State::Head => {
                    let Some(head) = self.head()? else {
                        return Ok(None);
                    };
                    self.parts += 1;
                    if self.parts > MAX_PARTS {
                        return Err(Malformed("must have at most 32 parts"));
                    }
                    self.state = State::Data;
                    return Ok(Some(Event::Part(Part::read(&head)?)));
                }
                State::End => return Ok(None),
            }
        }
    }

    /// Removes and returns the data that certainly precedes the next delimiter. If there is none, returns `None`, and
    /// removes a delimiter at the start.
    fn up_to_delimiter(&mut self) -> Option<Bytes> {
        let end = match memmem::find(&self.buffer, &self.delimiter) {
            Some(0) => {
                let _ = self.buffer.split_to(self.delimiter.len());
                self.state = State::Head;
                return None;
            }
            Some(at) => at,
            // The last bytes may be the beginning of a delimiter.
            None => self.buffer.len().saturating_sub(self.delimiter.len() - 1),
        };
        (end > 0).then(|| self.buffer.split_to(end).freeze())
    }

    /// Removes and returns the head of a part, from the rest of the delimiter's line to the empty line, or `None` if it
    /// is not complete.
    fn head(&mut self) -> Result<Option<Bytes>, Malformed> {
        let length = self.buffer.len().min(MAX_HEAD);
        match memmem::find(&self.buffer[..length], b"\r\n\r\n") {
            Some(end) => Ok(Some(self.buffer.split_to(end + 4).freeze())),
            None if length == MAX_HEAD => Err(Malformed("must have part headers of at most 8 KiB")),
            None => Ok(None),
        }
    }
}

impl Part {
    fn read(head: &[u8]) -> Result<Self, Malformed> {
        let head = String::from_utf8_lossy(head);
        // Only spaces and tabs may follow a boundary on its line.
        if !head.trim_start_matches([' ', '\t']).starts_with("\r\n") {
            return Err(Malformed("must have a line break after each boundary"));
        }
        let disposition = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let name = name.trim();
            name.eq_ignore_ascii_case("content-disposition")
                .then_some(value)
        });
        let (_, parameters) = disposition
            .and_then(|value| value.split_once(';'))
            .unwrap_or_default();
        let is_file = parameter(parameters, "filename").is_some()
            || parameter(parameters, "filename*").is_some();
        Ok(Self {
            name: parameter(parameters, "name").unwrap_or_default(),
            is_file,
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
    use proptest::prelude::*;

    use super::*;

    const TYPE: &str = "multipart/form-data; boundary=\"x y\"";

    type Parts = Vec<(Part, Vec<u8>)>;

    /// Parses a body in chunks of `piece` bytes. Returns its parts, and true if it has an end.
    fn read(body: &[u8], piece: usize) -> Result<(Parts, bool), Malformed> {
        let mut multipart = Multipart::new(TYPE)?;
        let mut parts = Parts::new();
        for piece in body.chunks(piece) {
            multipart.push(piece);
            while let Some(event) = multipart.next()? {
                match event {
                    Event::Part(part) => parts.push((part, Vec::new())),
                    Event::Data(data) => parts.last_mut().expect("a part").1.extend(data),
                    Event::End => return Ok((parts, true)),
                }
                assert!(multipart.buffer.len() <= body.len() + 2, "it grows");
            }
        }
        Ok((parts, false))
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
            let (parts, ended) = read(body, length).expect("well formed");
            let expected = [
                (part("a", false), b"".to_vec()),
                (part("b", true), b"\r\n--x z\r\n-".to_vec()),
                (part("", false), b"nameless".to_vec()),
            ];
            assert_eq!(parts, expected, "in pieces of {length}");
            assert!(ended);
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
            assert!(Multipart::new(content_type).is_err(), "{content_type}");
        }
        assert!(read(b"--x y garbage\r\n\r\n", 7).is_err());
        let endless_head = [b"--x y\r\nX: ".as_slice(), &vec![b'a'; MAX_HEAD + 100]].concat();
        assert!(read(&endless_head, 100).is_err());
        assert!(read(&b"--x y\r\n\r\n\r\n".repeat(33), 100).is_err());
        // The closing delimiter is missing.
        let (_, ended) = read(b"--x y\r\n\r\nabc\r\n--x y", 3).expect("so far");
        assert!(!ended);
    }

    proptest! {
        #[test]
        fn data_comes_out_as_it_went_in(
            data in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'\r'), Just(b'-')], 0..200),
            piece in 1_usize..50,
        ) {
            let body = [b"--x y\r\n\r\n".as_slice(), &data, b"\r\n--x y--"].concat();
            let (parts, ended) = read(&body, piece).expect("well formed");
            prop_assert!(ended);
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
