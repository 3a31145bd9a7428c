//! What the reader of images and the structure of each type say to each other: which bytes come next, and
//! what is wrong with them.

use super::{Facts, ImageType, MAX_SIDE};

/// Bytes that are looked at in one piece.
pub(super) const HELD: usize = 32;

/// Why bytes are not taken for an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Of no type that is taken.
    #[error("must be a PNG, JPEG, GIF or WebP image")]
    NotAnImage,
    /// The beginning of an image.
    #[error("must be a whole image: it ends early")]
    EndsEarly,
    /// Not as its type wants it.
    #[error("must be an unbroken image: {0}")]
    Broken(&'static str),
    /// More pixels than are taken.
    #[error("must be at most {MAX_SIDE} pixels wide and high")]
    TooManyPixels,
}

/// What is done with the bytes that come next.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    /// So many, at most [`HELD`], are shown in one piece.
    Show(usize),
    /// So many are passed over.
    Pass(u64),
    /// All up to a byte FF, and that, are passed over.
    PassMark,
    /// The image is whole.
    End(Facts),
}

/// The structure of one type of image.
pub(super) trait Walk {
    /// What comes first: the signature once more.
    fn begin(&self) -> Step;
    /// What comes next, after the bytes that were to be shown, or none if others were passed over.
    fn next(&mut self, shown: &[u8]) -> Result<Step, Refusal>;
    /// Bytes that are passed over.
    fn pass(&mut self, _: &[u8]) {}
}

/// Checks both sides of an image, or of a part of one.
pub(super) const fn check_sides(width: u32, height: u32) -> Result<(), Refusal> {
    if width == 0 || height == 0 {
        return Err(Refusal::Broken("it has no pixels"));
    }
    if width > MAX_SIDE || height > MAX_SIDE {
        return Err(Refusal::TooManyPixels);
    }
    Ok(())
}

/// Puts the facts together.
pub(super) const fn end(kind: ImageType, (width, height): (u32, u32)) -> Step {
    Step::End(Facts {
        kind,
        width,
        height,
    })
}
