//! Checks the blocks of an image as its bytes arrive, from the signature to the end marker, without decoding pixels.
//!
//! - Lengths in the data are not trusted. At most 31 bytes are held between calls, and each block consumes at least one.
//! - The sides of the canvas are limited and all frames are within it: its size bounds the memory that decoding needs.
//! - Bytes after the end of the image are ignored: cameras put previews there.
//! - The code is hand-written because uploads are streamed. `imagesize` and the decoders of JPEG and WebP need a seekable
//!   file, `png` holds metadata of any length in memory, and `gif` allocates tables for each frame.

use ImageType::{Gif, Jpeg, Png, WebP};
use Refusal::{Broken, EndsEarly, NotAnImage, TooManyPixels};
use crc32fast::Hasher;
use memchr::memchr;

use crate::domain::image::{Facts, ImageType, MAX_SIDE};

/// First bytes of each type. No image is shorter than 13 bytes.
#[rustfmt::skip]
const SIGNATURES: [(&[u8], ImageType); 5] =
    [(b"\x89PNG\r\n\x1A\n", Png), (b"\xFF\xD8\xFF", Jpeg), (b"GIF87a", Gif), (b"GIF89a", Gif), (b"RIFF", WebP)];
/// Maximum number of scans of a JPEG. A progressive one has about ten, or 18 with four channels.
const MAX_SCANS: u64 = 64;
/// Maximum number of pixels in all scans of a JPEG: 20 scans of the largest. A decoder processes all pixels in each scan, even
/// if it has no data.
const MAX_SCANNED: u64 = 20 * MAX_SIDE as u64 * MAX_SIDE as u64;

/// Reason for which bytes are rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum Refusal {
    #[error("must be a PNG, JPEG, GIF or WebP image")]
    NotAnImage,
    #[error("must be a complete image; it ends early")]
    EndsEarly,
    #[error("must be a valid image: {0}")]
    Broken(&'static str),
    #[error("must be at most {MAX_SIDE} pixels wide and high")]
    TooManyPixels,
}

/// Length of the head of a block, and of the data to skip after it. [`EndsEarly`] asks for more bytes of the head.
type Block = Result<(usize, u64), Refusal>;
/// Part of the image that comes next. `Block` is a segment of a JPEG, a chunk of a PNG or WebP, or a block of a GIF.
#[rustfmt::skip]
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Next { #[default] Block, Scan, CodeSize, SubBlock, Nothing }

/// Incremental reader of an image, for chunks of any size.
#[derive(Default)]
pub struct Reader {
    /// Incomplete head of a block.
    held: Vec<u8>,
    /// Number of bytes to skip before the next part.
    skip: u64,
    next: Next,
    kind: Option<ImageType>,
    /// Properties in the header, once it has been read.
    facts: Option<Facts>,
    /// Width and height of the pixels that must follow, and `true` if they belong to a frame of a WebP animation.
    needed: Option<((u32, u32), bool)>,
    scans: u64,
    /// Checksum of the PNG chunk.
    crc: Hasher,
    /// Set until the palette that the PNG needs has been read.
    lacks_palette: bool,
    /// First two bytes of the PNG's pixels: the header of a zlib stream. Chunks may divide them.
    zlib: Vec<u8>,
    /// Numbers of bytes left in the WebP container, and in the frame of its animation.
    left: [u64; 2],
}

impl Reader {
    /// Reads the next bytes. Fails as soon as they cannot be those of an image.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        let held = std::mem::take(&mut self.held);
        let joined = (!held.is_empty()).then(|| [&held, bytes].concat());
        let mut rest = joined.as_deref().unwrap_or(bytes);
        while self.next != Next::Nothing {
            let skipped = usize::try_from(self.skip).map_or(rest.len(), |it| it.min(rest.len()));
            if self.kind == Some(Png) {
                self.crc.update(&rest[..skipped]);
            }
            (rest, self.skip) = (&rest[skipped..], self.skip - skipped as u64);
            if self.skip > 0 {
                break;
            }
            let block = match self.kind {
                None => self.signature(rest),
                Some(Png) => self.png(rest),
                Some(Jpeg) => self.jpeg(rest),
                Some(Gif) => self.gif(rest),
                Some(WebP) => self.webp(rest),
            };
            if block == Err(EndsEarly) {
                self.held = rest.to_vec();
                break;
            }
            (rest, self.skip) = block.map(|(head, data)| (&rest[head..], data))?;
        }
        Ok(())
    }

    /// Returns the properties of the image after its last byte. Fails if it is incomplete.
    pub fn finish(self) -> Result<Facts, Refusal> {
        let is_complete = self.next == Next::Nothing;
        self.facts.filter(|_| is_complete).ok_or(EndsEarly)
    }

    fn signature(&mut self, bytes: &[u8]) -> Block {
        let mut known = SIGNATURES.iter();
        let known = known.find(|(it, _)| bytes.starts_with(it) || it.starts_with(bytes));
        let (_, kind) = *known.ok_or(NotAnImage)?;
        let head: &[u8; 13] = bytes.first_chunk().ok_or(EndsEarly)?;
        self.kind = Some(kind);
        match kind {
            // The rest of the signature precedes the first chunk in place of a checksum.
            Png => Ok((4, 0)),
            Jpeg => Ok((2, 0)),
            Gif => {
                self.set_canvas((little_endian(&head[6..8]), little_endian(&head[8..10])))?;
                Ok((13, palette(head[10])))
            }
            WebP if head[8..12] != *b"WEBP" => Err(NotAnImage),
            WebP => {
                // The length includes `WEBP`.
                self.left[0] = u64::from(little_endian(&head[4..8])).saturating_sub(4);
                Ok((12, 0))
            }
        }
    }

    /// Reads the checksum of a chunk, and the length and type of the next (PNG: ISO/IEC 15948 §5).
    fn png(&mut self, bytes: &[u8]) -> Block {
        let head: &[u8; 16] = bytes.first_chunk().ok_or(EndsEarly)?;
        let (length, kind) = (big_endian(&head[4..8]), &head[8..12]);
        let crc = self.crc.clone().finalize().to_be_bytes();
        check(self.facts.is_none() || head[..4] == crc, "wrong checksum")?;
        match kind {
            _ if length >> 31 > 0 => return Err(Broken("a chunk length is invalid")),
            b"IHDR" if self.facts.is_none() && length == 13 => {
                let header = bytes.get(12..25).ok_or(EndsEarly)?;
                self.set_canvas((big_endian(&header[..4]), big_endian(&header[4..8])))?;
                self.lacks_palette = match header[8..] {
                    [8 | 16, 0 | 2 | 4 | 6, 0, 0, 0 | 1] | [1 | 2 | 4, 0, 0, 0, 0 | 1] => false,
                    [1 | 2 | 4 | 8, 3, 0, 0, 0 | 1] => true,
                    _ => return Err(Broken("the IHDR chunk is invalid")),
                };
            }
            _ if self.facts.is_none() => return Err(Broken("the IHDR chunk is missing")),
            b"IDAT" if self.lacks_palette => return Err(Broken("the palette is missing")),
            b"IDAT" => {
                let lacking = (2 - self.zlib.len()).min(length as usize);
                let more = bytes.get(12..12 + lacking).ok_or(EndsEarly)?;
                self.zlib.extend_from_slice(more);
                if let [method, flags] = self.zlib[..] {
                    check(
                        is_zlib(method, flags),
                        "the pixels are not compressed by zlib",
                    )?;
                    self.needed = None;
                }
            }
            b"fcTL" if length == 26 => {
                let fields = bytes.get(16..32).ok_or(EndsEarly)?;
                let number = |at: usize| big_endian(&fields[at..at + 4]);
                self.check_frame((number(8), number(12)), (number(0), number(4)))?;
            }
            b"PLTE" => self.lacks_palette &= length == 0,
            b"IEND" if head[4..] == *b"\0\0\0\0IEND\xAEB`\x82" => return self.end(16),
            b"IHDR" | b"IEND" | b"fcTL" => return Err(Broken("a chunk is invalid or repeated")),
            _ => check(kind.iter().all(u8::is_ascii_alphabetic), "wrong chunk type")?,
        }
        self.crc = Hasher::new();
        self.crc.update(kind);
        Ok((12, length.into()))
    }

    /// Reads a segment, or entropy-coded bytes of a scan (JPEG: ITU-T T.81, annex B).
    fn jpeg(&mut self, bytes: &[u8]) -> Block {
        let (code, length) = match *bytes {
            // A marker may begin with any number of FF bytes. A scan continues after a stuffed FF or a restart.
            [0xFF, 0xFF, ..] => return Ok((1, 0)),
            [0xFF, 0x00 | 0xD0..=0xD7, ..] if self.next == Next::Scan => return Ok((2, 0)),
            [0xFF, 0xD9, ..] => return self.end(2),
            [0xFF, code, a, b, ..] => (code, big_endian(&[a, b])),
            [] | [0xFF, ..] => return Err(EndsEarly),
            _ if self.next == Next::Block => return Err(Broken("a marker is missing")),
            _ => return Ok((memchr(0xFF, bytes).unwrap_or(bytes.len()), 0)),
        };
        self.next = Next::Block;
        match code {
            _ if length < 2 => return Err(Broken("a segment length is invalid")),
            0xC0..=0xC2 => match *bytes.get(4..10).ok_or(EndsEarly)? {
                [8, a, b, c, d, count @ (1 | 3 | 4)] if length == 8 + 3 * u32::from(count) => {
                    check(self.facts.is_none(), "it has two frames")?;
                    self.set_canvas((big_endian(&[c, d]), big_endian(&[a, b])))?;
                }
                _ => return Err(Broken("the frame header is invalid")),
            },
            0xDA => {
                let facts = self.facts.ok_or(Broken("the frame header is missing"))?;
                let pixels = u64::from(facts.width) * u64::from(facts.height);
                (self.next, self.scans, self.needed) = (Next::Scan, self.scans + 1, None);
                let is_many = self.scans > MAX_SCANS || self.scans * pixels > MAX_SCANNED;
                check(!is_many, "it has too many scans")?;
            }
            0xC4 | 0xC8 | 0xCC | 0xDB..=0xFE => {}
            0xC3..=0xCF => return Err(Broken("it is neither baseline nor progressive")),
            _ => return Err(Broken("a marker is out of place")),
        }
        Ok((2, length.into()))
    }

    /// Reads the head of a block, or the length of a sub-block (GIF89a, appendix B).
    fn gif(&mut self, bytes: &[u8]) -> Block {
        let (next, head, data) = match (self.next, bytes) {
            // A size of 1 is not used, even for two colours (appendix F).
            (Next::CodeSize, [2..=8, ..]) => (Next::SubBlock, 1, 0),
            (Next::CodeSize, [_, ..]) => return Err(Broken("the LZW code size is invalid")),
            (Next::SubBlock, [0, ..]) => (Next::Block, 1, 0),
            (Next::SubBlock, [length, ..]) => (Next::SubBlock, 1, u64::from(*length)),
            (_, [0x21, _, ..]) => (Next::SubBlock, 2, 0),
            (_, [0x2C, fields @ ..]) if fields.len() >= 9 => {
                let number = |at: usize| little_endian(&fields[at..at + 2]);
                self.check_frame((number(0), number(2)), (number(4), number(6)))?;
                self.needed = None;
                (Next::CodeSize, 10, palette(fields[8]))
            }
            (_, [0x3B, ..]) => return self.end(1),
            (_, [] | [0x21 | 0x2C, ..]) => return Err(EndsEarly),
            _ => return Err(Broken("a block type is unknown")),
        };
        self.next = next;
        Ok((head, data))
    }

    /// Reads the head of a chunk in the container, or in a frame of it (WebP: RFC 9649 §2).
    fn webp(&mut self, bytes: &[u8]) -> Block {
        if self.left == [0, 0] {
            return self.end(0);
        }
        let head: &[u8; 8] = bytes.first_chunk().ok_or(EndsEarly)?;
        let (kind, length) = (&head[..4], u64::from(little_endian(&head[4..])));
        let min_length = match kind {
            b"VP8X" | b"VP8 " => 10,
            b"VP8L" => 5,
            b"ANMF" => 16,
            _ => 0,
        };
        let fields = bytes.get(8..8 + min_length).ok_or(EndsEarly)?;
        let in_frame = self.left[1] > 0;
        let left = &mut self.left[usize::from(in_frame)];
        // Chunks are padded to an even length.
        let padded = length + length % 2;
        let is_valid = length >= min_length as u64 && *left >= 8 + padded;
        check(is_valid, "a chunk length is invalid")?;
        *left -= 8 + padded;
        let number = |at: usize| little_endian(&fields[at..at + 3]);
        let size = match (kind, fields) {
            (b"VP8X", _) if self.facts.is_none() => {
                self.set_canvas((number(4) + 1, number(7) + 1))?;
                return Ok((8, padded));
            }
            (b"ANMF", _) if !in_frame && self.needed.is_none_or(|(_, in_frame)| !in_frame) => {
                let size = (number(6) + 1, number(9) + 1);
                self.check_frame((2 * number(0), 2 * number(3)), size)?;
                (self.needed, self.left[1]) = (Some((size, true)), padded - 16);
                return Ok((8 + 16, 0));
            }
            // A key frame, and its start code.
            (b"VP8 ", &[tag, _, _, 0x9D, 0x01, 0x2A, a, b, c, d]) if tag & 1 == 0 => {
                (little_endian(&[a, b & 63]), little_endian(&[c, d & 63]))
            }
            (b"VP8L", [0x2F, bits @ ..]) => {
                let bits = little_endian(bits);
                ((bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1)
            }
            _ if min_length == 0 && self.facts.is_some() => return Ok((8, padded)),
            _ => return Err(Broken("a chunk is invalid or out of place")),
        };
        if self.facts.is_none() {
            self.set_canvas(size)?;
        }
        // Decoders allocate memory by the size in the image data.
        check(self.needed.take() == Some((size, in_frame)), "sizes differ")?;
        Ok((8, padded))
    }

    fn set_canvas(&mut self, (width, height): (u32, u32)) -> Result<(), Refusal> {
        self.needed = Some(((width, height), false));
        self.facts = self.kind.map(|kind| Facts {
            kind,
            width,
            height,
        });
        self.check_frame((0, 0), (width, height))?;
        let is_small = width.max(height) <= MAX_SIDE;
        is_small.then_some(()).ok_or(TooManyPixels)
    }

    fn check_frame(&self, (x, y): (u32, u32), (w, h): (u32, u32)) -> Result<(), Refusal> {
        let (right, bottom) = (x.saturating_add(w), y.saturating_add(h));
        let fits = (self.facts).is_some_and(|it| right <= it.width && bottom <= it.height);
        let is_valid = w > 0 && h > 0 && fits;
        check(is_valid, "a frame has no pixels or exceeds the canvas")
    }

    fn end(&mut self, head: usize) -> Block {
        self.next = Next::Nothing;
        let is_complete = self.facts.is_some() && self.needed.is_none();
        check(is_complete, "it has no pixels").map(|()| (head, 0))
    }
}

fn check(is_valid: bool, otherwise: &'static str) -> Result<(), Refusal> {
    is_valid.then_some(()).ok_or(Broken(otherwise))
}

/// Checks the header of a zlib stream (RFC 1950 §2.2): deflate, a window of at most 32 KiB, and no preset dictionary.
fn is_zlib(method: u8, flags: u8) -> bool {
    method & 15 == 8
        && method >> 4 <= 7
        && flags & 32 == 0
        && u16::from_be_bytes([method, flags]).is_multiple_of(31)
}

fn palette(packed: u8) -> u64 {
    u64::from(packed >> 7) * (6 << (packed & 7))
}

fn big_endian(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |n, byte| (n << 8) | u32::from(*byte))
}

fn little_endian(bytes: &[u8]) -> u32 {
    bytes.iter().rfold(0, |n, byte| (n << 8) | u32::from(*byte))
}
