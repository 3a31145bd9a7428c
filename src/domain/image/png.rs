//! Reads the structure of a PNG (ISO/IEC 15948 §5).
//!
//! A signature, then chunks of length, type, data and CRC, up to `IEND`.

use crc32fast::Hasher;

use super::{
    ImageType,
    walk::{Refusal, Step, Walk, check_sides, end},
};

pub(super) const SIGNATURE: &[u8; 8] = b"\x89PNG\r\n\x1a\n";

#[derive(Default)]
pub(super) struct Png {
    place: Place,
    size: Option<(u32, u32)>,
    /// Set if colours are looked up in a palette.
    indexed: bool,
    palette: bool,
    pixels: bool,
    chunk: [u8; 4],
    crc: Hasher,
}

#[derive(Default)]
enum Place {
    #[default]
    Signature,
    Head,
    Header,
    Data,
    Crc,
}

impl Walk for Png {
    fn begin(&self) -> Step {
        Step::Show(SIGNATURE.len())
    }

    fn next(&mut self, shown: &[u8]) -> Result<Step, Refusal> {
        let step;
        (self.place, step) = match self.place {
            Place::Signature => (Place::Head, Step::Show(8)),
            Place::Head => self.head(shown)?,
            Place::Header => {
                self.crc.update(shown);
                self.header(shown)?;
                (Place::Crc, Step::Show(4))
            }
            Place::Data => (Place::Crc, Step::Show(4)),
            Place::Crc => {
                if shown != std::mem::take(&mut self.crc).finalize().to_be_bytes() {
                    return Err(Refusal::Broken("a checksum is wrong"));
                }
                match (&self.chunk, self.size) {
                    (b"IEND", Some(size)) if self.pixels => return Ok(end(ImageType::Png, size)),
                    (b"IEND", _) => return Err(Refusal::Broken("it has no pixels")),
                    _ => (Place::Head, Step::Show(8)),
                }
            }
        };
        Ok(step)
    }

    fn pass(&mut self, bytes: &[u8]) {
        self.crc.update(bytes);
    }
}

impl Png {
    fn head(&mut self, shown: &[u8]) -> Result<(Place, Step), Refusal> {
        let (length, chunk) = shown.split_first_chunk().ok_or(Refusal::EndsEarly)?;
        let length = u32::from_be_bytes(*length);
        self.chunk.copy_from_slice(chunk);
        self.crc.update(chunk);
        if length > 0x7FFF_FFFF || !chunk.iter().all(u8::is_ascii_alphabetic) {
            return Err(Refusal::Broken("a chunk header is invalid"));
        }
        match &self.chunk {
            b"IHDR" if self.size.is_none() && length == 13 => {
                return Ok((Place::Header, Step::Show(13)));
            }
            b"IHDR" => {
                return Err(Refusal::Broken(
                    "the IHDR chunk is repeated or has the wrong length",
                ));
            }
            _ if self.size.is_none() => return Err(Refusal::Broken("the IHDR chunk is not first")),
            b"IDAT" if self.indexed && !self.palette => {
                return Err(Refusal::Broken("the palette is missing"));
            }
            b"IDAT" => self.pixels |= length > 0,
            b"PLTE" => self.palette = true,
            b"IEND" if length > 0 => return Err(Refusal::Broken("the IEND chunk is not empty")),
            _ => {}
        }
        Ok((Place::Data, Step::Pass(length.into())))
    }

    fn header(&mut self, shown: &[u8]) -> Result<(), Refusal> {
        let (Some((width, rest)), Some(&[depth, colour, compression, filter, interlace])) =
            (shown.split_first_chunk(), shown.last_chunk())
        else {
            return Err(Refusal::EndsEarly);
        };
        let height = rest.first_chunk().ok_or(Refusal::EndsEarly)?;
        let size = (u32::from_be_bytes(*width), u32::from_be_bytes(*height));
        check_sides(size.0, size.1)?;
        let known = match colour {
            0 => matches!(depth, 1 | 2 | 4 | 8 | 16),
            3 => matches!(depth, 1 | 2 | 4 | 8),
            2 | 4 | 6 => matches!(depth, 8 | 16),
            _ => false,
        };
        if !known || compression != 0 || filter != 0 || interlace > 1 {
            return Err(Refusal::Broken("the IHDR chunk is invalid"));
        }
        self.size = Some(size);
        self.indexed = colour == 3;
        Ok(())
    }
}
