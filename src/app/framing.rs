//! Follows the framing of HTTP/1.1 requests on a connection (RFC 9112 §6), byte by byte, to notice the
//! head that says its body's length in two ways.
//!
//! It judges nothing else: whatever is broken in another way, hyper refuses, and then the connection ends.

/// What became of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing to say against them.
    Pass,
    /// The line that ends at this byte makes its head ambiguous.
    Ambiguous(usize),
}

/// Bytes of a line that are kept: hyper has refused a head long before one of its lines is longer.
const KEPT: usize = 2 << 20;
/// Room that is kept for the next line.
const ROOM: usize = 256;

/// Where in a request the connection is.
#[derive(Debug, Default)]
pub struct Framing {
    place: Place,
    /// The beginning of the current line.
    line: Vec<u8>,
    /// What the current head has said so far.
    head: Head,
}

#[derive(Debug, Default)]
enum Place {
    #[default]
    RequestLine,
    Field,
    /// So many bytes of a body of known length are left.
    Body(u64),
    ChunkSize,
    /// So many bytes of a chunk, its line end included, are left.
    Chunk(u64),
    Trailer,
}

#[derive(Debug, Default)]
struct Head {
    content_length: Option<u64>,
    transfer_encoding: bool,
    /// Another encoding than `chunked`, or more than one (RFC 9112 §6.1).
    odd_encoding: bool,
}

impl Framing {
    /// Follows the next bytes of the connection.
    pub fn feed(&mut self, bytes: &[u8]) -> Verdict {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            if let Place::Body(left) | Place::Chunk(left) = &mut self.place {
                let passed = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= passed as u64;
                at += passed;
                if *left == 0 {
                    self.place = match self.place {
                        Place::Chunk(_) => Place::ChunkSize,
                        _ => Place::RequestLine,
                    };
                }
                continue;
            }
            let end = memchr::memchr(b'\n', rest);
            let piece = &rest[..end.unwrap_or(rest.len())];
            let room = KEPT.saturating_sub(self.line.len());
            self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            at += piece.len();
            if end.is_some() {
                if !self.line_ended() {
                    return Verdict::Ambiguous(at);
                }
                at += 1;
            }
        }
        Verdict::Pass
    }

    /// Whether all that came so far was whole requests.
    pub const fn is_between_requests(&self) -> bool {
        matches!(self.place, Place::RequestLine) && self.line.is_empty()
    }

    /// Moves on; `false` when this line makes its head ambiguous.
    fn line_ended(&mut self) -> bool {
        let mut line = std::mem::take(&mut self.line);
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        self.place = match self.place {
            // Empty lines before a request are passed over (RFC 9112 §2.2).
            Place::RequestLine if line.is_empty() => Place::RequestLine,
            Place::RequestLine => {
                self.head = Head::default();
                Place::Field
            }
            Place::Field if line.is_empty() => match self.head {
                Head {
                    transfer_encoding: true,
                    ..
                } => Place::ChunkSize,
                Head {
                    content_length: Some(length @ 1..),
                    ..
                } => Place::Body(length),
                Head { .. } => Place::RequestLine,
            },
            Place::Field => {
                self.head.read(&line);
                let Head {
                    content_length,
                    transfer_encoding,
                    odd_encoding,
                } = &self.head;
                if *odd_encoding || (*transfer_encoding && content_length.is_some()) {
                    return false;
                }
                Place::Field
            }
            Place::ChunkSize => match chunk_size(&line) {
                Some(0) => Place::Trailer,
                Some(size) => Place::Chunk(size.saturating_add(2)),
                // hyper refuses it too; should it not, this does.
                None => return false,
            },
            Place::Trailer if line.is_empty() => Place::RequestLine,
            Place::Trailer => Place::Trailer,
            Place::Body(_) | Place::Chunk(_) => Place::RequestLine,
        };
        // The buffer is used again for the next line.
        line.clear();
        line.shrink_to(ROOM);
        self.line = line;
        true
    }
}

impl Head {
    fn read(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return;
        };
        let (name, value) = line.split_at(colon);
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            let chunked = value.get(1..).unwrap_or_default().trim_ascii();
            self.odd_encoding |=
                self.transfer_encoding || !chunked.eq_ignore_ascii_case(b"chunked");
            self.transfer_encoding = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let length = std::str::from_utf8(value.trim_ascii_start().get(1..).unwrap_or_default());
            // Not a number: hyper refuses it.
            self.content_length = length
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .or(Some(0));
        }
    }
}

/// The size before a chunk's extensions, in hexadecimal.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOTH: [&str; 6] = [
        "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: a\r\ncontent-length:5\r\n\r\n",
        "POST / HTTP/1.1\nTRANSFER-ENCODING: chunked\nContent-Length: 5\n\n",
        "\r\nPOST / HTTP/1.1\r\nContent-Length: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    ];
    /// Requests that one connection may carry one after the other, with bodies that look like heads.
    const FINE: [&str; 5] = [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 49\r\n\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1b;a=b\r\nX: y\r\nContent-Length: 1\r\n\r\n\r\n0\r\nContent-Length: 7\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    ];

    fn passes(framing: &mut Framing, bytes: &[u8], piece: usize) -> bool {
        bytes
            .chunks(piece)
            .all(|bytes| framing.feed(bytes) == Verdict::Pass)
    }

    proptest! {
        #[test]
        fn only_the_ambiguous_head_is_noticed_however_it_is_cut(
            before in prop::collection::vec(0..FINE.len(), 0..6),
            both in 0..BOTH.len(),
            piece in 1_usize..64,
        ) {
            let mut framing = Framing::default();
            let fine: String = before.into_iter().map(|index| FINE[index]).collect();
            prop_assert!(passes(&mut framing, fine.as_bytes(), piece));
            prop_assert!(!passes(&mut framing, BOTH[both].as_bytes(), piece));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut framing = Framing::default();
            framing.feed(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
            framing.feed(&bytes);
        }
    }
}
