//! Smaller versions of images: the only room that decodes pixels.
//!
//! Invariants: never on an async thread; the pixels that are being worked on take no more memory than is
//! configured, whoever asks for how many; what comes out has the orientation applied and holds none of the
//! metadata that came in but its colour profile, without which the colours would be others.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    io::Cursor,
    sync::Arc,
};

use bytes::Bytes;
use image::{
    DynamicImage, ImageDecoder, ImageEncoder, ImageError, ImageFormat, ImageReader, Limits,
    codecs::{jpeg::JpegEncoder, png::PngEncoder},
    imageops::FilterType,
    metadata::Orientation,
};
use tokio::sync::{Mutex, MutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::domain::image::{Facts, ImageType, MAX_SIDE, RenderingWidth};

/// Renderings that may be waited for at once.
const PLACES: usize = 256;
/// Renderings that one does not wait for the other unless they are the same, by and large.
const TURNS: usize = 64;
/// Of the 100 that JPEG has.
const JPEG_QUALITY: u8 = 85;
/// The largest colour profile that is kept.
const MAX_PROFILE: usize = 16 << 10;
const MIB: u64 = 1 << 20;

/// Why there is no rendering.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Too many are waited for already.
    #[error("too many renderings are waited for")]
    Busy,
    /// The pixels cannot be decoded, or take more memory than there is for them.
    #[error("the image cannot be decoded: {0}")]
    Undecodable(String),
}

/// Makes renderings. Clones share its bounds.
#[derive(Debug, Clone)]
pub struct Renderer {
    /// A permit for each MiB.
    memory: Arc<Semaphore>,
    budget: u64,
    places: Arc<Semaphore>,
    turns: Arc<[Mutex<()>; TURNS]>,
}

/// A smaller version of an image.
#[derive(Debug)]
pub struct Rendered {
    /// What it is.
    pub kind: ImageType,
    /// Its bytes.
    pub bytes: Bytes,
}

impl Renderer {
    /// One that works within so many bytes of memory.
    #[must_use]
    pub fn new(memory: u64) -> Self {
        let budget = (memory / MIB).clamp(1, 1 << 20);
        Self {
            memory: Arc::new(Semaphore::new(usize::try_from(budget).unwrap_or(1))),
            budget,
            places: Arc::new(Semaphore::new(PLACES)),
            turns: Arc::new([const { Mutex::const_new(()) }; TURNS]),
        }
    }

    /// A place among those who wait, for as long as it is held.
    ///
    /// # Errors
    /// [`Error::Busy`].
    pub fn place(&self) -> Result<OwnedSemaphorePermit, Error> {
        Arc::clone(&self.places)
            .try_acquire_owned()
            .map_err(|_| Error::Busy)
    }

    /// Waits until nobody else in this process makes the same rendering.
    pub async fn turn(&self, which: impl Hash) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        which.hash(&mut hasher);
        let turn = usize::try_from(hasher.finish() % TURNS as u64).unwrap_or_default();
        self.turns[turn].lock().await
    }

    /// Makes an image at most so wide, and never larger than it is. `original` gives its bytes, once there is
    /// memory for them.
    ///
    /// # Errors
    /// [`Error`], or what `original` fails with.
    pub async fn render<E: From<Error>>(
        &self,
        facts: Facts,
        width: RenderingWidth,
        original: impl Future<Output = Result<Bytes, E>>,
    ) -> Result<Rendered, E> {
        let needed = memory_for(facts);
        if needed > self.budget {
            let reason = format!("it would take {needed} MiB of memory");
            return Err(Error::Undecodable(reason).into());
        }
        let needed = u32::try_from(needed).unwrap_or(u32::MAX);
        let memory = Arc::clone(&self.memory).acquire_many_owned(needed).await;
        let bytes = original.await?;
        let work = move || {
            let rendered = render(&bytes, facts.kind, width);
            // Only now: whoever asked may be gone, the work is not.
            drop(memory);
            rendered
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(rendered) => rendered.map_err(|error| Error::Undecodable(error.to_string()).into()),
            Err(panic) => Err(Error::Undecodable(panic.to_string()).into()),
        }
    }
}

/// MiB that an image takes while it is decoded, at worst: its pixels, and the coefficients of a progressive
/// JPEG. So little that dozens would fit takes a share of the cores, too.
fn memory_for(
    Facts {
        kind,
        width,
        height,
    }: Facts,
) -> u64 {
    const LEAST: u64 = 64;
    let a_pixel = match kind {
        ImageType::Jpeg => 10,
        ImageType::Png | ImageType::Gif | ImageType::WebP => 8,
    };
    (u64::from(width) * u64::from(height) * a_pixel)
        .div_ceil(MIB)
        .max(LEAST)
}

fn render(bytes: &[u8], kind: ImageType, width: RenderingWidth) -> Result<Rendered, ImageError> {
    let mut reader = ImageReader::with_format(
        Cursor::new(bytes),
        match kind {
            ImageType::Png => ImageFormat::Png,
            ImageType::Jpeg => ImageFormat::Jpeg,
            ImageType::Gif => ImageFormat::Gif,
            ImageType::WebP => ImageFormat::WebP,
        },
    );
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(512 * MIB);
    reader.limits(limits);
    let mut decoder = reader.into_decoder()?;
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let profile = decoder.icc_profile().ok().flatten();
    let mut image = shrink(DynamicImage::from_decoder(decoder)?, orientation, width);
    image.apply_orientation(orientation);
    encode(&image, kind, profile)
}

/// Makes an image so wide, as it is seen once it is turned; its height follows.
fn shrink(image: DynamicImage, orientation: Orientation, width: RenderingWidth) -> DynamicImage {
    use Orientation as O;
    let is_on_its_side = match orientation {
        O::NoTransforms | O::Rotate180 | O::FlipHorizontal | O::FlipVertical => false,
        O::Rotate90 | O::Rotate270 | O::Rotate90FlipH | O::Rotate270FlipH => true,
    };
    let seen_width = if is_on_its_side {
        image.height()
    } else {
        image.width()
    };
    let wanted = width.get();
    if wanted >= seen_width {
        return image;
    }
    let scaled = |side: u32| {
        let exact = u64::from(side) * u64::from(wanted);
        let rounded = (exact + u64::from(seen_width) / 2) / u64::from(seen_width);
        u32::try_from(rounded.max(1)).unwrap_or(side)
    };
    let (width, height) = (scaled(image.width()), scaled(image.height()));
    // Lanczos works on floats, four times the memory. Averaging down to twice the size first costs no
    // quality that anybody sees.
    let halfway = if image.width() / 4 >= width && image.height() / 4 >= height {
        image.thumbnail_exact(width * 2, height * 2)
    } else {
        image
    };
    halfway.resize_exact(width, height, FilterType::Lanczos3)
}

/// JPEG for what was one, or was a WebP without transparency; PNG for the rest.
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
    // A profile of other channels than those that are written would be wrong.
    let channels: &[u8] = if colour.has_color() { b"RGB " } else { b"GRAY" };
    let profile = profile.filter(|profile| {
        profile.len() <= MAX_PROFILE && profile.get(16..20).is_some_and(|it| it == channels)
    });
    let mut bytes = Vec::new();
    let kind = if lossy {
        let mut encoder = JpegEncoder::new_with_quality(&mut bytes, JPEG_QUALITY);
        if let Some(profile) = profile {
            let _ = encoder.set_icc_profile(profile);
        }
        image.write_with_encoder(encoder)?;
        ImageType::Jpeg
    } else {
        let mut encoder = PngEncoder::new(&mut bytes);
        if let Some(profile) = profile {
            let _ = encoder.set_icc_profile(profile);
        }
        image.write_with_encoder(encoder)?;
        ImageType::Png
    };
    Ok(Rendered {
        kind,
        bytes: bytes.into(),
    })
}
