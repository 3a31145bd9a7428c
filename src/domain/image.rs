//! Images of pets: types, dimensions, identifiers, and widths of renderings.
//!
//! Invariant: the type and the dimensions of an image are read from its bytes, not from headers.

use std::{fmt, str::FromStr};

use super::{Invalid, parse_digits};

/// Maximum width and height of an image in pixels.
pub const MAX_SIDE: u32 = 8_192;
/// Maximum number of images of a pet.
pub const MAX_IMAGES: i64 = 100;
/// Maximum number of characters in the `additionalMetadata` of an upload.
pub const MAX_METADATA: usize = 1_000;

/// Supported type of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImageType {
    /// Portable Network Graphics (ISO/IEC 15948).
    Png,
    /// JPEG (ITU-T T.81), baseline or progressive.
    Jpeg,
    /// GIF 87a and 89a.
    Gif,
    /// WebP (RFC 9649).
    WebP,
}

// The names are media types.
impl_names!(
    ImageType,
    Png = "image/png",
    Jpeg = "image/jpeg",
    Gif = "image/gif",
    WebP = "image/webp",
);

impl ImageType {
    /// Returns the extension of a file of this type.
    pub const fn extension(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Jpeg => "jpg",
            Self::Gif => "gif",
            Self::WebP => "webp",
        }
    }
}

/// Identifier of an image: 128 random bits, which cannot be guessed. Knowing it is enough to see the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImageId(pub [u8; 16]);

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Accepts only the format that [`Display`](fmt::Display) writes, so that an image has one URL.
impl FromStr for ImageId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        // The parser of numbers accepts a sign and capitals.
        let has_other = text.contains(|c: char| c == '+' || c.is_ascii_uppercase());
        match u128::from_str_radix(text, 16) {
            Ok(id) if text.len() == 32 && !has_other => Ok(Self(id.to_be_bytes())),
            _ => Err(Invalid::because("must be 32 hexadecimal digits")),
        }
    }
}

/// Properties of an image, read from its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Type of the image.
    pub kind: ImageType,
    /// Width in pixels as stored, before any orientation is applied.
    pub width: u32,
    /// Height in pixels as stored.
    pub height: u32,
}

/// Maximum width of a rendering. Only the widths in [`RenderingWidth::ALL`] exist, which bounds the number of
/// renderings of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RenderingWidth(u32);

impl RenderingWidth {
    /// All widths in pixels.
    pub const ALL: [u32; 14] = [
        16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048,
    ];

    /// Returns the width in pixels.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Parses a width of 16–2,048 pixels and rounds it down to one in [`RenderingWidth::ALL`].
impl FromStr for RenderingWidth {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        parse_digits::<u32>(text)
            .filter(|asked| *asked <= 2_048)
            .and_then(|asked| Self::ALL.into_iter().rev().find(|width| *width <= asked))
            .map(Self)
            .ok_or(Invalid::because("must be an integer from 16 to 2048"))
    }
}

/// Checks the `additionalMetadata` of an upload: at most [`MAX_METADATA`] characters, and no NUL.
pub fn check_metadata(text: &str) -> Result<(), Invalid> {
    super::check_text(text, MAX_METADATA)
}
