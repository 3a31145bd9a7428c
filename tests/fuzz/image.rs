//! Images: the reader accepts them in pieces of any size, none that is cut off, and within a fixed memory. It agrees
//! with the decoders about type and dimensions.

use std::io::Cursor;

use image::{ImageFormat, ImageReader};
use pet_inventory::{
    domain::image::{Facts, ImageType, MAX_SIDE},
    images::reader::{Reader, Refusal},
};

/// Maximum memory in bytes of the reader.
const MAX_MEMORY: u64 = 256;

crate::target!("image", check);

fn check(input: &[u8]) {
    let (facts, memory) = crate::measure(|| read(input, input.len()));
    assert!(memory <= MAX_MEMORY, "{memory} bytes");
    for piece in [1, 7, 64] {
        assert_eq!(read(input, piece), facts, "in pieces of {piece}");
    }
    let Ok(facts) = facts else { return };
    assert!((1..=MAX_SIDE).contains(&facts.width) && (1..=MAX_SIDE).contains(&facts.height));

    let ends = |length: &usize| read(&input[..*length], *length) == Err(Refusal::EndsEarly);
    let lengths: Vec<_> = (0..=input.len()).collect();
    let end = lengths.partition_point(ends);
    // All shorter ones are incomplete, and bytes after the end change nothing.
    for length in [end / 3, end / 2, end.saturating_sub(1)] {
        assert_eq!(read(&input[..length], length), Err(Refusal::EndsEarly));
    }
    for length in [end, usize::midpoint(end, input.len())] {
        assert_eq!(read(&input[..length], length), Ok(facts));
    }
    let decoder = ImageReader::with_format(Cursor::new(&input[..end]), format(facts.kind));
    if let Ok(dimensions) = decoder.into_dimensions() {
        assert_eq!(dimensions, (facts.width, facts.height));
    }
}

fn read(bytes: &[u8], piece: usize) -> Result<Facts, Refusal> {
    let mut reader = Reader::default();
    for piece in bytes.chunks(piece.max(1)) {
        reader.feed(piece)?;
    }
    reader.finish()
}

const fn format(kind: ImageType) -> ImageFormat {
    match kind {
        ImageType::Png => ImageFormat::Png,
        ImageType::Jpeg => ImageFormat::Jpeg,
        ImageType::Gif => ImageFormat::Gif,
        ImageType::WebP => ImageFormat::WebP,
    }
}
