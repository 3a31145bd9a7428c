//! Tests of the image reader on small files that are built block by block: valid ones, and one fault at a time.

use pet_inventory::images::reader::Refusal::{self, Broken, EndsEarly, NotAnImage, TooManyPixels};
use test_support::*;

use super::reader::read;

/// Reads a file in small pieces, and returns the width and height.
fn size(file: &[u8]) -> Result<(u32, u32), Refusal> {
    read(file, 7).map(|facts| (facts.width, facts.height))
}

fn assert_broken(what: &str, file: &[u8]) {
    let size = size(file);
    assert!(matches!(size, Err(Broken(_))), "{what}: {size:?}");
}

type PngChunk<'a> = (&'a [u8; 4], &'a [u8]);

fn png_of(chunks: &[PngChunk<'_>]) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, data) in chunks {
        file.extend(png_chunk(**kind, &[data]));
    }
    file
}

/// Returns the data of an `IHDR` chunk for 5×4 pixels.
fn ihdr(depth: u8, colour: u8) -> Vec<u8> {
    vec![0, 0, 0, 5, 0, 0, 0, 4, depth, colour, 0, 0, 0]
}

/// Pixels that begin as a zlib stream does.
const IDAT: PngChunk<'_> = (b"IDAT", b"\x78\x9cpixels");
const IEND: PngChunk<'_> = (b"IEND", b"");

#[test]
fn reader_refuses_a_png_with_an_invalid_header() {
    for (depth, colour) in (0..=17).flat_map(|depth| (0..=7).map(move |colour| (depth, colour))) {
        let header = ihdr(depth, colour);
        let file = png_of(&[(b"IHDR", &header), (b"PLTE", b"rgb"), IDAT, IEND]);
        // ISO/IEC 15948, table 11.1.
        let depths: &[u8] = match colour {
            0 => &[1, 2, 4, 8, 16],
            3 => &[1, 2, 4, 8],
            2 | 4 | 6 => &[8, 16],
            _ => &[],
        };
        let is_valid = size(&file) == Ok((5, 4));
        assert_eq!(is_valid, depths.contains(&depth), "{depth} bits, {colour}");
    }
    for (at, value, is_valid) in [
        (10, 1, false),
        (11, 1, false),
        (12, 1, true),
        (12, 2, false),
    ] {
        let mut header = ihdr(8, 2);
        header[at] = value;
        let file = png_of(&[(b"IHDR", &header), IDAT, IEND]);
        assert_eq!(size(&file).is_ok(), is_valid, "{value} at {at}");
    }
    let header = ihdr(8, 2);
    for length in [0, 12, 14] {
        let header = [&header[..], b"more"].concat();
        let file = png_of(&[(b"IHDR", &header[..length]), IDAT, IEND]);
        assert_broken("header of another length", &file);
    }
    assert_broken("no header", &png_of(&[IDAT, IEND]));
    let late = png_of(&[(b"tEXt", b"a"), (b"IHDR", &header), IDAT, IEND]);
    assert_broken("chunk before the header", &late);
    let twice = png_of(&[(b"IHDR", &header), (b"IHDR", &header), IDAT, IEND]);
    assert_broken("two headers", &twice);
}

#[test]
fn reader_refuses_a_png_without_palette_pixels_or_end() {
    let (rgb, indexed) = (ihdr(8, 2), ihdr(8, 3));
    let palette: PngChunk<'_> = (b"PLTE", b"rgb");
    let empty: PngChunk<'_> = (b"IDAT", b"");
    let file = |chunks: &[PngChunk<'_>]| png_of(chunks);
    let valid = [
        file(&[(b"IHDR", &rgb), IDAT, IEND]),
        file(&[(b"IHDR", &rgb), empty, IDAT, empty, IEND]),
        file(&[(b"IHDR", &indexed), palette, IDAT, IEND]),
        file(&[(b"IHDR", &rgb), palette, (b"teSt", b""), IDAT, IEND]),
    ];
    for file in valid {
        assert_eq!(size(&file), Ok((5, 4)));
    }
    let cases: [(&str, &[PngChunk<'_>]); 7] = [
        ("no palette", &[(b"IHDR", &indexed), IDAT, IEND]),
        (
            "empty palette",
            &[(b"IHDR", &indexed), (b"PLTE", b""), IDAT, IEND],
        ),
        ("late palette", &[(b"IHDR", &indexed), IDAT, palette, IEND]),
        ("no pixels", &[(b"IHDR", &rgb), IEND]),
        ("empty pixels", &[(b"IHDR", &rgb), empty, empty, IEND]),
        ("end with data", &[(b"IHDR", &rgb), IDAT, (b"IEND", b"a")]),
        (
            "type that is no text",
            &[(b"IHDR", &rgb), (b"te\0t", b""), IDAT, IEND],
        ),
    ];
    for (what, chunks) in cases {
        assert_broken(what, &file(chunks));
    }
    assert_eq!(size(&file(&[(b"IHDR", &rgb), IDAT])), Err(EndsEarly));
    let mut damaged = file(&[(b"IHDR", &rgb), IDAT, IEND]);
    *damaged.last_mut().expect("bytes") ^= 1;
    assert_broken("wrong checksum of the end", &damaged);
}

/// Returns a GIF of 6×5 pixels with these blocks.
#[test]
fn reader_refuses_a_png_with_pixels_that_are_not_zlib() {
    let header = ihdr(8, 2);
    let file = |pixels: &[&[u8]]| {
        let pixels = pixels.iter().map(|data| (b"IDAT", *data));
        let chunks: Vec<PngChunk<'_>> = [(b"IHDR", &header[..])]
            .into_iter()
            .chain(pixels)
            .chain([IEND])
            .collect();
        size(&png_of(&chunks))
    };
    for pixels in [
        &[&b"\x78\x9cpixels"[..]][..],
        &[b"\x08\x1dpixels"],
        // The header may be divided between chunks.
        &[b"", b"\x78", b"", b"\x9c", b"pixels"],
    ] {
        assert_eq!(file(pixels), Ok((5, 4)), "{pixels:?}");
    }
    for (what, pixels) in [
        ("text", &[&b"pixels"[..]][..]),
        ("zeros", &[&[0; 40]]),
        ("gzip", &[b"\x1f\x8b\x08\0\0\0\0\0\0\x03"]),
        ("wrong check bits", &[b"\x78\x9dpixels"]),
        ("another method", &[b"\x79\x18pixels"]),
        ("too large a window", &[b"\x88\x1cpixels"]),
        ("a preset dictionary", &[b"\x78\xbbpixels"]),
        ("half a header", &[b"\x78"]),
        ("text in two chunks", &[b"p", b"ixels"]),
        ("a second half that does not fit", &[b"\x78", b"pixels"]),
    ] {
        let read = file(pixels);
        assert!(matches!(read, Err(Broken(_))), "{what}: {read:?}");
    }
}

#[test]
fn reader_refuses_a_png_with_a_frame_beyond_its_canvas() {
    let frame = |[width, height, x, y]: [u32; 4]| {
        let numbers = [0, width, height, x, y].map(u32::to_be_bytes).concat();
        let control = [&numbers[..], &[0; 6]].concat();
        let header = ihdr(8, 2);
        size(&png_of(&[
            (b"IHDR", &header),
            (b"acTL", &[0; 8]),
            (b"fcTL", &control),
            IDAT,
            IEND,
        ]))
    };
    for frame_size in [[5, 4, 0, 0], [1, 1, 4, 3]] {
        assert_eq!(frame(frame_size), Ok((5, 4)), "{frame_size:?}");
    }
    for frame_size in [
        [8_192, 8_192, 0, 0],
        [5, 5, 0, 0],
        [5, 4, 1, 0],
        [1, 1, 4, 4],
        [0, 4, 0, 0],
        [2, 2, u32::MAX, u32::MAX],
    ] {
        assert!(
            matches!(frame(frame_size), Err(Broken(_))),
            "{frame_size:?}"
        );
    }
    let header = ihdr(8, 2);
    let short = png_of(&[(b"IHDR", &header), (b"fcTL", &[0; 25]), IDAT, IEND]);
    assert_broken("a short frame control", &short);
}

fn gif_of(blocks: &[&[u8]]) -> Vec<u8> {
    let head: &[u8] = b"GIF89a\x06\0\x05\0\x80\0\0rgbrgb";
    [head, &blocks.concat()].concat()
}

/// Returns a frame at x, y, with a local palette of two colours if `packed` is 80.
fn gif_frame([x, y, width, height]: [u8; 4], packed: u8, code_size: u8) -> Vec<u8> {
    let palette: &[u8] = if packed & 0x80 == 0 { b"" } else { b"rgbrgb" };
    let head = [0x2C, x, 0, y, 0, width, 0, height, 0, packed];
    [&head[..], palette, &[code_size], b"\x03abc\x01d\0"].concat()
}

const CONTROL: &[u8] = b"\x21\xf9\x04\0\0\0\0\0";
const TRAILER: &[u8] = b"\x3b";

#[test]
fn reader_refuses_a_gif_with_an_invalid_code_size() {
    for code_size in 0..=u8::MAX {
        for packed in [0, 0x80] {
            let frame = gif_frame([0, 0, 6, 5], packed, code_size);
            let size = size(&gif_of(&[CONTROL, &frame, TRAILER]));
            let is_valid = (2..=8).contains(&code_size);
            assert_eq!(size.is_ok(), is_valid, "{code_size}: {size:?}");
        }
    }
}

#[test]
fn reader_refuses_a_gif_with_a_frame_beyond_its_canvas() {
    let whole = gif_frame([0, 0, 6, 5], 0, 2);
    for (place, is_valid) in [
        ([0, 0, 6, 5], true),
        ([2, 1, 4, 4], true),
        ([5, 4, 1, 1], true),
        ([0, 0, 7, 5], false),
        ([0, 0, 6, 6], false),
        ([1, 0, 6, 5], false),
        ([0, 1, 6, 5], false),
        ([6, 0, 1, 1], false),
        ([0, 0, 0, 5], false),
        ([0, 0, 6, 0], false),
    ] {
        let frame = gif_frame(place, 0x80, 2);
        for blocks in [&[&frame[..], TRAILER][..], &[&whole, &frame, TRAILER]] {
            let size = size(&gif_of(blocks));
            assert_eq!(size.is_ok(), is_valid, "{place:?}: {size:?}");
        }
    }
    // 65,535 pixels on each side, on a canvas of 6×5.
    let mut huge = gif_frame([0, 0, 6, 5], 0, 2);
    huge[5..9].fill(0xFF);
    assert_broken("huge frame", &gif_of(&[&huge, TRAILER]));
}

#[test]
fn reader_refuses_a_truncated_gif() {
    let frame = gif_frame([0, 0, 6, 5], 0x80, 2);
    let comment: &[u8] = b"\x21\xfe\x02ab\0";
    let file = gif_of(&[comment, &frame, CONTROL, &frame, TRAILER]);
    assert_eq!(size(&file), Ok((6, 5)));
    for length in 0..file.len() {
        assert_eq!(size(&file[..length]), Err(EndsEarly), "{length} bytes");
    }
    assert_broken("no frame", &gif_of(&[comment, TRAILER]));
    assert_broken("unknown block", &gif_of(&[&frame, b"\0", TRAILER]));
    let mut unknown = gif(6, 5);
    unknown[4] = b'8';
    assert_eq!(size(&unknown), Err(NotAnImage));
}

/// Decoders allocate memory by the size in the image data, and compare it with the others only after decoding.
#[test]
fn reader_refuses_a_webp_with_image_data_of_another_size() {
    let alpha = webp_chunk(*b"ALPH", &[b"alpha"]);
    for (name, image) in [
        ("VP8", vp8_chunk(40, 26)),
        ("VP8L", webp(40, 26)[12..].to_vec()),
    ] {
        let frame = webp_frame([0, 0], [40, 26], &[&image]);
        for (canvas, still, animation) in [
            ([40, 26], true, true),
            ([50, 30], false, true),
            ([39, 26], false, false),
            ([40, 25], false, false),
        ] {
            let file = still_webp(canvas, &[&alpha, &image]);
            assert_eq!(size(&file).is_ok(), still, "{name}, {canvas:?}");
            let file = webp_animation(canvas, &[&frame, &frame]);
            let expected = (canvas[0], canvas[1]);
            assert_eq!(
                size(&file).ok() == Some(expected),
                animation,
                "{name}, {canvas:?}"
            );
        }
    }
    let (small, huge) = (vp8_chunk(40, 26), vp8_chunk(16_383, 16_383));
    assert_eq!(size(&riff(&[&huge])), Err(TooManyPixels));
    assert_broken("huge still image", &still_webp([40, 26], &[&huge]));
    let valid = webp_frame([0, 0], [40, 26], &[&small]);
    for hidden in [
        webp_frame([0, 0], [40, 26], &[&huge]),
        webp_frame([0, 0], [40, 26], &[&alpha, &huge]),
        webp_frame([0, 0], [40, 26], &[&small, &huge]),
        webp_frame([0, 0], [16_383, 16_383], &[&huge]),
        huge.clone(),
    ] {
        for frames in [&[&hidden[..]][..], &[&valid, &hidden], &[&hidden, &valid]] {
            assert_broken("huge frame", &webp_animation([40, 26], frames));
        }
    }
}

#[test]
fn reader_refuses_a_webp_with_a_frame_beyond_its_canvas() {
    let frame = |place, side: [u32; 2]| {
        let short = |side: u32| u16::try_from(side).expect("short");
        webp_frame(place, side, &[&vp8_chunk(short(side[0]), short(side[1]))])
    };
    let whole = frame([0, 0], [40, 26]);
    // Offsets count two pixels.
    for (place, side, is_valid) in [
        ([0, 0], [40, 26], true),
        ([10, 3], [20, 20], true),
        ([19, 12], [2, 2], true),
        ([1, 0], [40, 26], false),
        ([0, 1], [40, 26], false),
        ([20, 0], [1, 1], false),
        ([0xFF_FFFF, 0], [1, 1], false),
    ] {
        for frames in [
            &[&frame(place, side)[..]][..],
            &[&whole, &frame(place, side)],
        ] {
            let size = size(&webp_animation([40, 26], frames));
            assert_eq!(size.is_ok(), is_valid, "{place:?}, {side:?}: {size:?}");
        }
    }
}

#[test]
fn reader_refuses_a_webp_with_chunks_out_of_place() {
    let image = vp8_chunk(40, 26);
    let frame = webp_frame([0, 0], [40, 26], &[&image]);
    let nested = webp_frame([0, 0], [40, 26], &[&frame]);
    let empty = webp_frame([0, 0], [40, 26], &[]);
    let text = webp_chunk(*b"XMP ", &[b"text"]);
    let canvas = &still_webp([40, 26], &[])[12..];
    assert_eq!(
        size(&still_webp([40, 26], &[&text, &image, &text])),
        Ok((40, 26))
    );
    assert_eq!(size(&riff(&[&image, &text])), Ok((40, 26)));
    for (what, file) in [
        ("no chunk", [riff(&[]), vec![0]].concat()),
        ("no image", still_webp([40, 26], &[&text])),
        ("no frame", webp_animation([40, 26], &[&text])),
        (
            "frame without image",
            webp_animation([40, 26], &[&frame, &empty]),
        ),
        (
            "empty frame before another",
            webp_animation([40, 26], &[&empty, &frame]),
        ),
        (
            "image after an empty frame",
            webp_animation([40, 26], &[&empty, &image]),
        ),
        ("frame within a frame", webp_animation([40, 26], &[&nested])),
        ("frame without canvas", riff(&[&frame])),
        ("text before the image", riff(&[&text, &image])),
        ("two images", riff(&[&image, &image])),
        (
            "two images on a canvas",
            still_webp([40, 26], &[&image, &image]),
        ),
        ("two canvases", still_webp([40, 26], &[canvas, &image])),
        ("canvas after the image", riff(&[&image, canvas])),
        (
            "short canvas",
            riff(&[&webp_chunk(*b"VP8X", &[&[0; 9]]), &image]),
        ),
        (
            "short frame",
            webp_animation([40, 26], &[&webp_chunk(*b"ANMF", &[&[0; 15]]), &frame]),
        ),
        ("no start code", riff(&[&webp_chunk(*b"VP8 ", &[&[0; 10]])])),
        (
            "no key frame",
            riff(&[&webp_chunk(
                *b"VP8 ",
                &[b"\x01\0\0\x9d\x01\x2a\x28\0\x1a\0"],
            )]),
        ),
        ("no signature", riff(&[&webp_chunk(*b"VP8L", &[&[0; 5]])])),
        ("no pixels", riff(&[&vp8_chunk(0, 26)])),
    ] {
        assert_broken(what, &file);
    }
    assert_eq!(size(&still_webp([8_193, 1], &[&image])), Err(TooManyPixels));

    // Lengths that exceed the frame and the container.
    for (at, what) in [(30 + 8 + 16 + 4, "image"), (30 + 4, "frame")] {
        let mut file = webp_animation([40, 26], &[&frame]);
        // After the ANIM chunk.
        file[14 + at] += 2;
        assert_broken(what, &file);
    }
    let mut file = riff(&[&image]);
    file[4] -= 2;
    assert_broken("short container", &file);
    file[4] += 4;
    assert_eq!(size(&file), Err(EndsEarly));
    file[8] = b'w';
    assert_eq!(size(&file), Err(NotAnImage));
}

/// Renderings cut these bytes off, since the decoder reads some of them.
#[test]
fn reader_ignores_bytes_after_the_webp_container() {
    let image = vp8_chunk(40, 26);
    for after in [vp8_chunk(16_383, 16_383), b"VP8X".to_vec(), vec![0; 100]] {
        let file = [still_webp([40, 26], &[&image]), after].concat();
        assert_eq!(size(&file), Ok((40, 26)));
    }
}

const FRAME_HEADER: &[u8] = b"\xff\xc0\0\x0b\x08\0\x05\0\x06\x01\x01\x11\0";
const SCAN: &[u8] = b"\xff\xda\0\x08\x01\x01\0\0\x3f\0pixels\xff\0\xff\xd0more";
const COMMENT: &[u8] = b"\xff\xfe\0\x04ab";

fn jpeg_of(segments: &[&[u8]]) -> Vec<u8> {
    [b"\xff\xd8", &segments.concat()[..], b"\xff\xd9"].concat()
}

#[test]
fn reader_refuses_a_jpeg_with_invalid_segments() {
    let changed = |at: usize, value: u8| {
        let mut header = FRAME_HEADER.to_vec();
        header[at] = value;
        header
    };
    let valid: [&[&[u8]]; 4] = [
        &[FRAME_HEADER, SCAN],
        &[COMMENT, FRAME_HEADER, COMMENT, SCAN, COMMENT, SCAN],
        &[
            b"\xff\xff\xff",
            FRAME_HEADER,
            SCAN,
            b"\xff\xff\xff",
            COMMENT,
        ],
        &[&changed(1, 0xC2), SCAN],
    ];
    for segments in valid {
        assert_eq!(size(&jpeg_of(segments)), Ok((6, 5)), "{segments:x?}");
    }
    let broken: [(&str, &[&[u8]]); 19] = [
        ("no scan", &[COMMENT, FRAME_HEADER]),
        ("no frame", &[COMMENT, b"\xff\xfe\0\x02"]),
        ("scan before the frame", &[COMMENT, SCAN, FRAME_HEADER]),
        ("two frames", &[FRAME_HEADER, FRAME_HEADER, SCAN]),
        (
            "two frames, one after a scan",
            &[FRAME_HEADER, SCAN, FRAME_HEADER, SCAN],
        ),
        ("lossless", &[&changed(1, 0xC3), SCAN]),
        ("arithmetic coding", &[&changed(1, 0xC9), SCAN]),
        ("12 bits", &[&changed(4, 12), SCAN]),
        ("two components", &[&changed(9, 2), SCAN]),
        ("wrong length", &[&changed(3, 0x0C), SCAN]),
        ("no height", &[&changed(6, 0), SCAN]),
        ("no width", &[&changed(8, 0), SCAN]),
        ("bytes before a marker", &[FRAME_HEADER, b"ab", SCAN]),
        (
            "bytes after a segment that follows a scan",
            &[FRAME_HEADER, SCAN, COMMENT, b"ab"],
        ),
        ("restart without a scan", &[FRAME_HEADER, b"\xff\xd0", SCAN]),
        (
            "restart after a segment that follows a scan",
            &[FRAME_HEADER, SCAN, COMMENT, b"\xff\xd0"],
        ),
        ("second start", &[b"\xff\xd8", FRAME_HEADER, SCAN]),
        (
            "segment of one byte",
            &[FRAME_HEADER, b"\xff\xfe\0\x01", SCAN],
        ),
        ("scan of one byte", &[FRAME_HEADER, b"\xff\xda\0\x01"]),
    ];
    for (what, segments) in broken {
        assert_broken(what, &jpeg_of(segments));
    }
    for at in [5, 7] {
        let wide = jpeg_of(&[&changed(at, 0x21), SCAN]);
        assert_eq!(size(&wide), Err(TooManyPixels));
    }
}

/// The files of an encoder, as a check of the builders in this module.
#[test]
fn reader_accepts_the_files_of_encoders() {
    for file in [png(6, 5), jpeg(6, 5), gif(6, 5), webp(6, 5)] {
        assert_eq!(size(&file), Ok((6, 5)));
    }
}
