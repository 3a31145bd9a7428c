//! Generates and decodes the images that tests upload, and finds the files in which they are stored.

use std::{
    fs,
    io::{Cursor, Read as _},
    path::{Path, PathBuf},
};

use flate2::{Compression, read::ZlibEncoder};
use image::{
    DynamicImage, ExtendedColorType, Frame, ImageDecoder as _, ImageEncoder as _, ImageFormat,
    ImageReader, Rgb, RgbImage, Rgba, RgbaImage,
    codecs::{gif::GifEncoder, jpeg::JpegEncoder},
};

/// Returns a gradient: red increases to the right, green to the bottom.
pub fn gradient(width: u32, height: u32) -> RgbImage {
    let shade = |at: u32, of: u32| u8::try_from(at * 255 / of.max(1)).unwrap_or(255);
    RgbImage::from_fn(width, height, |x, y| {
        Rgb([shade(x, width), shade(y, height), 40])
    })
}

fn encoded(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let image: DynamicImage = image.into();
    image.write_to(&mut bytes, format).expect("an image");
    bytes.into_inner()
}

/// Returns a PNG of [`gradient`].
pub fn png(width: u32, height: u32) -> Vec<u8> {
    encoded(gradient(width, height), ImageFormat::Png)
}

/// Returns a PNG with a transparent left half.
pub fn transparent_png(width: u32, height: u32) -> Vec<u8> {
    let image = RgbaImage::from_fn(width, height, |x, _| {
        Rgba([200, 100, 50, if x < width / 2 { 0 } else { 255 }])
    });
    encoded(image, ImageFormat::Png)
}

/// Returns a PNG of [`gradient`] with 16 bits per channel, and with transparency.
pub fn deep_png(width: u32, height: u32) -> Vec<u8> {
    let image = DynamicImage::from(gradient(width, height));
    encoded(image.to_rgba16(), ImageFormat::Png)
}

/// Returns a chunk of a PNG.
pub fn png_chunk(kind: [u8; 4], data: &[&[u8]]) -> Vec<u8> {
    let typed = [&kind[..], &data.concat()].concat();
    let length = u32::try_from(typed.len() - 4).expect("short").to_be_bytes();
    let crc = crc32fast::hash(&typed).to_be_bytes();
    [&length[..], &typed, &crc].concat()
}

/// Returns a PNG of [`gradient`] with another chunk between its header and its pixels.
pub fn png_with(width: u32, height: u32, chunk: &[u8]) -> Vec<u8> {
    let mut bytes = png(width, height);
    // After the signature and `IHDR`.
    bytes.splice(33..33, chunk.iter().copied());
    bytes
}

/// Compresses this many zeros with zlib: to about a thousandth of their size.
pub fn zlib_zeros(number: u64) -> Vec<u8> {
    let mut compressed = Vec::new();
    let zeros = std::io::repeat(0).take(number);
    let mut encoder = ZlibEncoder::new(zeros, Compression::best());
    encoder.read_to_end(&mut compressed).expect("memory");
    compressed
}

/// Returns a GIF with one frame of these dimensions, in one colour, on a canvas of 16×16 pixels.
pub fn gif_with_large_frame(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = encoded(RgbImage::new(width, height), ImageFormat::Gif);
    bytes[6..10].copy_from_slice(&[16, 0, 16, 0]);
    bytes
}

/// Returns a JPEG of [`gradient`] with segments of a kind after its first marker.
pub fn jpeg_with(width: u32, height: u32, code: u8, segments: &[Vec<u8>]) -> Vec<u8> {
    let plain = jpeg(width, height);
    let segments = segments.iter().map(|data| {
        let length = u16::try_from(data.len() + 2).expect("short").to_be_bytes();
        [&[0xFF, code], &length[..], data].concat()
    });
    let segments: Vec<_> = segments.collect();
    [&plain[..2], &segments.concat(), &plain[2..]].concat()
}

/// Returns a JPEG of [`gradient`].
pub fn jpeg(width: u32, height: u32) -> Vec<u8> {
    encoded(gradient(width, height), ImageFormat::Jpeg)
}

/// Returns a JPEG with an EXIF orientation and the EXIF description `secretplace`.
pub fn rotated_jpeg(width: u32, height: u32, orientation: u8) -> Vec<u8> {
    let mut exif = b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x02".to_vec();
    exif.extend_from_slice(&[0x01, 0x12, 0, 3, 0, 0, 0, 1, 0, orientation, 0, 0]);
    // ImageDescription, at offset 38.
    exif.extend_from_slice(&[0x01, 0x0e, 0, 2, 0, 0, 0, 12, 0, 0, 0, 38, 0, 0, 0, 0]);
    exif.extend_from_slice(b"secretplace\0");
    jpeg_with(width, height, 0xE1, &[exif])
}

/// Returns a progressive JPEG with as many scans, each of a byte: a decoder reads zeros behind it, and decodes a coefficient
/// from each 17 of them.
pub fn jpeg_of_scans(side: u16, scans: u8) -> Vec<u8> {
    let [high, low] = side.to_be_bytes();
    let channels = [1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0];
    let frame = [
        &[0xFF, 0xC2, 0, 17, 8, high, low, high, low, 3][..],
        &channels,
    ]
    .concat();
    let quantization = [&[0xFF, 0xDB, 0, 67, 0][..], &[1; 64]].concat();
    // The only code has 16 bits.
    let codes = [&[0xFF, 0xC4, 0, 20, 0x10][..], &[0; 15], &[1, 1]].concat();
    let scan = |number: u8| [0xFF, 0xDA, 0, 8, 1, number % 3 + 1, 0, 1, 63, 0, 0];
    let scans: Vec<_> = (0..scans).flat_map(scan).collect();
    [
        &b"\xFF\xD8"[..],
        &quantization,
        &frame,
        &codes,
        &scans,
        b"\xFF\xD9",
    ]
    .concat()
}

/// Returns a GIF of [`gradient`].
pub fn gif(width: u32, height: u32) -> Vec<u8> {
    encoded(gradient(width, height), ImageFormat::Gif)
}

/// Returns a GIF of two frames.
pub fn gif_animation(width: u32, height: u32) -> Vec<u8> {
    let frame = Frame::new(DynamicImage::from(gradient(width, height)).to_rgba8());
    let mut bytes = Vec::new();
    let frames = GifEncoder::new(&mut bytes).encode_frames([frame.clone(), frame]);
    frames.expect("an image");
    bytes
}

/// Returns a lossless WebP, which has one chunk.
pub fn webp(width: u32, height: u32) -> Vec<u8> {
    encoded(gradient(width, height), ImageFormat::WebP)
}

/// Returns a lossy WebP of [`gradient`] with 400×300 pixels, which has one chunk. The crate `image` only writes lossless ones.
pub fn lossy_webp() -> Vec<u8> {
    include_bytes!("pictures/gradient.webp").to_vec()
}

/// Returns a lossy WebP with 2,048×2,048 pixels of one colour.
pub fn large_lossy_webp() -> Vec<u8> {
    include_bytes!("pictures/flat_2048.webp").to_vec()
}

/// Returns a chunk of a WebP.
pub fn webp_chunk(kind: [u8; 4], data: &[&[u8]]) -> Vec<u8> {
    let data = data.concat();
    let length = u32::try_from(data.len()).expect("short").to_le_bytes();
    let padding = vec![0; data.len() % 2];
    [&kind[..], &length, &data, &padding].concat()
}

/// Returns a WebP with these chunks.
pub fn riff(chunks: &[&[u8]]) -> Vec<u8> {
    webp_chunk(*b"RIFF", &[b"WEBP", &chunks.concat()])
}

/// Returns a chunk with a lossy image, as far as its header.
pub fn vp8_chunk(width: u16, height: u16) -> Vec<u8> {
    let [a, b] = width.to_le_bytes();
    let [c, d] = height.to_le_bytes();
    webp_chunk(*b"VP8 ", &[&[0x10, 2, 0, 0x9D, 0x01, 0x2A, a, b, c, d, 7]])
}

/// Returns 24 bits for each number.
fn triples(numbers: [u32; 2]) -> Vec<u8> {
    let bytes = numbers.map(u32::to_le_bytes);
    bytes.iter().flat_map(|bytes| bytes[..3].to_vec()).collect()
}

/// Returns a frame of a WebP animation. The offset counts two pixels.
pub fn webp_frame(offset: [u32; 2], [width, height]: [u32; 2], chunks: &[&[u8]]) -> Vec<u8> {
    let head = [
        triples(offset),
        triples([width - 1, height - 1]),
        vec![0; 4],
    ]
    .concat();
    webp_chunk(*b"ANMF", &[&head, &chunks.concat()])
}

/// Returns the chunk with the canvas of a WebP.
pub fn webp_canvas(flags: u8, [width, height]: [u32; 2]) -> Vec<u8> {
    webp_chunk(
        *b"VP8X",
        &[&[flags, 0, 0, 0], &triples([width - 1, height - 1])],
    )
}

/// Returns a WebP with a canvas and these chunks.
pub fn still_webp(canvas: [u32; 2], chunks: &[&[u8]]) -> Vec<u8> {
    riff(&[&webp_canvas(0, canvas), &chunks.concat()])
}

/// Returns a WebP animation with these frames.
pub fn webp_animation(canvas: [u32; 2], frames: &[&[u8]]) -> Vec<u8> {
    let head = webp_chunk(*b"ANIM", &[&[0; 6]]);
    riff(&[&webp_canvas(2, canvas), &head, &frames.concat()])
}

/// Returns a JPEG of noise, which compresses badly, padded after its end to exactly this many bytes.
pub fn large_jpeg(bytes: usize) -> Vec<u8> {
    let side = u32::try_from((bytes / 3).isqrt()).expect("a side");
    let mut state = 1_u32;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_be_bytes()[0]
    })
    .take(usize::try_from(side * side * 3).expect("pixels"))
    .collect();
    let mut jpeg = Vec::new();
    JpegEncoder::new_with_quality(&mut jpeg, 95)
        .write_image(&noise, side, side, ExtendedColorType::Rgb8)
        .expect("an image");
    assert!((bytes / 3..=bytes).contains(&jpeg.len()), "{}", jpeg.len());
    jpeg.resize(bytes, 7);
    jpeg
}

/// Returns the width and height of an image, as the crate `image` reads them.
pub fn size(bytes: &[u8]) -> (u32, u32) {
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let decoder = reader.expect("bytes").into_decoder().expect("an image");
    decoder.dimensions()
}

/// Decodes an image of any format.
pub fn decode(bytes: &[u8]) -> DynamicImage {
    image::load_from_memory(bytes).expect("an image")
}

/// Name of the file that names the database that a folder of images belongs to.
pub const MARKER: &str = ".database";

/// Returns all files below `folder` except the marker, or none if there is no folder.
pub fn files_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let entries = entries.map(|entry| entry.expect("an entry").path());
    entries
        .filter(|path| !path.ends_with(MARKER))
        .flat_map(|path| {
            if path.is_dir() {
                files_in(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}
