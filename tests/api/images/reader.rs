//! Tests of the image reader, which detects type and dimensions, on intact and damaged files.

use std::sync::LazyLock;

use pet_inventory::{
    domain::image::{Facts, ImageType},
    images::reader::{Reader, Refusal},
};
use proptest::prelude::*;
use test_support::images::gif_animation;
use test_support::*;

pub fn read(bytes: &[u8], piece: usize) -> Result<Facts, Refusal> {
    let mut reader = Reader::default();
    for piece in bytes.chunks(piece) {
        reader.feed(piece)?;
    }
    reader.finish()
}

static FILES: LazyLock<[(ImageType, Vec<u8>); 7]> = LazyLock::new(|| {
    let frame = webp_frame([1, 2], [40, 26], &[&webp(40, 26)[12..]]);
    [
        (ImageType::Png, png(37, 23)),
        (ImageType::Jpeg, jpeg(38, 24)),
        (ImageType::Jpeg, rotated_jpeg(38, 24, 6)),
        (ImageType::Gif, gif(39, 25)),
        (ImageType::Gif, gif_animation(39, 25)),
        (ImageType::WebP, webp(40, 26)),
        (ImageType::WebP, webp_animation([50, 30], &[&frame, &frame])),
    ]
});

#[test]
fn reader_accepts_files_in_pieces_of_any_size() {
    for (kind, bytes) in &*FILES {
        let (width, height) = images::size(bytes);
        let facts = Facts {
            kind: *kind,
            width,
            height,
        };
        for piece in [1, 2, 3, 7, 64, bytes.len()] {
            assert_eq!(
                read(bytes, piece),
                Ok(facts),
                "{kind:?} in pieces of {piece}"
            );
        }
        // Bytes after the end of the image are ignored.
        let followed = [&bytes[..], b"<script>PK\x03\x04"].concat();
        assert_eq!(read(&followed, 5), Ok(facts), "{kind:?}");
    }
}

#[test]
fn reader_refuses_a_file_cut_off_anywhere() {
    for (kind, bytes) in &*FILES {
        for length in 0..bytes.len() {
            let refusal = read(&bytes[..length], 64).expect_err("cut off");
            let is_refused = matches!(refusal, Refusal::EndsEarly | Refusal::NotAnImage);
            assert!(is_refused, "{kind:?} of {length} bytes: {refusal:?}");
            if length >= 3 {
                assert_eq!(refusal, Refusal::EndsEarly, "{kind:?} of {length} bytes");
            }
        }
    }
}

/// The header is enough to refuse an image; its pixels have not arrived yet.
#[test]
fn reader_refuses_too_many_pixels_at_the_header() {
    let mut big = png(10, 10);
    big[16..24].copy_from_slice(&[0, 0, 0xC3, 0x50, 0, 0, 0xC3, 0x50]);
    assert_eq!(read(&big[..40], 40), Err(Refusal::TooManyPixels));
    let mut big = gif(10, 10);
    big[6..10].copy_from_slice(&[0xFF, 0xFF, 0x01, 0x00]);
    assert_eq!(read(&big[..13], 13), Err(Refusal::TooManyPixels));
    for (width, height, refused) in [(8_192, 1, false), (8_193, 1, true), (1, 8_193, true)] {
        let read = read(&png(width, height), 1_000);
        assert_eq!(read.is_err(), refused, "{width}×{height}: {read:?}");
    }
    let mut none = png(10, 10);
    none[16..20].copy_from_slice(&[0; 4]);
    assert!(matches!(read(&none, 100), Err(Refusal::Broken(_))));
}

/// A scan takes a few bytes, but costs a decoder a pass over all pixels.
#[test]
fn reader_refuses_a_jpeg_with_too_many_scans() {
    let jpeg = jpeg(10, 10);
    let scan = jpeg.windows(2).position(|two| two == b"\xff\xda");
    let (head, scan) = jpeg.split_at(scan.expect("a scan"));
    let scan = &scan[..scan.len() - 2];
    let of = |scans: usize| [head, &scan.repeat(scans), b"\xff\xd9"].concat();
    assert!(read(&of(20), 100).is_ok());
    assert!(matches!(read(&of(65), 100), Err(Refusal::Broken(_))));
}

#[test]
fn reader_refuses_a_png_with_a_flipped_bit() {
    let whole = png(20, 20);
    for at in 8..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        assert!(read(&damaged, 100).is_err(), "byte {at}");
    }
}

fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..5_u8), 1..8);
    (0..FILES.len(), edits).prop_map(|(which, edits)| {
        let mut bytes = FILES[which].1.clone();
        for (at, byte, how) in edits {
            let at = at.index(bytes.len().max(1));
            match how {
                0 => bytes.truncate(at.max(4)),
                1 => bytes.insert(at, byte),
                2 => drop(bytes.remove(at)),
                3 => bytes.extend_from_within(at..),
                _ => bytes[at] = byte,
            }
            if bytes.is_empty() {
                bytes.push(byte);
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn reader_result_does_not_depend_on_the_size_of_pieces(bytes in mutated(), piece in 1_usize..200) {
        let whole = read(&bytes, bytes.len().max(1));
        let cut = read(&bytes, piece);
        prop_assert_eq!(whole, cut);
        if let Ok(facts) = whole {
            prop_assert!((1..=8_192).contains(&facts.width) && (1..=8_192).contains(&facts.height));
        }
    }

    #[test]
    fn reader_smoke_test_random_bytes_do_not_panic(
        signature in 0..5_usize, bytes in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let signatures: [&[u8]; 5] = [
            b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR", b"\xff\xd8\xff\xc0", b"GIF89a", b"RIFF\xff\0\0\0WEBPVP8X", b"",
        ];
        let _ = read(&[signatures[signature], &bytes].concat(), 64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// A part of a damaged file, repeated to a MiB, costs no more than linear time.
    #[test]
    fn reader_time_is_linear_for_damaged_files(
        bytes in mutated(), begin: prop::sample::Index, length in 1_usize..300, piece in 16_usize..70_000,
    ) {
        let begin = begin.index(bytes.len());
        let end = bytes.len().min(begin + length);
        let repeated = bytes[begin..end].repeat((1 << 20) / (end - begin));
        let file = [&bytes[..begin], &repeated, &bytes[end..]].concat();
        let started = Instant::now();
        let _ = read(&file, piece);
        // A reader with quadratic costs takes hours.
        prop_assert!(started.elapsed() < PATIENCE);
    }
}

/// Reads files that consist of the most expensive structures of each format.
#[test]
fn reader_time_is_bounded_by_the_number_of_bytes() {
    const SIZE: usize = 4 << 20;
    let fill = |begin: &[u8], unit: &[u8]| {
        let mut bytes = begin.to_vec();
        while bytes.len() < SIZE {
            bytes.extend_from_slice(unit);
        }
        bytes
    };
    let jpeg = jpeg(10, 10);
    let scan = jpeg
        .windows(2)
        .position(|two| two == b"\xff\xda")
        .expect("a scan");
    let gif_head = b"GIF89a\x01\0\x01\0\0\0\0";
    let empty_chunk = [b"\0\0\0\0teSt", &crc32fast::hash(b"teSt").to_be_bytes()[..]].concat();
    let worst = [
        ("marks in a scan", fill(&jpeg[..scan + 14], b"\xff\0")),
        ("fill bytes", fill(&jpeg[..scan], b"\xff")),
        ("empty segments", fill(b"\xff\xd8", b"\xff\xfe\0\x02")),
        (
            "sub-blocks of a byte",
            fill(&[gif_head, &b"\x21\xfe"[..]].concat(), b"\x01a"),
        ),
        ("extensions", fill(gif_head, b"\x21\xfe\0")),
        ("chunks", fill(&png(1, 1)[..33], &empty_chunk)),
        (
            "WebP chunks",
            fill(
                b"RIFF\xff\xff\xff\x7fWEBPVP8X\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0",
                b"XMP \0\0\0\0",
            ),
        ),
    ];
    for (what, bytes) in worst {
        let started = Instant::now();
        let read = read(&bytes, 64 << 10);
        let took = started.elapsed();
        assert!(read.is_err(), "{what}: {read:?}");
        assert!(took < PATIENCE, "{what} took {took:?}");
    }
}
