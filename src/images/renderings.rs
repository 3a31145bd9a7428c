//! Creates smaller versions of images.
//!
//! Invariants:
//! - Only this module decodes pixels, and not on async threads.
//! - Decoding is bounded: by the configured memory, and by half of the cores.
//! - Clients are served in turn ([`super::client_queues`]).
//! - The output has the orientation applied. Its only metadata is the colour profile, which keeps the colours right.

use std::{
    borrow::Cow,
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Cursor},
    sync::Arc,
    thread::{self, available_parallelism},
    time::Instant,
};

use bytes::Bytes;
use image::{
    ColorType, DynamicImage, ImageBuffer, ImageDecoder, ImageEncoder, ImageError, ImageFormat,
    ImageReader, ImageResult, Limits,
    codecs::{jpeg::JpegEncoder, png::PngEncoder},
    error::{ImageFormatHint, LimitError, LimitErrorKind, UnsupportedError, UnsupportedErrorKind},
    imageops::FilterType,
    metadata::Orientation,
};
use moka::{policy::EvictionPolicy, sync::Cache};
use tokio::sync::{Mutex, MutexGuard, Semaphore, oneshot};
use tracing::Instrument;

use super::{
    client_queues::{ClientQueues, Head},
    webp_codes,
};
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
/// Maximum size in bytes of a colour profile that is kept.
const MAX_PROFILE: usize = 16 << 10;
/// Maximum size in bytes of a PNG chunk of metadata that is read.
const MAX_METADATA: usize = 64 << 10;
const MIB: u64 = 1 << 20;

/// Rendering failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pixels cannot be decoded, or need more memory than there is.
    #[error("the image cannot be decoded: {0}")]
    Undecodable(String),
    /// A decoder or this module panicked.
    #[error("the image decoder panicked")]
    Panicked(#[from] oneshot::error::RecvError),
    /// There is no thread for the work.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
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
    /// Queues of the clients that have renderings waiting.
    pub client_queues: ClientQueues,
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
            client_queues: ClientQueues::default(),
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

    /// Makes an image at most `width` wide, never larger than it is. `original` returns its bytes, and is awaited once
    /// there is memory for them; `key` identifies them.
    pub async fn render<E: From<Error>>(
        &self,
        key: &str,
        facts: Facts,
        width: RenderingWidth,
        head: Head,
        original: impl Future<Output = Result<Bytes, E>>,
    ) -> Result<Rendered, E> {
        if self.undecodable.contains_key(key) {
            return Err(Error::Undecodable("an earlier attempt failed".into()).into());
        }
        let needed = memory_for(facts, width);
        if needed > self.budget {
            let reason =
                format!("it needs {needed} MiB of memory, more than images.rendering_memory");
            return Err(Error::Undecodable(reason).into());
        }
        let needed = u32::try_from(needed).unwrap_or(u32::MAX);
        let core = Arc::clone(&self.cores).acquire_owned().await;
        drop(head);
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
        started.map_err(Error::Thread)?;
        let done = done.instrument(span).await;
        let result = match &done {
            Ok(Ok(_)) => "ok",
            Ok(Err(_)) => "undecodable",
            Err(_) => "panicked",
        };
        metrics::counter!("images_rendered_total", "result" => result).increment(1);
        match done {
            Ok(Ok(rendered)) => Ok(rendered),
            Ok(Err(error)) => {
                tracing::warn!(key, %error, "failed to decode an image; not retrying it");
                self.undecodable.insert(key.to_owned(), ());
                Err(Error::Undecodable(error.to_string()).into())
            }
            Err(panic) => {
                tracing::error!(key, error = %panic, "image decoder panicked");
                Err(Error::Panicked(panic).into())
            }
        }
    }
}

fn pixels(facts: Facts) -> u64 {
    u64::from(facts.width) * u64::from(facts.height)
}

/// Returns the maximum memory for decoding and shrinking an image, without its file, in MiB.
fn memory_for(facts: Facts, wanted: RenderingWidth) -> u64 {
    let pixels = pixels(facts);
    let decoding = match facts.kind {
        // 16 bits per channel, and a copy with 8: the allocator shrinks a block by copying it.
        ImageType::Png => 12,
        // The coefficients of a progressive JPEG in up to four channels, and three channels of pixels.
        ImageType::Jpeg => 11,
        // A canvas, a frame that is drawn on it, and a copy of the result.
        ImageType::Gif | ImageType::WebP => 12,
    };
    // Lanczos first scales the columns, in floats. The orientation is not known yet.
    let columns = u64::from(wanted.get()) * u64::from(facts.width.max(facts.height));
    let shrinking = 4 * pixels + 20 * columns.min(pixels);
    (pixels * decoding).max(shrinking).div_ceil(MIB)
}

fn render(bytes: &[u8], facts: Facts, width: RenderingWidth) -> Result<Rendered, ImageError> {
    let format = match facts.kind {
        ImageType::Png => ImageFormat::Png,
        ImageType::Jpeg => ImageFormat::Jpeg,
        ImageType::Gif => ImageFormat::Gif,
        ImageType::WebP => ImageFormat::WebP,
    };
    if facts.kind == ImageType::WebP && webp_codes::exceed_memory(bytes, facts) {
        let kind = LimitErrorKind::InsufficientMemory;
        return Err(ImageError::Limits(LimitError::from_kind(kind)));
    }
    // PNG: metadata and a line of pixels. GIF: a frame, which is not larger than its canvas. The others have no limit.
    let (bytes, max_alloc) = match facts.kind {
        ImageType::Png => (Cow::from(without_unused_chunks(bytes)), 2 * MIB),
        _ => (Cow::from(without_trailing_chunks(bytes)), 4 * pixels(facts)),
    };
    let mut reader = ImageReader::with_format(Cursor::new(&*bytes), format);
    let mut limits = Limits::default();
    limits.max_image_width = Some(facts.width);
    limits.max_image_height = Some(facts.height);
    limits.max_alloc = Some(max_alloc);
    reader.limits(limits);
    let mut decoder = reader.into_decoder()?;
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let profile = decoder.icc_profile().ok().flatten();
    let mut image = shrink(decode(decoder)?, orientation, width);
    image.apply_orientation(orientation);
    encode(&image, facts.kind, profile)
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
            b"iCCP" | b"eXIf" => length <= MAX_METADATA,
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

/// Decodes an image to 8 bits per channel. The output has no more, and this halves the memory.
fn decode(decoder: impl ImageDecoder) -> ImageResult<DynamicImage> {
    use ColorType as C;
    use UnsupportedErrorKind as Kind;
    let (w, h) = decoder.dimensions();
    let colour = decoder.color_type();
    let too_large =
        || ImageError::Limits(LimitError::from_kind(LimitErrorKind::InsufficientMemory));
    let size = usize::try_from(decoder.total_bytes()).map_err(|_| too_large())?;
    let mut pixels = vec![0; size];
    decoder.read_image(&mut pixels)?;
    if matches!(colour, C::L16 | C::La16 | C::Rgb16 | C::Rgba16) {
        halve(&mut pixels);
    }
    let image = match colour {
        C::L8 | C::L16 => ImageBuffer::from_raw(w, h, pixels).map(DynamicImage::ImageLuma8),
        C::La8 | C::La16 => ImageBuffer::from_raw(w, h, pixels).map(DynamicImage::ImageLumaA8),
        C::Rgb8 | C::Rgb16 => ImageBuffer::from_raw(w, h, pixels).map(DynamicImage::ImageRgb8),
        C::Rgba8 | C::Rgba16 => ImageBuffer::from_raw(w, h, pixels).map(DynamicImage::ImageRgba8),
        other => {
            let (format, kind) = (ImageFormatHint::Unknown, Kind::Color(other.into()));
            let error = UnsupportedError::from_format_and_kind(format, kind);
            return Err(ImageError::Unsupported(error));
        }
    };
    image.ok_or_else(too_large)
}

/// Converts 16-bit channels to 8 bits, in place.
fn halve(pixels: &mut Vec<u8>) {
    let length = pixels.len() / 2;
    for at in 0..length {
        let value = u16::from_ne_bytes([pixels[2 * at], pixels[2 * at + 1]]);
        // Rounded: 65,535 is 255 times 257.
        pixels[at] = u8::try_from((u32::from(value) + 128) / 257).unwrap_or(u8::MAX);
    }
    pixels.truncate(length);
    pixels.shrink_to_fit();
}

/// Shrinks an image to a width, measured after the orientation is applied. The aspect ratio stays.
fn shrink(image: DynamicImage, orientation: Orientation, width: RenderingWidth) -> DynamicImage {
    use Orientation as O;
    let is_on_its_side = match orientation {
        O::NoTransforms | O::Rotate180 | O::FlipHorizontal | O::FlipVertical => false,
        O::Rotate90 | O::Rotate270 | O::Rotate90FlipH | O::Rotate270FlipH => true,
    };
    let (w, h) = (image.width(), image.height());
    let (wanted, seen_width) = (width.get(), if is_on_its_side { h } else { w });
    if wanted >= seen_width {
        return image;
    }
    let scaled = |side: u32| {
        let exact = u64::from(side) * u64::from(wanted);
        let rounded = (exact + u64::from(seen_width) / 2) / u64::from(seen_width);
        u32::try_from(rounded.max(1)).unwrap_or(side)
    };
    let (width, height) = (scaled(w), scaled(h));
    // Lanczos works on floats, which take four times the memory. Averaging down to twice the size first has no visible
    // effect.
    let halfway = if w / 4 >= width && h / 4 >= height {
        image.thumbnail_exact(width * 2, height * 2)
    } else {
        image
    };
    halfway.resize_exact(width, height, FilterType::Lanczos3)
}

/// Encodes JPEG and opaque WebP images as JPEG, and all others as PNG.
fn encode(
    image: &DynamicImage,
    kind: ImageType,
    profile: Option<Vec<u8>>,
) -> Result<Rendered, ImageError> {
    let colour = image.color();
    let lossy = match kind {
        ImageType::Jpeg => true,
        ImageType::WebP => !colour.has_alpha(),
        ImageType::Png | ImageType::Gif => false,
    };
    let image = match (colour.has_color(), colour.has_alpha() && !lossy) {
        (true, true) => DynamicImage::from(image.to_rgba8()),
        (true, false) => image.to_rgb8().into(),
        (false, true) => image.to_luma_alpha8().into(),
        (false, false) => image.to_luma8().into(),
    };
    // A profile for other channels than the written ones would be wrong.
    let channels: &[u8] = if colour.has_color() { b"RGB " } else { b"GRAY" };
    let profile = profile.filter(|profile| {
        profile.len() <= MAX_PROFILE && profile.get(16..20).is_some_and(|it| it == channels)
    });
    let mut bytes = Vec::new();
    let kind = if lossy {
        let encoder = JpegEncoder::new_with_quality(&mut bytes, JPEG_QUALITY);
        write_with_profile(&image, encoder, profile)?;
        ImageType::Jpeg
    } else {
        write_with_profile(&image, PngEncoder::new(&mut bytes), profile)?;
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

    #[test]
    fn sixteen_bits_are_rounded_to_eight() {
        let values = [0_u16, 128, 129, 257, 32_768, 65_407, 65_535];
        let mut pixels: Vec<u8> = values.into_iter().flat_map(u16::to_ne_bytes).collect();
        halve(&mut pixels);
        assert_eq!(pixels, [0, 0, 1, 1, 128, 255, 255]);
    }
}
