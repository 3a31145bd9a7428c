//! Tests of `GET /pet/{petId}/images/{imageId}`: caching headers, ranges and renderings.

use std::io::Cursor;

use image::DynamicImage;
use test_support::images::{decode, size};
use test_support::*;

use super::ImageApp;

#[tokio::test(flavor = "multi_thread")]
async fn image_is_served_as_immutable() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let bytes = large_jpeg(600_000);
    let image = app.image(pet, &bytes).await;
    let fetched = app.image_of(pet, &image).is(200).await;
    assert!(fetched.body == bytes, "other bytes");
    for (name, value) in [
        ("content-type", "image/jpeg"),
        ("cache-control", "public, max-age=31536000, immutable"),
        ("accept-ranges", "bytes"),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "default-src 'none'; sandbox"),
        (
            "content-disposition",
            &*format!("inline; filename=\"pet-{pet}-{image}.jpg\""),
        ),
        ("cross-origin-resource-policy", "cross-origin"),
    ] {
        assert_eq!(fetched.header(name), value);
    }
    assert_eq!(fetched.header("content-length"), bytes.len().to_string());
    let etag = fetched.etag();

    let head = app.anonymous(Method::HEAD, &format!("/pet/{pet}/images/{image}"));
    let head = head.header("range", "bytes=0-1").is(200).await;
    assert!(head.body.is_empty());
    for (name, value) in &fetched.headers {
        if !["date", "x-request-id"].contains(&name.as_str()) {
            assert_eq!(head.headers.get(name), Some(value), "{name}");
        }
    }

    for tags in [etag.as_str(), "*", &format!("\"x\", W/{etag}")] {
        let known = app
            .image_of(pet, &image)
            .header("if-none-match", tags)
            .is(304)
            .await;
        assert!(known.body.is_empty());
        assert_eq!(known.etag(), etag);
        assert_eq!(
            known.header("cache-control"),
            fetched.header("cache-control")
        );
    }
    app.image_of(pet, &image)
        .header("if-none-match", "\"x\"")
        .is(200)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn range_request_returns_the_named_bytes() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let bytes = large_jpeg(600_000);
    let image = app.image(pet, &bytes).await;
    let (size, etag) = (bytes.len(), app.image_of(pet, &image).await.etag());
    let get_range = async |range: &str| app.image_of(pet, &image).header("range", range).await;
    for (range, expected) in [
        ("bytes=0-0", 0..1),
        ("bytes=100-299999", 100..300_000),
        ("bytes=131071-131073", 131_071..131_074),
        ("bytes=-7", size - 7..size),
        (&format!("bytes={}-", size - 1), size - 1..size),
        ("bytes=5-99999999999", 5..size),
        ("bytes=0-", 0..size),
    ] {
        let part = get_range(range).await.is(206);
        let content_range = format!("bytes {}-{}/{size}", expected.start, expected.end - 1);
        assert_eq!(part.header("content-range"), content_range, "{range}");
        assert_eq!(part.header("content-length"), expected.len().to_string());
        assert!(part.body == bytes[expected], "{range}");
        assert_eq!(
            (part.header("content-type"), part.etag()),
            ("image/jpeg", etag.clone())
        );
        assert_eq!(part.header("x-content-type-options"), "nosniff");
    }
    for range in [&format!("bytes={size}-"), "bytes=-0", "bytes=99999999999-"] {
        let refused = get_range(range).await;
        refused.problem(416);
        assert_eq!(
            refused.header("content-range"),
            format!("bytes */{size}"),
            "{range}"
        );
    }
    // A malformed range, and more than one range, gets the complete image.
    for range in ["bytes=0-1,5-6", "bytes=5-4", "bytes=x", "items=0-1", ""] {
        assert_eq!(get_range(range).await.is(200).body.len(), size, "{range}");
    }
    let with = async |if_range: &str| {
        let request = app.image_of(pet, &image).header("range", "bytes=0-9");
        request.header("if-range", if_range).await.status
    };
    assert_eq!(with(&etag).await, 206);
    for other in [
        "\"x\"",
        &format!("W/{etag}"),
        "Sat, 21 Nov 2026 07:00:00 GMT",
    ] {
        assert_eq!(with(other).await, 200, "{other}");
    }
}

fn near(image: &DynamicImage, (x, y): (u32, u32), expected: [u8; 3]) {
    let pixel = image.to_rgb8().get_pixel(x, y).0;
    let is_near = pixel
        .iter()
        .zip(expected)
        .all(|(is, wanted)| is.abs_diff(wanted) < 24);
    assert!(is_near, "{pixel:?} at {x}, {y} instead of {expected:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rendering_has_the_requested_width_and_the_same_picture() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    for (kind, bytes) in [
        ("image/png", png(400, 300)),
        ("image/jpeg", jpeg(400, 300)),
        ("image/png", gif(400, 300)),
        ("image/jpeg", lossy_webp()),
    ] {
        let image = app.image(pet, &bytes).await;
        for (width, expected) in [
            ("16", (16, 12)),
            ("17", (16, 12)),
            ("128", (128, 96)),
            ("191", (128, 96)),
            ("399", (384, 288)),
            ("512", (400, 300)),
            ("2048", (400, 300)),
        ] {
            let response = app
                .image_of(pet, &image)
                .query(&[("width", width)])
                .is(200)
                .await;
            assert_eq!(size(&response.body), expected, "{width}");
            assert_eq!(response.header("content-type"), kind);
            let (w, h) = expected;
            let small = decode(&response.body);
            near(&small, (w / 2, h / 2), [127, 127, 40]);
            near(&small, (w - 1, 0), [245, 8, 40]);
            near(&small, (0, h - 1), [8, 245, 40]);
        }
        for wrong in ["15", "2049", "x", "", "-16", "+16", "16.5"] {
            let response = app.image_of(pet, &image).query(&[("width", wrong)]).await;
            assert_eq!(response.invalid_fields(), ["width"], "{wrong}");
        }
    }
    let image = app.image(pet, &transparent_png(400, 300)).await;
    let small = app
        .image_of(pet, &image)
        .query(&[("width", "40")])
        .is(200)
        .await;
    let small = decode(&small.body).to_rgba8();
    assert_eq!(
        (small.get_pixel(4, 4).0[3], small.get_pixel(28, 4).0[3]),
        (0, 255)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rendering_is_upright_and_without_metadata() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    // EXIF orientation, exchange of width and height, and new position of the top left corner.
    for (orientation, turned, corner) in [
        (1, false, (0, 0)),
        (2, false, (1, 0)),
        (3, false, (1, 1)),
        (4, false, (0, 1)),
        (5, true, (0, 0)),
        (6, true, (1, 0)),
        (7, true, (1, 1)),
        (8, true, (0, 1)),
    ] {
        let bytes = rotated_jpeg(200, 100, orientation);
        let image = app.image(pet, &bytes).await;
        let original = app.image_of(pet, &image).is(200).await;
        assert!(
            original.text().contains("secretplace"),
            "it is kept as it was sent"
        );
        let response = app
            .image_of(pet, &image)
            .query(&[("width", "48")])
            .is(200)
            .await;
        let expected = if turned { (48, 96) } else { (48, 24) };
        assert_eq!(size(&response.body), expected, "orientation {orientation}");
        assert!(!response.text().contains("secretplace") && !response.text().contains("Exif"));
        let (w, h) = (expected.0 - 1, expected.1 - 1);
        near(
            &decode(&response.body),
            (corner.0 * w, corner.1 * h),
            [6, 6, 40],
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rendering_of_webp_is_upright_with_either_form_of_exif() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let prefixed = include_bytes!("../../support/pictures/on_its_side.webp");
    // The last chunk has 8 bytes of a header and the 6 bytes `Exif\0\0`.
    let (chunks, exif) = prefixed[12..].split_at(prefixed.len() - 12 - 40);
    let plain = riff(&[chunks, &webp_chunk(*b"EXIF", &[&exif[8 + 6..]])]);
    for bytes in [prefixed.to_vec(), plain] {
        let image = app.image(pet, &bytes).await;
        let rendering = app.image_of(pet, &image).query(&[("width", "48")]);
        let small = decode(&rendering.is(200).await.body);
        assert_eq!((small.width(), small.height()), (48, 96));
        near(&small, (2, 2), [0, 0, 255]);
        near(&small, (45, 2), [255, 0, 0]);
        near(&small, (45, 93), [0, 255, 0]);
        near(&small, (2, 93), [255, 255, 0]);
    }
}

/// The transparent pixels of the picture are black, all others have one colour.
#[tokio::test(flavor = "multi_thread")]
async fn rendering_has_no_halo_where_the_image_is_transparent() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let fringe = include_bytes!("../../support/pictures/fringe.png").to_vec();
    let mut deep = Cursor::new(Vec::new());
    DynamicImage::from(decode(&fringe).to_rgba16())
        .write_to(&mut deep, image::ImageFormat::Png)
        .expect("an image");
    for bytes in [fringe, deep.into_inner()] {
        let image = app.image(pet, &bytes).await;
        for width in [16, 64, 192, 384] {
            let rendering = app.image_of(pet, &image).query(&[("width", width)]);
            let small = decode(&rendering.is(200).await.body).to_rgba8();
            for [r, g, b, alpha] in small.pixels().map(|pixel| pixel.0) {
                let differences = [r.abs_diff(255), g.abs_diff(220), b];
                // As seen on a background; a colour that is nearly transparent is rounded.
                let seen = differences.map(|it| u32::from(it) * u32::from(alpha) / 255);
                assert!(
                    seen.iter().all(|it| *it <= 2),
                    "{r} {g} {b} {alpha} at {width}"
                );
            }
        }
    }
}

/// The profile of the picture exchanges red and blue.
#[tokio::test(flavor = "multi_thread")]
async fn large_colour_profile_is_applied_to_a_rendering() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let picture = include_bytes!("../../support/pictures/large_profile.png");
    let image = app.image(pet, picture).await;
    for (width, [x, y]) in [(192, [159, 119]), (128, [127, 95]), (16, [15, 11])] {
        let rendering = app.image_of(pet, &image).query(&[("width", width)]);
        let response = rendering.is(200).await;
        assert!(
            !response.text().contains("iCCP"),
            "it has the colours of sRGB"
        );
        let small = decode(&response.body);
        near(&small, (0, 0), [247, 8, 8]);
        near(&small, (x / 2, y / 2), [141, 128, 128]);
        near(&small, (x, y), [37, 247, 247]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rendering_is_made_once_per_width_step() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let image = app.image(pet, &jpeg(300, 300)).await;
    let at = |width: u32| app.image_of(pet, &image).query(&[("width", width)]);
    let responses: Vec<Response> = send_all((0..8).map(|_| at(100))).await;
    let etag = responses[0].etag();
    for response in responses {
        assert_eq!(response.is(200).etag(), etag);
    }
    app.wait_for_files(2).await;
    at(100).header("if-none-match", &etag).is(304).await;
    let part = at(100).header("range", "bytes=0-2").is(206).await;
    assert_eq!(&part.body[..], b"\xff\xd8\xff");
    assert_ne!(app.image_of(pet, &image).await.etag(), etag);
    // Widths are rounded down to a step, so these share one rendering.
    for width in 97..128 {
        assert_eq!(at(width).is(200).await.etag(), etag);
    }
    let kept = "select count(*) from image_renderings";
    assert_eq!(app.database.number(kept).await, 1);
    app.delete(&format!("/pet/{pet}/images/{image}"))
        .is(200)
        .await;
    app.assert_nothing_stored().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn image_that_cannot_be_decoded_is_served_as_it_is() {
    let app = ImageApp::with(&[("PET_INVENTORY__IMAGES__RENDERING_MEMORY", "80MiB")]).await;
    let pet = app.pet("Rex").await;
    // The structure of the file is valid, its pixel data is not.
    let mut broken = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, data) in [
        (*b"IHDR", &[0, 0, 0, 9, 0, 0, 0, 9, 8, 2, 0, 0, 0][..]),
        (*b"IDAT", b"\x78\x9cnonsense"),
        (*b"IEND", b""),
    ] {
        broken.extend(png_chunk(kind, &[data]));
    }
    let lossless = webp(40, 26);
    let frame = webp_frame([0, 0], [40, 26], &[&lossless[12..]]);
    let pixels = vp8_chunk(40, 26);
    let transparency = webp_chunk(*b"ALPH", &[&[1]]);
    for (what, bytes) in [
        ("invalid pixels", broken),
        ("more than the memory for renderings", png(4_096, 4_096)),
        ("lossless pixels", lossless),
        (
            "lossless pixels in a frame",
            webp_animation([40, 26], &[&frame]),
        ),
        (
            "lossless transparency",
            still_webp([40, 26], &[&transparency, &pixels]),
        ),
    ] {
        let image = app.image(pet, &bytes).await;
        let original = app.image_of(pet, &image).is(200).await;
        // The second request does not try again.
        for _ in 0..2 {
            let at = || app.image_of(pet, &image).query(&[("width", "20")]);
            let response = at().is(200).await;
            assert!(response.body == bytes, "{what}");
            for (name, value) in &original.headers {
                if !["date", "x-request-id"].contains(&name.as_str()) {
                    assert_eq!(response.headers.get(name), Some(value), "{what}: {name}");
                }
            }
            at().header("if-none-match", original.etag()).is(304).await;
            let part = at().header("range", "bytes=2-5").is(206).await;
            assert_eq!(part.body, bytes[2..6], "{what}");
            assert_eq!(part.etag(), original.etag());
        }
    }
    let kept = "select count(*) from image_renderings";
    assert_eq!(app.database.number(kept).await, 0);
    let fine = app.image(pet, &png(40, 40)).await;
    let rendering = app.image_of(pet, &fine).query(&[("width", "20")]);
    assert_eq!(size(&rendering.is(200).await.body), (16, 16));
}
