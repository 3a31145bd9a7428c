//! Tests of malicious and broken uploads: wrong types, truncated images, bombs, polyglots, forms, sizes and stalls.

use futures_util::{StreamExt as _, stream};
use reqwest::Body;
use test_support::*;

use super::{ImageApp, form};

const SVG: &[u8] =
    br#"<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>"#;
const HTML: &[u8] = b"<!doctype html><script>alert(document.domain)</script>";

/// Returns a PNG with a header that claims this size and has a valid checksum.
fn claimed_png(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = png(10, 10);
    bytes[16..20].copy_from_slice(&width.to_be_bytes());
    bytes[20..24].copy_from_slice(&height.to_be_bytes());
    let crc = crc32fast::hash(&bytes[12..29]);
    bytes[29..33].copy_from_slice(&crc.to_be_bytes());
    bytes
}

/// Returns a body without a length.
fn in_pieces<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Body {
    let pieces: Vec<_> = pieces
        .map(|piece| Ok::<_, std::io::Error>(piece.to_vec()))
        .collect();
    Body::wrap_stream(stream::iter(pieces))
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_of_another_type_is_415() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let mut gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\x03".to_vec();
    std::io::Write::write_all(&mut gzip, &[0; 1_000]).expect("memory");
    let zip = [b"PK\x03\x04".as_slice(), &[0; 100]].concat();
    let bitmap = [b"BM".as_slice(), &[1; 100]].concat();
    let avif = [b"\0\0\0\x20ftypavif".as_slice(), &[0; 100]].concat();
    for (what, bytes) in [
        ("SVG", SVG),
        ("HTML", HTML),
        ("gzip", &gzip),
        ("zip", &zip),
        ("a bitmap", &bitmap),
        ("AVIF", &avif),
        ("HTML behind spaces", b"     GIF89a<script>"),
        ("WAVE in RIFF", b"RIFF\x10\0\0\0WAVEfmt \0\0\0\0"),
        ("a byte", b"x"),
    ] {
        for kind in ["image/png", "application/octet-stream"] {
            let request = app.request(Method::POST, &format!("/pet/{pet}/uploadImage"));
            let request = request.header("content-type", kind).body(bytes.to_vec());
            let response = request.await;
            response.problem(415);
            assert_eq!(
                response.header("accept"),
                "image/png, image/jpeg, image/gif, image/webp",
                "{what}"
            );
        }
        let body = form(&[("name=file; filename=\"a.png\"", bytes)], "b");
        app.upload_form(pet, body, "b").await.problem(415);
    }
    for kind in [
        "text/html",
        "application/json",
        "application/x-www-form-urlencoded",
        "multipart/mixed; boundary=b",
        "image",
    ] {
        let request = app.request(Method::POST, &format!("/pet/{pet}/uploadImage"));
        let response = request.header("content-type", kind).body(png(2, 2)).await;
        response.problem(415);
        assert!(
            response
                .header("accept")
                .contains("application/octet-stream"),
            "{response}"
        );
    }
    app.assert_nothing_stored().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_of_truncated_or_damaged_image_is_400() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    for whole in [png(30, 20), jpeg(30, 20), gif(30, 20), webp(30, 20)] {
        for length in [5, whole.len() / 2, whole.len() - 1] {
            let response = app.upload(pet, whole[..length].to_vec()).await;
            assert_eq!(response.invalid_fields(), ["body"], "{length} bytes");
        }
    }
    let mut damaged = png(30, 20);
    damaged[50] ^= 0xFF;
    // The structure is valid, the pixels are not.
    let mut pixels = png(30, 20);
    let start = 4 + pixels
        .windows(4)
        .position(|kind| kind == b"IDAT")
        .expect("pixels");
    let end = pixels.len() - 16;
    pixels[start..end].fill(b'x');
    let crc = crc32fast::hash(&pixels[start - 4..end]).to_be_bytes();
    pixels[end..end + 4].copy_from_slice(&crc);
    for bytes in [damaged, pixels, Vec::new()] {
        assert_eq!(
            app.upload(pet, bytes.clone()).await.invalid_fields(),
            ["body"]
        );
        let body = form(&[("name=file; filename=a", &bytes)], "b");
        assert_eq!(
            app.upload_form(pet, body, "b").await.invalid_fields(),
            ["file"]
        );
    }
    app.assert_nothing_stored().await;
}

/// A small file that claims billions of pixels is refused as soon as its header has arrived.
#[tokio::test(flavor = "multi_thread")]
async fn upload_of_decompression_bomb_is_400_before_its_body_ends() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    for bomb in [
        claimed_png(50_000, 50_000),
        claimed_png(8_193, 1),
        claimed_png(u32::MAX, u32::MAX),
    ] {
        let response = app.upload(pet, bomb.clone()).await;
        assert_eq!(response.invalid_fields(), ["body"]);
        assert!(response.text().contains("8192 pixels"), "{response}");
    }
    let mut raw = RawConnection::connect(app.address).await;
    let head = format!(
        "POST /api/v3/pet/{pet}/uploadImage HTTP/1.1\r\nHost: a\r\napi_key: {}\r\nContent-Length: 1000\r\n\r\n",
        app.key
    );
    raw.send(head).await;
    raw.send(&claimed_png(50_000, 50_000)[..60]).await;
    raw.response().await.problem(400);
    app.assert_nothing_stored().await;

    // 17 megapixels of one colour in a few kilobytes are within the bounds, and can be rendered.
    let flat = image::RgbImage::from_pixel(4_096, 4_096, image::Rgb([1, 2, 3]));
    let mut bytes = std::io::Cursor::new(Vec::new());
    flat.write_to(&mut bytes, image::ImageFormat::Png)
        .expect("an image");
    let image = app.image(pet, bytes.get_ref()).await;
    let small = app
        .image_of(pet, &image)
        .query(&[("width", "64")])
        .is(200)
        .await;
    assert_eq!(images::size(&small.body), (64, 64));
}

/// The decoder reads chunks that begin up to 10 bytes after the container.
#[tokio::test(flavor = "multi_thread")]
async fn image_data_of_another_size_is_refused_or_not_decoded() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let (huge, image) = (vp8_chunk(16_383, 16_383), lossy_webp()[12..].to_vec());
    let frame = webp_frame([0, 0], [40, 26], &[&huge]);
    for bomb in [
        still_webp([40, 26], &[&huge]),
        webp_animation([40, 26], &[&frame]),
    ] {
        let response = app.upload(pet, bomb).await;
        assert_eq!(response.invalid_fields(), ["body"]);
    }
    let lossless = webp(40, 26)[12..].to_vec();
    let followed = [still_webp([400, 300], &[&image]), lossless].concat();
    let frame = webp_frame([0, 0], [400, 300], &[&image]);
    for bytes in [followed, webp_animation([400, 300], &[&frame])] {
        let image = app.image(pet, &bytes).await;
        let rendering = app.image_of(pet, &image).query(&[("width", "16")]);
        let small = rendering.is(200).await;
        assert_eq!(images::size(&small.body), (16, 12));
    }
}

/// Files that are both an image and HTML, a script or an archive.
#[tokio::test(flavor = "multi_thread")]
async fn upload_of_polyglot_is_served_with_its_detected_type() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let mut script = gif(10, 10);
    script.splice(script.len() - 1.., *b"\x21\xfe\x08*/alert(\0\x3b");
    let mut page = jpeg(10, 10);
    let comment = [
        b"\xff\xfe",
        &u16::try_from(HTML.len() + 2).expect("short").to_be_bytes()[..],
        HTML,
    ]
    .concat();
    page.splice(2..2, comment);
    for (kind, bytes) in [
        ("image/png", [png(10, 10), HTML.to_vec()].concat()),
        ("image/gif", script),
        ("image/jpeg", page),
        (
            "image/webp",
            [webp(10, 10), b"PK\x03\x04".to_vec()].concat(),
        ),
    ] {
        let request = app.request(Method::POST, &format!("/pet/{pet}/uploadImage"));
        let response = request
            .header("content-type", "image/svg+xml")
            .body(bytes.clone())
            .is(200)
            .await;
        assert_eq!(response.json()["type"], kind, "{response}");
        let get = || app.anonymous(Method::GET, &response.image_path());
        let fetched = get().header("accept", "text/html").is(200).await;
        assert_eq!(fetched.body, bytes);
        assert_eq!(fetched.header("content-type"), kind);
        assert_eq!(fetched.header("x-content-type-options"), "nosniff");
        assert_eq!(
            fetched.header("content-security-policy"),
            "default-src 'none'; sandbox"
        );
        let disposition = fetched.header("content-disposition");
        assert!(
            disposition.starts_with("inline; filename=\"pet-"),
            "{disposition}"
        );
        let small = get().query(&[("width", "16")]).is(200).await;
        assert!(!small.text().contains("alert("), "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_accepts_any_filename() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let image = transparent_png(10, 10);
    let long = "x".repeat(300);
    for name in [
        "../../../etc/passwd",
        "a\0.png",
        &long,
        "",
        "con",
        "..\\..\\x",
        "a\";name=\"b",
        "ü\u{202e}gnp.exe",
        "%00",
    ] {
        let parameters = format!("name=\"file\"; filename=\"{name}\"");
        let body = form(&[(&parameters, &image)], "b");
        let response = app.upload_form(pet, body, "b").is(200).await;
        assert!(!response.text().contains("passwd"), "{response}");
    }
    for path in app.files() {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name");
        assert!(
            name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_of_malformed_form_is_400() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let image = png(10, 10);
    let file: (&str, &[u8]) = ("name=file; filename=a", &image);
    let whole = form(&[file], "b");
    let many: Vec<_> = (0..1_000)
        .map(|_| ("name=x", &b"y"[..]))
        .chain([file])
        .collect();
    let endless_head = format!("--b\r\nX-Long: {}", "x".repeat(100_000)).into_bytes();
    for (what, body) in [
        ("without an end", whole[..whole.len() - 8].to_vec()),
        ("cut within a head", b"--b\r\nContent-Dispo".to_vec()),
        ("of a thousand parts", form(&many, "b")),
        ("with an endless head", endless_head),
        ("with another boundary", form(&[file], "c")),
        ("empty", Vec::new()),
        ("no form", image.clone()),
    ] {
        let response = app.upload_form(pet, body, "b").await;
        assert_eq!(response.invalid_fields(), ["body"], "{what}");
    }
    for parts in [
        &[][..],
        &[("name=other", &image[..])],
        &[("name=additionalMetadata", b"a")],
        &[("name=file; filename=\"\"", b"")],
        &[
            ("name=a; filename=\"\"", b""),
            ("name=file; filename=b", b""),
        ],
    ] {
        let response = app.upload_form(pet, form(parts, "b"), "b").await;
        assert_eq!(response.invalid_fields(), ["file"], "{parts:?}");
    }
    for boundary in ["", "\"\"", &"x".repeat(71)] {
        let response = app.upload_form(pet, whole.clone(), boundary).await;
        assert_eq!(response.invalid_fields(), ["Content-Type"], "{boundary}");
    }
    app.assert_nothing_stored().await;

    // The first file is the image, even if its field is not named `file`; other parts are ignored.
    let second = png(11, 10);
    let parts = [
        ("name=note", &b"hello"[..]),
        ("name=picture; filename=a", &image),
        ("name=file; filename=b", &second),
    ];
    let response = app.upload_form(pet, form(&parts, "b"), "b").is(200).await;
    assert_eq!(response.json()["width"], 10);

    // Pages send an empty file for an input in which none is chosen.
    let parts = [
        ("name=first; filename=\"\"", &b""[..]),
        ("name=file", b""),
        ("name=third; filename=b", &second),
        ("name=fourth; filename=\"\"", b""),
    ];
    let response = app.upload_form(pet, form(&parts, "b"), "b").is(200).await;
    assert_eq!(response.json()["width"], 11);
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_over_max_size_is_413() {
    let app = ImageApp::with(&[("PET_INVENTORY__IMAGES__MAX_SIZE", "64KiB")]).await;
    let pet = app.pet("Rex").await;
    let large = large_jpeg(200_000);
    let limit = 64 << 10;
    assert!(large.len() > limit, "{}", large.len());
    // With a Content-Length.
    app.upload(pet, large.clone()).await.problem(413);
    // Without one.
    let unknown = in_pieces(large.chunks(1_000));
    app.upload(pet, unknown).await.problem(413);
    let body = form(&[("name=file; filename=a", &large)], "b");
    app.upload_form(pet, body, "b").await.problem(413);
    // Ignored parts count, and so do bytes after the end of the form.
    let padding = vec![b'x'; limit + (70 << 10)];
    let image = png(10, 10);
    let body = form(
        &[("name=file; filename=a", &image), ("name=x", &padding)],
        "b",
    );
    app.upload_form(pet, body, "b").await.problem(413);
    let followed = [form(&[("name=file; filename=a", &image)], "b"), padding].concat();
    app.upload_form(pet, followed, "b").await.problem(413);
    app.assert_nothing_stored().await;

    // The limit is exact, and bytes after the end of the image count.
    let filled = |length: usize| {
        let mut bytes = image.clone();
        bytes.resize(length, 0);
        bytes
    };
    app.upload(pet, filled(limit + 1)).await.problem(413);
    app.upload(pet, filled(limit)).is(200).await;
    let body = form(&[("name=file; filename=a", &filled(limit))], "b");
    app.upload_form(pet, body, "b").is(200).await;
}

/// A body without a length is accepted; one that ends before its Content-Length is not.
#[tokio::test(flavor = "multi_thread")]
async fn upload_does_not_trust_content_length() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let image = jpeg(100, 80);
    let pieces = in_pieces(image.chunks(100));
    let response = app.upload(pet, pieces).is(200).await;
    assert_eq!(response.json()["size"], image.len());
    app.wait_for_files(1).await;

    let head = |length: usize| {
        format!(
            "POST /api/v3/pet/{pet}/uploadImage HTTP/1.1\r\nHost: a\r\napi_key: {}\r\n\
         Content-Type: image/jpeg\r\nContent-Length: {length}\r\n\r\n",
            app.key
        )
    };
    let other = jpeg(90, 80);
    let mut raw = RawConnection::connect(app.address).await;
    raw.send(head(other.len() + 10)).await;
    raw.send(&other).await;
    raw.finish().await;
    raw.closed().await;
    // A Content-Length that cuts the image off makes it a truncated image.
    let response = RawConnection::exchange(
        app.address,
        [head(100).into_bytes(), other[..100].to_vec()].concat(),
    )
    .await;
    response.problem(400);
    app.wait_for_files(1).await;
    assert_eq!(app.list(pet).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_upload_stores_nothing() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let image = large_jpeg(400_000);
    for half in [image.len() / 2, image.len() - 1] {
        let mut raw = RawConnection::connect(app.address).await;
        let head = format!(
            "POST /api/v3/pet/{pet}/uploadImage HTTP/1.1\r\nHost: a\r\napi_key: {}\r\nContent-Length: {}\r\n\r\n",
            app.key,
            image.len()
        );
        raw.send(head).await;
        raw.send(&image[..half]).await;
        // Wait until the file is being written.
        app.wait_for_files(1).await;
        drop(raw);
        app.assert_nothing_stored().await;
    }
    let uploads = (0..8).map(|_| {
        let half = image[..image.len() / 2].to_vec();
        let body = stream::iter([Ok(half), Err(std::io::Error::other("gone"))]);
        let body = body.chain(stream::pending());
        app.upload(pet, Body::wrap_stream(body)).send()
    });
    for gone in join_all(uploads).await {
        assert!(gone.is_err(), "{gone:?}");
    }
    app.assert_nothing_stored().await;
    assert_eq!(app.photo_urls(pet).await, serde_json::json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_to_unknown_pet_is_404_without_reading_the_body() {
    let app = ImageApp::start().await;
    app.upload(77, png(10, 10)).await.problem(404);
    let endless = stream::repeat_with(|| Ok::<_, std::io::Error>(vec![0_u8; 1_000]));
    app.upload(77, Body::wrap_stream(endless))
        .await
        .problem(404);
    for wrong in ["0", "x", "9007199254740992"] {
        let request = app.request(Method::POST, &format!("/pet/{wrong}/uploadImage"));
        let response = request.body(png(10, 10)).await;
        assert_eq!(response.invalid_fields(), ["petId"]);
    }
    app.assert_nothing_stored().await;
}

/// A slow upload may exceed the body and request timeouts while it makes progress, up to the upload timeout.
#[tokio::test(flavor = "multi_thread")]
async fn slow_upload_succeeds_and_stalled_upload_is_408() {
    let app = ImageApp::with(&[
        ("PET_INVENTORY__SERVER__BODY_TIMEOUT", "3s"),
        // A busy machine needs so long for the rest of the upload.
        ("PET_INVENTORY__SERVER__REQUEST_TIMEOUT", "3s"),
        ("PET_INVENTORY__IMAGES__UPLOAD_TIMEOUT", "8s"),
    ])
    .await;
    let pet = app.pet("Rex").await;
    let image = jpeg(100, 100);
    let slowly = |pause: Duration, pieces: usize| {
        let pieces: Vec<_> = image
            .chunks(image.len().div_ceil(pieces))
            .map(<[u8]>::to_vec)
            .collect();
        let stream = stream::iter(pieces).then(move |piece| async move {
            tokio::time::sleep(pause).await;
            Ok::<_, std::io::Error>(piece)
        });
        app.upload(pet, Body::wrap_stream(stream))
    };
    // Four seconds in total.
    slowly(Duration::from_millis(400), 10).is(200).await;
    slowly(Duration::from_secs(30), 2).await.problem(408);
    slowly(Duration::from_millis(200), 200).await.problem(408);
    app.wait_for_files(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_of_an_address_over_its_share_are_503_without_effect_on_others() {
    // An address may have an eighth of them.
    let app = ImageApp::with(&[("PET_INVENTORY__IMAGES__MAX_UPLOADS", "16")]).await;
    let pet = app.pet("Rex").await;
    let image = png(10, 10);
    let head = format!(
        "POST /api/v3/pet/{pet}/uploadImage HTTP/1.1\r\nHost: a\r\napi_key: {}\r\nContent-Length: {}\r\n\r\n",
        app.key,
        image.len()
    );
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let mut raw = RawConnection::connect(app.address).await;
        raw.send(&head).await;
        raw.send(&image[..40]).await;
        waiting.push(raw);
    }
    app.wait_for_files(2).await;
    let refused = app.upload(pet, image.clone()).await;
    refused.problem(503);
    assert_eq!(refused.header("retry-after"), "1");
    app.pet("Max").await;
    let upload = other_client().post(app.url(&format!("/pet/{pet}/uploadImage")));
    let upload = upload.header("api_key", &app.key).body(image.clone());
    upload.is(200).await;
    for mut raw in waiting {
        raw.send(&image[40..]).await;
        raw.response().await.is(200);
    }
    eventually(async || app.upload(pet, image.clone()).await.status == 200).await;
}

/// Returns a client with another address.
fn other_client() -> Client {
    let client = client_builder().no_proxy();
    let client = client.local_address(Some([127, 0, 0, 2].into()));
    client.build().expect("a client")
}

#[tokio::test(flavor = "multi_thread")]
async fn renderings_of_an_address_over_its_share_are_503_without_effect_on_others() {
    const WIDTHS: [u32; 8] = [256, 384, 512, 768, 1024, 1536, 192, 2048];
    // Enough requests without credentials.
    let settings = [
        ("PET_INVENTORY__SERVER__REQUEST_TIMEOUT", "5m"),
        ("PET_INVENTORY__SERVER__MAX_REQUESTS", "4096"),
    ];
    let app = ImageApp::with(&settings).await;
    let pet = app.pet("Rex").await;
    let large = app.image(pet, &png(1_500, 1_500)).await;
    let at = |width: u32| app.image_of(pet, &large).query(&[("width", width)]);
    // Those that wait for the same rendering count too.
    let requests = (0..240).map(|number| at(WIDTHS[number % WIDTHS.len()]));
    let other = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let url = app.url(&format!("/pet/{pet}/images/{large}?width=2048"));
        other_client().get(url).response().await
    };
    let (responses, other) = tokio::join!(send_all(requests), other);
    other.is(200);
    let (served, refused): (Vec<_>, Vec<_>) = responses
        .into_iter()
        .partition(|response| response.status == 200);
    // The share is 128, of which look-ups take some for a moment.
    assert!(served.len() >= 64, "{}", served.len());
    assert!(!refused.is_empty());
    for response in refused {
        response.problem(503);
    }
}
