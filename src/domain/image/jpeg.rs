//! Reads the structure of a JPEG (ITU-T T.81, annex B).
//!
//! Segments of a marker and usually a length. A start of scan is followed by entropy-coded bytes of unknown length, up
//! to the next marker.

use super::{
    ImageType,
    walk::{Refusal, Step, Walk, check_sides, end},
};

/// Maximum number of scans. A progressive image has about ten, and a decoder processes all pixels in each.
const MAX_SCANS: u32 = 64;

#[derive(Default)]
pub(super) struct Jpeg {
    place: Place,
    size: Option<(u32, u32)>,
    scans: u32,
}

#[derive(Default)]
enum Place {
    #[default]
    Start,
    Mark,
    Code,
    /// Length of the segment with this code.
    Length(u8),
    /// Head of a frame, with the length of its segment.
    Frame(u64),
    Segment,
    ScanHead,
    Scan,
    /// After a byte FF within a scan.
    ScanCode,
}

impl Walk for Jpeg {
    fn begin(&self) -> Step {
        Step::Show(2)
    }

    fn next(&mut self, shown: &[u8]) -> Result<Step, Refusal> {
        let step;
        (self.place, step) = match (&self.place, shown) {
            (Place::Start | Place::Segment, _) => (Place::Mark, Step::Show(1)),
            (Place::Mark, [0xFF]) => (Place::Code, Step::Show(1)),
            (Place::Mark, _) => return Err(Refusal::Broken("a marker is missing")),
            (Place::Code, &[code]) => return self.code(code),
            (&Place::Length(code), &[high, low]) => self.length(code, [high, low])?,
            (&Place::Frame(length), shown) => {
                self.frame(shown, length)?;
                (Place::Segment, Step::Pass(length - 6))
            }
            (Place::ScanHead, _) => (Place::Scan, Step::PassMark),
            (Place::Scan, _) => (Place::ScanCode, Step::Show(1)),
            // A stuffed FF, or a restart: the scan continues.
            (Place::ScanCode, [0x00 | 0xD0..=0xD7]) => (Place::Scan, Step::PassMark),
            (Place::ScanCode, &[code]) => return self.code(code),
            (Place::Code | Place::Length(_) | Place::ScanCode, _) => {
                return Err(Refusal::EndsEarly);
            }
        };
        Ok(step)
    }
}

impl Jpeg {
    fn code(&mut self, code: u8) -> Result<Step, Refusal> {
        let step;
        (self.place, step) = match code {
            // A marker may begin with any number of FF bytes.
            0xFF => (Place::Code, Step::Show(1)),
            0xD9 => match self.size {
                Some(size) if self.scans > 0 => return Ok(end(ImageType::Jpeg, size)),
                _ => return Err(Refusal::Broken("it has no pixels")),
            },
            0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF => {
                return Err(Refusal::Broken("it is neither baseline nor progressive"));
            }
            0xC0..=0xC2 if self.size.is_some() => {
                return Err(Refusal::Broken("it has two frames"));
            }
            0xDA if self.size.is_none() => {
                return Err(Refusal::Broken("a scan precedes the frame header"));
            }
            0xC0..=0xCF | 0xDA..=0xFE => (Place::Length(code), Step::Show(2)),
            _ => return Err(Refusal::Broken("a marker is out of place")),
        };
        Ok(step)
    }

    fn length(&mut self, code: u8, length: [u8; 2]) -> Result<(Place, Step), Refusal> {
        let rest = u64::from(u16::from_be_bytes(length))
            .checked_sub(2)
            .ok_or(Refusal::Broken("a segment length is invalid"))?;
        Ok(match code {
            0xC0..=0xC2 if rest >= 6 => (Place::Frame(rest), Step::Show(6)),
            0xC0..=0xC2 => return Err(Refusal::Broken("the frame header is invalid")),
            0xDA => {
                self.scans += 1;
                if self.scans > MAX_SCANS {
                    return Err(Refusal::Broken("it has too many scans"));
                }
                (Place::ScanHead, Step::Pass(rest))
            }
            _ => (Place::Segment, Step::Pass(rest)),
        })
    }

    fn frame(&mut self, shown: &[u8], length: u64) -> Result<(), Refusal> {
        let &[precision, a, b, c, d, components] = shown else {
            return Err(Refusal::EndsEarly);
        };
        let size = (
            u32::from(u16::from_be_bytes([c, d])),
            u32::from(u16::from_be_bytes([a, b])),
        );
        check_sides(size.0, size.1)?;
        if precision != 8
            || !matches!(components, 1 | 3 | 4)
            || length != 6 + 3 * u64::from(components)
        {
            return Err(Refusal::Broken("the frame header is invalid"));
        }
        self.size = Some(size);
        Ok(())
    }
}
