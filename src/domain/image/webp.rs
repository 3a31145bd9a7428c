//! Reads the structure of a WebP: a RIFF container of chunks (RFC 9649 §2), with its length in the header.

use super::{
    ImageType,
    walk::{Refusal, Step, Walk, check_sides, end},
};

#[derive(Default)]
pub(super) struct WebP {
    place: Place,
    /// Bytes left in the container.
    left: u64,
    /// Size of the canvas, which an extended file declares, or else of the image.
    canvas: Option<(u32, u32)>,
    extended: bool,
    has_image: bool,
}

#[derive(Default)]
enum Place {
    #[default]
    Container,
    ChunkHead,
    /// First bytes of a chunk of this kind, and the number of bytes after them.
    ChunkBegin([u8; 4], u64),
    Chunk,
}

const TOO_SHORT: Refusal = Refusal::Broken("a chunk is too short");

impl Walk for WebP {
    fn begin(&self) -> Step {
        Step::Show(12)
    }

    fn next(&mut self, shown: &[u8]) -> Result<Step, Refusal> {
        match self.place {
            Place::Container => {
                let &[_, _, _, _, a, b, c, d, ..] = shown else {
                    return Err(Refusal::EndsEarly);
                };
                // The length includes `WEBP`, which was shown.
                self.left = u64::from(u32::from_le_bytes([a, b, c, d]))
                    .checked_sub(4)
                    .ok_or(TOO_SHORT)?;
                self.next_chunk()
            }
            Place::ChunkHead => self.head(shown),
            Place::ChunkBegin(kind, rest) => {
                self.chunk(kind, shown)?;
                self.place = Place::Chunk;
                Ok(Step::Pass(rest))
            }
            Place::Chunk => self.next_chunk(),
        }
    }
}

impl WebP {
    fn next_chunk(&mut self) -> Result<Step, Refusal> {
        if self.left == 0 {
            return match self.canvas {
                Some(canvas) if self.has_image => Ok(end(ImageType::WebP, canvas)),
                _ => Err(Refusal::Broken("it has no pixels")),
            };
        }
        self.take(8)?;
        self.place = Place::ChunkHead;
        Ok(Step::Show(8))
    }

    fn take(&mut self, length: u64) -> Result<(), Refusal> {
        self.left = self
            .left
            .checked_sub(length)
            .ok_or(Refusal::Broken("a chunk is longer than the file"))?;
        Ok(())
    }

    fn head(&mut self, shown: &[u8]) -> Result<Step, Refusal> {
        let (Some(&kind), Some(&length)) = (shown.first_chunk(), shown.last_chunk()) else {
            return Err(Refusal::EndsEarly);
        };
        let length = u64::from(u32::from_le_bytes(length));
        // Chunks are padded to an even length.
        let padded = length + length % 2;
        self.take(padded)?;
        let is_first = self.canvas.is_none();
        let begin: u64 = match &kind {
            b"VP8X" if is_first => 10,
            b"VP8 " if is_first || (self.extended && !self.has_image) => 10,
            b"VP8L" if is_first || (self.extended && !self.has_image) => 5,
            b"ANMF" if self.extended => 16,
            b"VP8X" | b"VP8 " | b"VP8L" | b"ANMF" => {
                return Err(Refusal::Broken("a chunk is out of place"));
            }
            _ if is_first => return Err(Refusal::Broken("a chunk is out of place")),
            _ => 0,
        };
        if length < begin {
            return Err(TOO_SHORT);
        }
        if begin == 0 {
            self.place = Place::Chunk;
            return Ok(Step::Pass(padded));
        }
        self.place = Place::ChunkBegin(kind, padded - begin);
        Ok(Step::Show(usize::try_from(begin).unwrap_or_default()))
    }

    fn chunk(&mut self, kind: [u8; 4], shown: &[u8]) -> Result<(), Refusal> {
        let pixels = |at: usize| {
            let bytes = shown.get(at..at + 3).ok_or(Refusal::EndsEarly)?;
            Ok(1 + u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]))
        };
        let canvas = match (&kind, shown) {
            (b"VP8X", _) => {
                self.extended = true;
                (pixels(4)?, pixels(7)?)
            }
            (b"ANMF", _) => {
                check_sides(pixels(6)?, pixels(9)?)?;
                self.has_image = true;
                return Ok(());
            }
            // A key frame, and its start code.
            (b"VP8 ", &[tag, _, _, 0x9D, 0x01, 0x2A, a, b, c, d]) if tag & 1 == 0 => {
                self.has_image = true;
                let pixels = |low, high| u32::from(u16::from_le_bytes([low, high]) & 0x3FFF);
                (pixels(a, b), pixels(c, d))
            }
            (b"VP8L", &[0x2F, a, b, c, d]) => {
                self.has_image = true;
                let bits = u32::from_le_bytes([a, b, c, d]);
                ((bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1)
            }
            _ => return Err(Refusal::Broken("the image data is invalid")),
        };
        check_sides(canvas.0, canvas.1)?;
        if *self.canvas.get_or_insert(canvas) != canvas {
            return Err(Refusal::Broken(
                "the image size differs from the canvas size",
            ));
        }
        Ok(())
    }
}
