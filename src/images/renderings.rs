//! Creates smaller versions of images.
//!
//! Invariants:
//! - Only this module decodes pixels, and not on async threads.
//! - Decoding is bounded: by the configured memory, and by half of the cores.
//! - The output has the orientation applied. Its only metadata is a small colour profile; a large one is applied.

use std::{
    borrow::Cow,
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Cursor},
    sync::Arc,
    thread::{self, available_parallelism},
    time::Instant,
};

use bytes::Bytes;
use fast_image_resize::{FilterType, MulDiv, ResizeAlg, ResizeOptions, Resizer};
use image::{
    DynamicImage, ImageBuffer, ImageDecoder, ImageEncoder, ImageFormat, ImageReader, ImageResult,
    Limits,
    codecs::{jpeg::JpegEncoder, png::PngEncoder},
    metadata::Orientation,
};
use moka::{policy::EvictionPolicy, sync::Cache};
use moxcms::{ColorProfile, Layout, TransformOptions};
use tokio::sync::{Mutex, MutexGuard, Semaphore, oneshot};
use tracing::Instrument;

use crate::{
    domain::image::{Facts, ImageType, RenderingWidth},
    trace_context,
};

/// Number of locks against concurrent work on the same rendering. Different renderings seldom share one.
const LOCKS: usize = 64;
/// Maximum number of remembered images that cannot be decoded.
const REMEMBERED: u64 = 1_024;
/// JPEG quality, of 100.
const JPEG_QUALITY: u8 = 85;
/// Maximum size in bytes of a colour profile that is kept. A larger one would outweigh the pixels of most renderings.
const MAX_KEPT_PROFILE: usize = 16 << 10;
/// Maximum size in bytes of a colour profile that is applied.
const MAX_PROFILE: usize = 1 << 20;
/// Maximum size in bytes of the EXIF chunk of a PNG that is read.
const MAX_EXIF: usize = 64 << 10;
const MIB: u64 = 1 << 20;

/// Failure to start the thread of a rendering.
#[derive(Debug, thiserror::Error)]
#[error("cannot start a thread: {0}")]
pub struct Error(io::Error);

/// Reason for which an image cannot be made smaller.
#[derive(Debug, thiserror::Error)]
enum Undecodable {
    /// The decoder `image-webp` 0.2.4 does not bound the memory of the codes: 1.4 GB for a file of 3.8 MB and 16×16 pixels.
    #[error("it has prefix codes of lossless WebP")]
    PrefixCodes,
    /// The decoder or the encoder failed.
    #[error(transparent)]
    Image(#[from] image::ImageError),
    /// The resizer failed.
    #[error(transparent)]
    Resize(#[from] fast_image_resize::ResizeError),
    /// The resizer failed to multiply or divide by the alpha channel.
    #[error(transparent)]
    Alpha(#[from] fast_image_resize::ImageError),
}

/// Renderer of images. Clones share its limits.
#[derive(Debug, Clone)]
pub struct Renderer {
    /// One permit per MiB.
    memory: Arc<Semaphore>,
    budget: u64,
    /// Permits for half of the cores; the others remain free for other requests.
    cores: Arc<Semaphore>,
    locks: Arc<[Mutex<()>; LOCKS]>,
    /// Keys of images that could not be decoded, and are not tried again.
    undecodable: Cache<String, ()>,
}

/// Smaller version of an image.
#[derive(Debug)]
pub struct Rendered {
    /// Image type.
    pub kind: ImageType,
    /// Encoded bytes.
    pub bytes: Bytes,
}

impl Renderer {
    /// Creates a renderer that decodes within this many bytes of memory.
    pub fn new(memory: u64) -> Self {
        let budget = (memory / MIB).clamp(1, 1 << 20);
        let cores = available_parallelism().map_or(1, usize::from) / 2;
        Self {
            memory: Arc::new(Semaphore::new(usize::try_from(budget).unwrap_or(1))),
            budget,
            cores: Arc::new(Semaphore::new(cores.max(1))),
            locks: Arc::new([const { Mutex::const_new(()) }; LOCKS]),
            undecodable: Cache::builder()
                .max_capacity(REMEMBERED)
                .eviction_policy(EvictionPolicy::lru())
                .build(),
        }
    }

    /// Locks a rendering, so that this process does not make it twice at the same time.
    pub async fn lock(&self, which: impl Hash) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        which.hash(&mut hasher);
        let lock = usize::try_from(hasher.finish() % LOCKS as u64).unwrap_or_default();
        self.locks[lock].lock().await
    }

    /// Returns true if an image needs more memory than there is, or could not be decoded before.
    pub fn is_undecodable(&self, key: &str, facts: Facts, width: RenderingWidth) -> bool {
        memory_for(facts, width) > self.budget || self.undecodable.contains_key(key)
    }

    /// Makes an image at most `width` wide, never larger than it is, or returns `None` if it cannot be decoded. `original`
    /// returns its bytes, and is awaited once there is memory for them; `key` identifies them.
    pub async fn render<E: From<Error>>(
        &self,
        key: &str,
        facts: Facts,
        width: RenderingWidth,
        original: impl Future<Output = Result<Bytes, E>>,
    ) -> Result<Option<Rendered>, E> {
        if self.is_undecodable(key, facts, width) {
            return Ok(None);
        }
        let needed = u32::try_from(memory_for(facts, width)).unwrap_or(u32::MAX);
        let core = Arc::clone(&self.cores).acquire_owned().await;
        let memory = Arc::clone(&self.memory).acquire_many_owned(needed).await;
        let bytes = original.await?;
        let work = move || {
            let begun = Instant::now();
            let rendered = render(&bytes, facts, width);
            metrics::histogram!("images_rendering_seconds").record(begun.elapsed());
            // Held until the work ends, which goes on even if the request was cancelled.
            drop((core, memory));
            rendered
        };
        let span = tracing::debug_span!(target: trace_context::TARGET, "make an image smaller");
        let (sender, done) = oneshot::channel();
        // In a thread of its own: the allocator keeps what a thread frees for that thread, and this one ends.
        let started = thread::Builder::new().spawn(move || drop(sender.send(work())));
        started.map_err(Error)?;
        let done = done.instrument(span).await;
        let result = match &done {
            Ok(Ok(_)) => "ok",
            Ok(Err(_)) => "undecodable",
            Err(_) => "panicked",
        };
        metrics::counter!("images_rendered_total", "result" => result).increment(1);
        match done {
            Ok(Ok(rendered)) => return Ok(Some(rendered)),
            Ok(Err(error)) => {
                tracing::info!(key, %error, "failed to decode an image; serving the original");
            }
            Err(_) => {
                tracing::error!(key, "image decoder panicked; serving the original");
            }
        }
        self.undecodable.insert(key.to_owned(), ());
        Ok(None)
    }
}

fn pixels(facts: Facts) -> u64 {
    u64::from(facts.width) * u64::from(facts.height)
}

/// Returns the maximum memory for decoding and shrinking an image, without its file, in MiB.
fn memory_for(facts: Facts, wanted: RenderingWidth) -> u64 {
    let pixels = pixels(facts);
    // The image with one of its sides shrunk, and the result, are not larger. The orientation is not known yet.
    let columns = u64::from(wanted.get()) * u64::from(facts.width.max(facts.height));
    let bytes = match facts.kind {
        // 16 bits per channel.
        ImageType::Png => 8 * pixels + 16 * columns.min(pixels),
        // The coefficients of a progressive JPEG in up to four channels, and three channels of pixels.
        ImageType::Jpeg => 11 * pixels,
        // A canvas, a frame that is drawn on it, and a copy of the result. Shrinking 8 bits per channel takes no more.
        ImageType::Gif | ImageType::WebP => 12 * pixels,
    };
    bytes.div_ceil(MIB)
}

fn render(bytes: &[u8], facts: Facts, width: RenderingWidth) -> Result<Rendered, Undecodable> {
    let format = match facts.kind {
        ImageType::Png => ImageFormat::Png,
        ImageType::Jpeg => ImageFormat::Jpeg,
        ImageType::Gif => ImageFormat::Gif,
        ImageType::WebP => ImageFormat::WebP,
    };
    // PNG: metadata and a line of pixels. GIF: a frame, which is not larger than its canvas. The others have no limit.
    let (bytes, max_alloc) = match facts.kind {
        ImageType::Png => (Cow::from(without_unused_chunks(bytes)), 2 * MIB),
        _ => (Cow::from(without_trailing_chunks(bytes)), 4 * pixels(facts)),
    };
    if facts.kind == ImageType::WebP && has_prefix_codes(&bytes) {
        return Err(Undecodable::PrefixCodes);
    }
    let mut reader = ImageReader::with_format(Cursor::new(&*bytes), format);
    let mut limits = Limits::default();
    limits.max_image_width = Some(facts.width);
    limits.max_image_height = Some(facts.height);
    limits.max_alloc = Some(max_alloc);
    reader.limits(limits);
    let mut decoder = reader.into_decoder()?;
    let orientation = orientation(&mut decoder);
    let profile = decoder.icc_profile().ok().flatten();
    let image = shrink(DynamicImage::from_decoder(decoder)?, orientation, width)?;
    let lossy = match facts.kind {
        ImageType::Jpeg => true,
        ImageType::WebP => !image.color().has_alpha(),
        ImageType::Png | ImageType::Gif => false,
    };
    let mut image = with_8_bits(image);
    image.apply_orientation(orientation);
    // A profile for other channels than the written ones would be wrong.
    let channels: &[u8] = if image.color().has_color() {
        b"RGB "
    } else {
        b"GRAY"
    };
    let mut profile = profile.filter(|it| it.get(16..20).is_some_and(|it| it == channels));
    if let Some(large) = profile.take_if(|profile| profile.len() > MAX_KEPT_PROFILE) {
        // Programs ignore a profile that is invalid.
        image = converted_to_srgb(&image, &large).unwrap_or(image);
    }
    Ok(encode(&image, lossy, profile)?)
}

/// Returns true if a WebP has a chunk with prefix codes (RFC 9649 §3): pixels or an alpha channel without losses.
fn has_prefix_codes(webp: &[u8]) -> bool {
    let mut rest = webp.get(12..).unwrap_or_default();
    while let Some(([kind @ .., a, b, c, d], data)) = rest.split_first_chunk::<8>() {
        let length = usize::try_from(u32::from_le_bytes([*a, *b, *c, *d])).unwrap_or(usize::MAX);
        let skipped = match kind {
            b"VP8L" => return true,
            b"ALPH" if data.first().is_some_and(|flags| flags & 3 == 1) => return true,
            // The chunks of a frame follow its header.
            b"ANMF" => 16,
            _ => length.saturating_add(length % 2),
        };
        rest = data.get(skipped..).unwrap_or_default();
    }
    false
}

/// Returns the orientation in the EXIF data. The chunk of a WebP may begin like the segment of a JPEG, which its decoder does
/// not expect.
fn orientation(decoder: &mut impl ImageDecoder) -> Orientation {
    let exif = decoder.exif_metadata().ok().flatten().unwrap_or_default();
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(&exif);
    Orientation::from_exif_chunk(exif).unwrap_or(Orientation::NoTransforms)
}

/// Copies the chunks of a PNG that a rendering needs. The others may be large, or frames of an animation.
fn without_unused_chunks(png: &[u8]) -> Vec<u8> {
    let (signature, mut rest) = png.split_at(png.len().min(8));
    let mut kept = signature.to_vec();
    while let Some(([a, b, c, d, kind @ ..], _)) = rest.split_first_chunk::<8>() {
        // The length, the kind and a checksum surround the data.
        let length = u64::from(u32::from_be_bytes([*a, *b, *c, *d])) + 12;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some((chunk, after)) = rest.split_at_checked(length) else {
            break;
        };
        let is_needed = match kind {
            b"IHDR" | b"PLTE" | b"tRNS" | b"IDAT" | b"IEND" => true,
            b"iCCP" => length <= MAX_PROFILE,
            b"eXIf" => length <= MAX_EXIF,
            _ => false,
        };
        if is_needed {
            kept.extend_from_slice(chunk);
        }
        rest = after;
    }
    kept
}

/// Cuts a WebP off at the end of its container. Its decoder also reads chunks that begin up to 10 bytes later, which
/// the upload ignored.
fn without_trailing_chunks(bytes: &[u8]) -> &[u8] {
    let Some(([b'R', b'I', b'F', b'F', length @ ..], _)) = bytes.split_first_chunk::<8>() else {
        return bytes;
    };
    let end = u64::from(u32::from_le_bytes(*length)) + 8;
    usize::try_from(end).map_or(bytes, |end| &bytes[..end.min(bytes.len())])
}

/// Shrinks an image to a width, measured after the orientation is applied. The aspect ratio stays.
fn shrink(
    mut image: DynamicImage,
    orientation: Orientation,
    width: RenderingWidth,
) -> Result<DynamicImage, Undecodable> {
    use Orientation as O;
    let is_on_its_side = match orientation {
        O::NoTransforms | O::Rotate180 | O::FlipHorizontal | O::FlipVertical => false,
        O::Rotate90 | O::Rotate270 | O::Rotate90FlipH | O::Rotate270FlipH => true,
    };
    let (w, h) = (image.width(), image.height());
    let (wanted, seen_width) = (width.get(), if is_on_its_side { h } else { w });
    if wanted >= seen_width {
        return Ok(image);
    }
    let scaled = |side: u32| {
        let exact = u64::from(side) * u64::from(wanted);
        let rounded = (exact + u64::from(seen_width) / 2) / u64::from(seen_width);
        u32::try_from(rounded.max(1)).unwrap_or(side)
    };
    let mut small = DynamicImage::new(scaled(w), scaled(h), image.color());
    let has_alpha = image.color().has_alpha();
    // Transparent pixels must not lend their colour to others. In place, since the resizer would copy the image.
    if has_alpha {
        MulDiv::new().multiply_alpha_inplace(&mut image)?;
    }
    // Lanczos exceeds the range of values beside edges. Where only the alpha channel is cut off, colours would be brighter.
    let filter = if has_alpha {
        FilterType::Hamming
    } else {
        FilterType::Lanczos3
    };
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter));
    Resizer::new().resize(&image, &mut small, &options.use_alpha(false))?;
    if has_alpha {
        MulDiv::new().divide_alpha_inplace(&mut small)?;
    }
    Ok(small)
}

/// Converts channels to 8 bits.
fn with_8_bits(image: DynamicImage) -> DynamicImage {
    let colour = image.color();
    match (colour.has_color(), colour.has_alpha()) {
        (true, true) => image.into_rgba8().into(),
        (true, false) => image.into_rgb8().into(),
        (false, true) => image.into_luma_alpha8().into(),
        (false, false) => image.into_luma8().into(),
    }
}

/// Converts the colours of an image with 8 bits per channel. Returns `None` if the profile is invalid.
fn converted_to_srgb(image: &DynamicImage, profile: &[u8]) -> Option<DynamicImage> {
    if profile.len() > MAX_PROFILE {
        return None;
    }
    let profile = ColorProfile::new_from_slice(profile).ok()?;
    let colour = image.color();
    let (from, to) = match (colour.has_color(), colour.has_alpha()) {
        (true, true) => (Layout::Rgba, Layout::Rgba),
        (true, false) => (Layout::Rgb, Layout::Rgb),
        (false, true) => (Layout::GrayAlpha, Layout::Rgba),
        (false, false) => (Layout::Gray, Layout::Rgb),
    };
    let (srgb, options) = (ColorProfile::new_srgb(), TransformOptions::default());
    let transform = profile
        .create_transform_8bit(from, &srgb, to, options)
        .ok()?;
    let (width, height) = (image.width(), image.height());
    let mut pixels = vec![0; width as usize * height as usize * to.channels()];
    transform.transform(image.as_bytes(), &mut pixels).ok()?;
    if colour.has_alpha() {
        ImageBuffer::from_raw(width, height, pixels).map(DynamicImage::ImageRgba8)
    } else {
        ImageBuffer::from_raw(width, height, pixels).map(DynamicImage::ImageRgb8)
    }
}

/// Encodes an image as JPEG or as PNG.
fn encode(image: &DynamicImage, lossy: bool, profile: Option<Vec<u8>>) -> ImageResult<Rendered> {
    let mut bytes = Vec::new();
    let kind = if lossy {
        let encoder = JpegEncoder::new_with_quality(&mut bytes, JPEG_QUALITY);
        write_with_profile(image, encoder, profile)?;
        ImageType::Jpeg
    } else {
        write_with_profile(image, PngEncoder::new(&mut bytes), profile)?;
        ImageType::Png
    };
    let bytes = bytes.into();
    Ok(Rendered { kind, bytes })
}

fn write_with_profile(
    image: &DynamicImage,
    mut encoder: impl ImageEncoder,
    profile: Option<Vec<u8>>,
) -> ImageResult<()> {
    if let Some(profile) = profile {
        let _ = encoder.set_icc_profile(profile);
    }
    image.write_with_encoder(encoder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::image::MAX_SIDE;

    #[test]
    fn the_largest_image_of_any_type_fits_the_default_budget() {
        let wanted: RenderingWidth = "2048".parse().expect("a width");
        for kind in ImageType::ALL {
            let facts = Facts {
                kind,
                width: MAX_SIDE,
                height: MAX_SIDE,
            };
            assert!(memory_for(facts, wanted) <= 768, "{kind:?}");
        }
    }
}
