//! Interface between the image reader and the structure of each image type.

use super::{Facts, ImageType, MAX_SIDE};

/// Maximum number of bytes that are shown in one piece.
pub(super) const HELD: usize = 32;

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

#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    /// Show this number of bytes, at most [`HELD`], in one piece.
    Show(usize),
    /// Skip this number of bytes.
    Pass(u64),
    /// Skip all bytes up to and including a byte FF.
    PassMark,
    End(Facts),
}

/// Structure of one image type.
pub(super) trait Walk {
    /// Returns the first step, which shows the signature again.
    fn begin(&self) -> Step;
    /// Returns the step after the bytes that were shown; none are `shown` if the bytes were skipped.
    fn next(&mut self, shown: &[u8]) -> Result<Step, Refusal>;
    /// Processes skipped bytes.
    fn pass(&mut self, _: &[u8]) {}
}

/// Checks the width and height of an image, or of a part of one.
pub(super) const fn check_sides(width: u32, height: u32) -> Result<(), Refusal> {
    if width == 0 || height == 0 {
        return Err(Refusal::Broken("it has no pixels"));
    }
    if width > MAX_SIDE || height > MAX_SIDE {
        return Err(Refusal::TooManyPixels);
    }
    Ok(())
}

pub(super) const fn end(kind: ImageType, (width, height): (u32, u32)) -> Step {
    Step::End(Facts {
        kind,
        width,
        height,
    })
}
