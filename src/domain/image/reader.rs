//! Reads the structure of an image as its bytes arrive, up to the end of the image.
//!
//! Invariants:
//! - No pixel is decoded.
//! - Lengths in the data are not trusted: bytes are counted as they arrive.
//! - At most [`HELD`] bytes are held, and each byte costs a few instructions.
//! - Bytes after the end of the image are ignored: cameras put previews there.

use memchr::memchr;

use super::{
    Facts,
    gif::Gif,
    jpeg::Jpeg,
    png::{self, Png},
    walk::{HELD, Refusal, Step, Walk},
    webp::WebP,
};

/// Length of the longest signature: `RIFF`, four bytes of length, `WEBP`.
const SIGNATURE: usize = 12;

enum Walker {
    Png(Png),
    Jpeg(Jpeg),
    Gif(Gif),
    WebP(WebP),
}

impl Walker {
    /// Selects the walker by the first bytes of the image.
    fn of(signature: &[u8]) -> Option<Self> {
        let is_jpeg = signature.starts_with(b"\xFF\xD8\xFF");
        let is_gif = signature.starts_with(b"GIF87a") || signature.starts_with(b"GIF89a");
        let is_webp = signature.starts_with(b"RIFF") && signature.ends_with(b"WEBP");
        if signature.starts_with(png::SIGNATURE) {
            Some(Self::Png(Png::default()))
        } else if is_jpeg {
            Some(Self::Jpeg(Jpeg::default()))
        } else if is_gif {
            Some(Self::Gif(Gif::default()))
        } else if is_webp {
            Some(Self::WebP(WebP::default()))
        } else {
            None
        }
    }

    fn walk(&mut self) -> &mut dyn Walk {
        match self {
            Self::Png(png) => png,
            Self::Jpeg(jpeg) => jpeg,
            Self::Gif(gif) => gif,
            Self::WebP(webp) => webp,
        }
    }
}

/// Incremental reader of an image, for chunks of any size.
pub struct Reader {
    /// `None` until the signature has been read.
    walker: Option<Walker>,
    step: Step,
    held: [u8; HELD],
    held_len: usize,
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            walker: None,
            step: Step::Show(SIGNATURE),
            held: [0; HELD],
            held_len: 0,
        }
    }
}

impl Reader {
    /// Reads the next bytes.
    ///
    /// # Errors
    /// [`Refusal`], as soon as the bytes cannot be those of an image.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), Refusal> {
        loop {
            match &mut self.step {
                Step::End(_) => return Ok(()),
                Step::Show(wanted) => {
                    let wanted = *wanted;
                    let missing = wanted - self.held_len;
                    let (taken, rest) = bytes.split_at(missing.min(bytes.len()));
                    self.held[self.held_len..][..taken.len()].copy_from_slice(taken);
                    self.held_len += taken.len();
                    bytes = rest;
                    if self.held_len < wanted {
                        return Ok(());
                    }
                    self.held_len = 0;
                    let shown = self.held;
                    self.advance(&shown[..wanted])?;
                }
                Step::Pass(left) => {
                    let length = bytes
                        .len()
                        .min(usize::try_from(*left).unwrap_or(usize::MAX));
                    let (passed, rest) = bytes.split_at(length);
                    *left -= length as u64;
                    bytes = rest;
                    let done = *left == 0;
                    if let Some(walker) = &mut self.walker {
                        walker.walk().pass(passed);
                    }
                    if !done {
                        return Ok(());
                    }
                    self.advance(&[])?;
                }
                Step::PassMark => {
                    let Some(at) = memchr(0xFF, bytes) else {
                        return Ok(());
                    };
                    bytes = &bytes[at + 1..];
                    self.advance(&[])?;
                }
            }
        }
    }

    fn advance(&mut self, shown: &[u8]) -> Result<(), Refusal> {
        if let Some(walker) = &mut self.walker {
            self.step = walker.walk().next(shown)?;
            return Ok(());
        }
        let mut walker = Walker::of(shown).ok_or(Refusal::NotAnImage)?;
        self.step = walker.walk().begin();
        self.walker = Some(walker);
        self.feed(shown)
    }

    /// Returns the properties of the image after its last byte.
    ///
    /// # Errors
    /// [`Refusal`] if the image is incomplete.
    pub fn finish(self) -> Result<Facts, Refusal> {
        match (self.step, self.walker) {
            (Step::End(facts), _) => Ok(facts),
            (_, Some(_)) => Err(Refusal::EndsEarly),
            // Too short for any image: incomplete if it begins like a signature, else not an image.
            (_, None) => {
                let begun = &self.held[..self.held_len];
                let signatures = [&png::SIGNATURE[..], b"\xFF\xD8\xFF", b"GIF8", b"RIFF"];
                let is_image = signatures.iter().any(|signature| {
                    let length = begun.len().min(signature.len());
                    begun[..length] == signature[..length]
                });
                Err(if is_image {
                    Refusal::EndsEarly
                } else {
                    Refusal::NotAnImage
                })
            }
        }
    }
}
