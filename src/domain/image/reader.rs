//! Checks the blocks of an image as its bytes arrive, from the signature to the end marker, without decoding pixels.
//!
//! - Lengths in the data are not trusted: bytes are counted as they arrive. At most 24 are held between calls.
//! - Bytes after the end of the image are ignored: cameras put previews there.
//! - Hand-written, since uploads are not held in memory: `imagesize` and the decoders of JPEG and WebP need a seekable
//!   file, and `imagesize` reads only headers.

use ImageType::{Gif, Jpeg, Png, WebP};
use Refusal::{Broken, EndsEarly, NotAnImage, TooManyPixels};
use crc32fast::Hasher;
use memchr::memchr;

use super::{Facts, ImageType, MAX_SIDE};

/// First bytes of each type. No image is shorter than 13 bytes.
#[rustfmt::skip]
const SIGNATURES: [(&[u8], ImageType); 5] =
    [(b"\x89PNG\r\n\x1A\n", Png), (b"\xFF\xD8\xFF", Jpeg), (b"GIF87a", Gif), (b"GIF89a", Gif), (b"RIFF", WebP)];
/// Maximum number of scans of a JPEG. A progressive one has about ten, and a decoder processes all pixels in each.
const MAX_SCANS: u64 = 64;

/// Reason for which bytes are rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not an image of a supported type.
    #[error("must be a PNG, JPEG, GIF or WebP image")]
    NotAnImage,
    /// Incomplete image.
    #[error("must be a complete image; it ends early")]
    EndsEarly,
    /// Malformed image.
    #[error("must be a valid image: {0}")]
    Broken(&'static str),
    /// Wider or higher than [`MAX_SIDE`].
    #[error("must be at most {MAX_SIDE} pixels wide and high")]
    TooManyPixels,
}

/// Length of the head of a block, and of the data to skip after it. [`EndsEarly`] asks for more bytes of the head.
type Block = Result<(usize, u64), Refusal>;

/// Incremental reader of an image, for chunks of any size.
#[derive(Default)]
pub struct Reader {
    /// Incomplete head of a block.
    held: Vec<u8>,
    /// Number of bytes to skip before the next block.
    skip: u64,
    kind: Option<ImageType>,
    /// Properties in the header, once it has been read.
    facts: Option<Facts>,
    /// Number of scans of a JPEG, frames of an animation, or other blocks with pixels.
    pixel_blocks: u64,
    is_complete: bool,
    /// Within the sub-blocks of a GIF, or after the start of a WebP animation.
    in_frames: bool,
    /// Checksum of the PNG chunk.
    crc: Hasher,
    /// Number of bytes left in the WebP container.
    left: u64,
}

impl Reader {
    /// Reads the next bytes. Fails as soon as they cannot be those of an image.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        let joined = [&self.held, bytes].concat();
        let mut rest = &joined[..];
        loop {
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
            match block {
                Ok((head, data)) => (rest, self.skip) = (&rest[head..], data),
                Err(EndsEarly) => break,
                Err(refusal) => return Err(refusal),
            }
        }
        self.held = rest.to_vec();
        Ok(())
    }

    /// Returns the properties of the image after its last byte. Fails if it is incomplete.
    pub fn finish(self) -> Result<Facts, Refusal> {
        self.facts.filter(|_| self.is_complete).ok_or(EndsEarly)
    }

    fn signature(&mut self, bytes: &[u8]) -> Block {
        let begins = |signature: &[u8]| signature.iter().zip(bytes).all(|(a, b)| a == b);
        let known = SIGNATURES.iter().find(|(signature, _)| begins(signature));
        let (_, kind) = *known.ok_or(NotAnImage)?;
        let head: &[u8; 13] = bytes.first_chunk().ok_or(EndsEarly)?;
        self.kind = Some(kind);
        match kind {
            // The last 4 bytes precede the first chunk in place of a checksum.
            Png => Ok((4, 0)),
            Jpeg => Ok((2, 0)),
            Gif => {
                self.set_facts(Gif, little_endian(&head[6..8]), little_endian(&head[8..10]))?;
                Ok((13, palette(head[10])))
            }
            WebP if head[8..12] != *b"WEBP" => Err(NotAnImage),
            WebP => {
                // The length includes `WEBP`.
                self.left = u64::from(little_endian(&head[4..8])).saturating_sub(4);
                Ok((12, 0))
            }
        }
    }

    /// Reads the checksum of a chunk, and the length and type of the next (PNG: ISO/IEC 15948 §5).
    fn png(&mut self, bytes: &[u8]) -> Block {
        let head: &[u8; 16] = bytes.first_chunk().ok_or(EndsEarly)?;
        let is_first = self.facts.is_none();
        if !is_first && head[..4] != std::mem::take(&mut self.crc).finalize().to_be_bytes() {
            return Err(Broken("a checksum is wrong"));
        }
        match &head[8..12] {
            b"IHDR" if is_first => {
                let header = bytes.get(12..25).ok_or(EndsEarly)?;
                self.set_facts(Png, big_endian(&header[..4]), big_endian(&header[4..8]))?;
                if !matches!(
                    header[8..],
                    [1 | 2 | 4 | 8 | 16, 0 | 2 | 3 | 4 | 6, 0, 0, 0 | 1]
                ) {
                    return Err(Broken("the IHDR chunk is invalid"));
                }
            }
            _ if is_first => return Err(Broken("the IHDR chunk is not first")),
            b"IDAT" => self.pixel_blocks += 1,
            b"IEND" if head[4..] == *b"\0\0\0\0IEND\xAEB`\x82" => return self.end(16),
            b"IHDR" | b"IEND" => return Err(Broken("a chunk is invalid")),
            _ => {}
        }
        self.crc.update(&head[8..12]);
        Ok((12, big_endian(&head[4..8]).into()))
    }

    /// Reads a segment, or entropy-coded bytes once a scan has begun (JPEG: ITU-T T.81, annex B).
    fn jpeg(&mut self, bytes: &[u8]) -> Block {
        let (code, length) = match *bytes {
            // A marker may begin with any number of FF bytes.
            [0xFF, 0xFF, ..] => return Ok((1, 0)),
            // A stuffed FF, or a restart: the scan continues.
            [0xFF, 0x00 | 0xD0..=0xD7, ..] if self.pixel_blocks > 0 => return Ok((2, 0)),
            [0xFF, 0xD9, ..] => return self.end(2),
            [0xFF, code, a, b, ..] => (code, big_endian(&[a, b])),
            [] | [0xFF, ..] => return Err(EndsEarly),
            _ if self.pixel_blocks == 0 => return Err(Broken("a marker is missing")),
            _ => return Ok((memchr(0xFF, bytes).unwrap_or(bytes.len()), 0)),
        };
        match code {
            0xC0..=0xC2 => match *bytes.get(4..10).ok_or(EndsEarly)? {
                [8, a, b, c, d, components @ (1 | 3 | 4)]
                    if self.facts.is_none() && length == 8 + 3 * u32::from(components) =>
                {
                    self.set_facts(Jpeg, big_endian(&[c, d]), big_endian(&[a, b]))?;
                }
                _ => return Err(Broken("a frame header is invalid")),
            },
            0xDA if self.facts.is_none() => return Err(Broken("a scan precedes the frame header")),
            0xDA if self.pixel_blocks == MAX_SCANS => return Err(Broken("it has too many scans")),
            0xDA if length >= 2 => self.pixel_blocks += 1,
            0xC4 | 0xCC | 0xDB..=0xFE if length >= 2 => {}
            0xC3..=0xCF => return Err(Broken("it is neither baseline nor progressive")),
            _ => return Err(Broken("a segment is invalid")),
        }
        Ok((2, length.into()))
    }

    /// Reads the head of a block, or the length of a sub-block (GIF89a, appendix B).
    fn gif(&mut self, bytes: &[u8]) -> Block {
        let (in_frames, head, data) = match *bytes {
            [length, ..] if self.in_frames => (length > 0, 1, length.into()),
            [0x21, _, ..] => (true, 2, 0),
            [0x2C, _, _, _, _, a, b, c, d, packed, ..] => {
                check_sides(little_endian(&[a, b]), little_endian(&[c, d]))?;
                self.pixel_blocks += 1;
                // The LZW code size follows the palette.
                (true, 10, palette(packed) + 1)
            }
            [0x3B, ..] => return self.end(1),
            [] | [0x21 | 0x2C, ..] => return Err(EndsEarly),
            _ => return Err(Broken("a block type is unknown")),
        };
        self.in_frames = in_frames;
        Ok((head, data))
    }

    /// Reads the head of a chunk, also within the frames of an animation (WebP: RFC 9649 §2).
    fn webp(&mut self, bytes: &[u8]) -> Block {
        if self.left == 0 {
            return self.end(0);
        }
        let head: &[u8; 8] = bytes.first_chunk().ok_or(EndsEarly)?;
        let min_length = match &head[..4] {
            b"VP8X" | b"VP8 " => 10,
            b"VP8L" => 5,
            b"ANMF" => 16,
            _ => 0,
        };
        let data = bytes.get(8..8 + min_length).ok_or(EndsEarly)?;
        let length = u64::from(little_endian(&head[4..]));
        if length < min_length as u64 {
            return Err(Broken("a chunk is too short"));
        }
        // Chunks are padded to an even length.
        let mut skip = length + length % 2;
        match (&head[..4], data) {
            (b"VP8X", [_, _, _, _, size @ ..]) => {
                let (width, height) = (little_endian(&size[..3]), little_endian(&size[3..]));
                self.set_facts(WebP, width + 1, height + 1)?;
            }
            // A key frame, and its start code.
            (b"VP8 ", &[tag, _, _, 0x9D, 0x01, 0x2A, a, b, c, d]) if tag & 1 == 0 => {
                let (width, height) = (little_endian(&[a, b & 63]), little_endian(&[c, d & 63]));
                self.set_facts(WebP, width, height)?;
                self.pixel_blocks += 1;
            }
            (b"VP8L", &[0x2F, a, b, c, d]) => {
                let bits = little_endian(&[a, b, c, d]);
                self.set_facts(WebP, (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1)?;
                self.pixel_blocks += 1;
            }
            // The chunks of the frame follow.
            (b"ANMF", _) if self.facts.is_some() => (self.in_frames, skip) = (true, 16),
            _ if min_length > 0 || self.facts.is_none() => {
                return Err(Broken("a chunk is invalid or out of place"));
            }
            _ => {}
        }
        let left = self.left.checked_sub(8 + skip);
        self.left = left.ok_or(Broken("a chunk is longer than the file"))?;
        Ok((8, skip))
    }

    /// Sets the properties of the image. Its parts must have the same size, or at most that within an animation:
    /// decoding is limited by the size of the image.
    fn set_facts(&mut self, kind: ImageType, width: u32, height: u32) -> Result<(), Refusal> {
        check_sides(width, height)?;
        let part = Facts {
            kind,
            width,
            height,
        };
        let image = *self.facts.get_or_insert(part);
        let fits = self.in_frames && width <= image.width && height <= image.height;
        let is_consistent = fits || part == image;
        is_consistent
            .then_some(())
            .ok_or(Broken("the sizes of its parts differ"))
    }

    fn end(&mut self, head: usize) -> Block {
        self.is_complete = self.pixel_blocks > 0;
        let end = self.is_complete.then_some((head, u64::MAX));
        end.ok_or(Broken("it has no pixels"))
    }
}

fn check_sides(width: u32, height: u32) -> Result<(), Refusal> {
    match (width.min(height), width.max(height)) {
        (0, _) => Err(Broken("it has no pixels")),
        (_, ..=MAX_SIDE) => Ok(()),
        _ => Err(TooManyPixels),
    }
}

/// Returns the length of the palette that a packed field of a GIF announces.
fn palette(packed: u8) -> u64 {
    u64::from(packed >> 7) * (6 << (packed & 7))
}

fn big_endian(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0, |number, byte| (number << 8) | u32::from(*byte))
}

fn little_endian(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .rfold(0, |number, byte| (number << 8) | u32::from(*byte))
}
