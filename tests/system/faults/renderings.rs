//! Row 25: images that decode to more than their size shows.

use test_support::images::{
    deep_png, gif_with_large_frame, jpeg_of_scans, jpeg_with, large_lossy_webp, png_with, size,
    webp_canvas, zlib_zeros,
};
use test_support::*;

use crate::stage::*;

const MEBIBYTE: u64 = 1 << 20;
/// Size in bytes of metadata that is not compressed.
const LARGE: usize = 9 << 20;

/// Small images with metadata that is large, or becomes so when it is decompressed.
pub fn bombs() -> Vec<(&'static str, Vec<u8>)> {
    let zeros = zlib_zeros(512 << 20);
    let large = vec![b'x'; LARGE];
    let chunk = |kind: &[u8; 4], data: &[&[u8]]| png_with(16, 16, &png_chunk(*kind, data));
    let sections: Vec<_> = (1..=140_u8)
        .map(|number| [&b"ICC_PROFILE\0"[..], &[number, 140], &large[..65_000]].concat())
        .collect();
    let exif: Vec<_> = (0..140)
        .map(|_| [&b"Exif\0\0MM\0\x2a\0\0\0\x08\0\0"[..], &large[..65_000]].concat())
        .collect();
    let third = &large[..LARGE / 3];
    let metadata = riff(&[
        &webp_canvas(0x2C, [400, 300]),
        &webp_chunk(*b"ICCP", &[third]),
        &lossy_webp()[12..],
        &webp_chunk(*b"EXIF", &[third]),
        &webp_chunk(*b"XMP ", &[third]),
    ]);
    vec![
        ("iCCP in PNG", chunk(b"iCCP", &[b"a\0\0", &zeros])),
        (
            "zTXt in PNG",
            chunk(b"zTXt", &[b"Raw profile type iptc\0\0", &zeros]),
        ),
        (
            "iTXt in PNG",
            chunk(b"iTXt", &[b"XML:com.adobe.xmp\0\x01\0\0\0", &zeros]),
        ),
        ("tEXt in PNG", chunk(b"tEXt", &[b"a\0", &large])),
        ("eXIf in PNG", chunk(b"eXIf", &[b"MM\0\x2a", &large])),
        ("unknown chunk in PNG", chunk(b"teSt", &[&large])),
        ("colour profile in JPEG", jpeg_with(16, 16, 0xE2, &sections)),
        ("EXIF in JPEG", jpeg_with(16, 16, 0xE1, &exif)),
        ("metadata in WebP", metadata),
    ]
}

/// Images with a frame beyond the canvas, which the header shows.
fn frames_beyond_canvas() -> Vec<(&'static str, Vec<u8>)> {
    let numbers = [0, 8_192, 8_192, 0, 0].map(u32::to_be_bytes).concat();
    let control = png_chunk(*b"fcTL", &[&numbers, &[0; 6]]);
    let frame = webp_frame([0, 0], [4_096, 4_096], &[&webp(4_096, 4_096)[12..]]);
    vec![
        ("GIF", gif_with_large_frame(4_096, 4_096)),
        ("APNG", png_with(16, 16, &control)),
        ("WebP", webp_animation([16, 16], &[&frame])),
    ]
}

async fn upload(stage: &Stage, bytes: Vec<u8>) -> Response {
    let request = stage.target.request(Method::POST, "/pet/1/uploadImage");
    request.body(bytes).await
}

/// Uploads an image and returns its path.
async fn stored(stage: &Stage, bytes: Vec<u8>) -> String {
    let uploaded = upload(stage, bytes).await.is(200);
    format!("{}?width=16", uploaded.image_path())
}

/// Requests a rendering; returns its status, and by how many MiB the memory grew.
async fn render(stage: &Stage, path: &str) -> (u16, u64) {
    let mut status = 0;
    let growth = stage.memory_growth(async {
        let request = stage.target.anonymous(Method::GET, path);
        status = request.await.status;
    });
    let growth = growth.await / MEBIBYTE;
    (status, growth)
}

#[tokio::test(flavor = "multi_thread")]
async fn row_25_renderings_take_no_more_memory_than_was_admitted() {
    let mut row = Row::begin(25, "images that decode to more than their size shows").await;
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("file://{}", folder.path().display());
    let stage = Stage::start(&[("IMAGES__URL", &url)]).await;
    let pet = json!({"id": 1, "name": "Rex"});
    let added = stage.target.request(Method::POST, "/pet").json(&pet);
    added.is(201).await;

    let old = stored(&stage, gif(16, 17)).await;
    // As if an earlier version had accepted it.
    for only in files_in(folder.path()) {
        fs::write(only, gif_with_large_frame(8_192, 4_096)).expect("written");
    }
    let (status, growth) = render(&stage, &old).await;
    row.at_most(
        "MiB for a frame beyond the canvas of a stored GIF",
        growth,
        64,
    );
    row.check(&format!("its status {status}"), status == 200);
    for (what, bytes) in frames_beyond_canvas() {
        let status = upload(&stage, bytes).await.status;
        row.check(
            &format!("{status} for a frame beyond the canvas of {what}"),
            status == 400,
        );
    }
    let status = upload(&stage, jpeg_of_scans(8_192, 64)).await.status;
    row.check(
        &format!("{status} for 64 scans of the largest JPEG"),
        status == 400,
    );
    let path = stored(&stage, jpeg_of_scans(8_192, 20)).await;
    let before = stage.cpu_time();
    let (status, _) = render(&stage, &path).await;
    let time = stage.cpu_time().saturating_sub(before);
    row.within("CPU time for 20 scans", time, Duration::from_secs(5));
    row.check(&format!("its status {status}"), status == 200);
    for (what, bytes) in bombs() {
        let path = stored(&stage, bytes).await;
        let (status, growth) = render(&stage, &path).await;
        row.at_most(&format!("MiB for {what}"), growth, 64);
        row.check(&format!("its status {status}"), status == 200);
    }
    // Images without faults; in MiB, the memory that is admitted for each.
    let side = short_or_full(2_048, 8_192);
    for (what, bytes, per_pixel) in [
        ("PNG", png(side, side), 8),
        ("PNG of 16 bits", deep_png(side, side), 8),
        ("JPEG", jpeg(side, side), 11),
        ("GIF", gif(side, side), 12),
        ("lossy WebP", large_lossy_webp(), 12),
        ("JPEG of 9 MiB", large_jpeg(LARGE), 11),
    ] {
        let (width, height) = size(&bytes);
        let path = stored(&stage, bytes).await;
        let (status, growth) = render(&stage, &path).await;
        let bound = 64 + u64::from(width) * u64::from(height) * per_pixel / MEBIBYTE;
        row.at_most(
            &format!("MiB for a {what} of {width}×{height} pixels"),
            growth,
            bound,
        );
        row.check(&format!("its status {status}"), status == 200);
    }
    row.end();
}
