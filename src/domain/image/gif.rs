//! Reads the structure of a GIF (GIF89a, appendix B).
//!
//! A header, then images and extensions in sub-blocks of up to 255 bytes, up to the trailer.

use super::{
    ImageType,
    walk::{Refusal, Step, Walk, check_sides, end},
};

#[derive(Default)]
pub(super) struct Gif {
    place: Place,
    size: (u32, u32),
    has_image: bool,
}

#[derive(Default)]
enum Place {
    #[default]
    Header,
    Palette,
    Block,
    Label,
    Image,
    ImagePalette,
    CodeSize,
    SubBlockSize,
    SubBlock,
}

impl Walk for Gif {
    fn begin(&self) -> Step {
        Step::Show(13)
    }

    fn next(&mut self, shown: &[u8]) -> Result<Step, Refusal> {
        let step;
        (self.place, step) = match (&self.place, shown) {
            (Place::Header, &[_, _, _, _, _, _, a, b, c, d, packed, _, _]) => {
                self.size = (side(a, b), side(c, d));
                check_sides(self.size.0, self.size.1)?;
                (Place::Palette, Step::Pass(palette(packed)))
            }
            (Place::Palette, _) | (Place::SubBlockSize, [0]) => (Place::Block, Step::Show(1)),
            (Place::Block, [0x21]) => (Place::Label, Step::Show(1)),
            (Place::Block, [0x2C]) => (Place::Image, Step::Show(9)),
            (Place::Block, [0x3B]) if self.has_image => return Ok(end(ImageType::Gif, self.size)),
            (Place::Block, [0x3B]) => return Err(Refusal::Broken("it has no pixels")),
            (Place::Block, _) => {
                return Err(Refusal::Broken("a block type is unknown"));
            }
            (Place::Image, &[_, _, _, _, a, b, c, d, packed]) => {
                check_sides(side(a, b), side(c, d))?;
                self.has_image = true;
                (Place::ImagePalette, Step::Pass(palette(packed)))
            }
            (Place::ImagePalette, _) => (Place::CodeSize, Step::Show(1)),
            (Place::CodeSize, [1..=11]) | (Place::Label | Place::SubBlock, _) => {
                (Place::SubBlockSize, Step::Show(1))
            }
            (Place::CodeSize, _) => return Err(Refusal::Broken("the LZW code size is invalid")),
            (Place::SubBlockSize, &[size]) => (Place::SubBlock, Step::Pass(size.into())),
            (Place::Header | Place::Image | Place::SubBlockSize, _) => {
                return Err(Refusal::EndsEarly);
            }
        };
        Ok(step)
    }
}

const fn side(low: u8, high: u8) -> u32 {
    u16::from_le_bytes([low, high]) as u32
}

/// Returns the number of bytes of the palette that a packed field announces.
const fn palette(packed: u8) -> u64 {
    if packed & 0x80 == 0 {
        0
    } else {
        3 << ((packed & 7) + 1)
    }
}
