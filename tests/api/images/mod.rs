//! Tests of images of pets: uploads, lists, deletion, idempotency and access.

mod clone;
mod conditional;
mod hostile;
mod reader;
mod serve;
mod store;
mod structure;

use test_support::*;

/// Service with its own image folder, which is deleted when dropped.
struct ImageApp {
    app: TestApp,
    folder: tempfile::TempDir,
}

impl std::ops::Deref for ImageApp {
    type Target = TestApp;

    fn deref(&self) -> &TestApp {
        &self.app
    }
}

/// Returns the value of `images.url` for a folder.
fn url_of(folder: &Path) -> String {
    format!("file://{}", folder.display())
}

impl ImageApp {
    async fn start() -> Self {
        Self::with(&[]).await
    }

    async fn with(settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let url = url_of(folder.path());
        let settings = [settings, &[("PET_INVENTORY__IMAGES__URL", &url)]].concat();
        let app = TestApp::with(&settings).await;
        Self { app, folder }
    }

    /// Uploads an image and returns its identifier.
    async fn image(&self, pet: i64, bytes: &[u8]) -> String {
        let response = self.upload(pet, bytes.to_owned()).is(200).await;
        response.json()["imageId"]
            .as_str()
            .expect("an id")
            .to_owned()
    }

    /// Builds the request for an image, without credentials as a browser sends it.
    fn image_of(&self, pet: i64, image: &str) -> Call {
        self.anonymous(Method::GET, &format!("/pet/{pet}/images/{image}"))
    }

    async fn list(&self, pet: i64) -> Vec<Value> {
        let response = self.get(&format!("/pet/{pet}/images")).await;
        response.is(200).json().as_array().expect("a list").clone()
    }

    async fn photo_urls(&self, pet: i64) -> Value {
        let response = self.get(&format!("/pet/{pet}")).is(200).await;
        response.json()["photoUrls"].clone()
    }

    /// Returns all files of images, including those that are being written.
    fn files(&self) -> Vec<PathBuf> {
        files_in(self.folder.path())
    }

    async fn wait_for_files(&self, number: usize) {
        eventually(async || self.files().len() == number).await;
    }

    /// Checks that the database has no images, and waits until no file is left.
    async fn assert_nothing_stored(&self) {
        for table in ["images", "image_contents", "image_renderings"] {
            let question = format!("select count(*) from {table}");
            assert_eq!(self.database.number(&question).await, 0, "{table}");
        }
        self.wait_for_files(0).await;
    }
}

/// Encodes a `multipart/form-data` body. Each part is the parameters of its Content-Disposition and its bytes.
fn form(parts: &[(&str, &[u8])], boundary: &str) -> Vec<u8> {
    let mut body = Vec::new();
    for (parameters, bytes) in parts {
        body.extend_from_slice(
            format!("--{boundary}\r\nContent-Disposition: form-data; {parameters}\r\n\r\n")
                .as_bytes(),
        );
        body.extend_from_slice(bytes);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    body
}

impl ImageApp {
    fn upload_form(&self, pet: i64, body: Vec<u8>, boundary: &str) -> Call {
        let content_type = format!("multipart/form-data; boundary={boundary}");
        self.request(Method::POST, &format!("/pet/{pet}/uploadImage"))
            .header("content-type", content_type)
            .body(body)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_of_every_type_is_served_unchanged() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let mut listed = Vec::new();
    for (kind, bytes) in [
        ("image/png", png(40, 30)),
        ("image/jpeg", jpeg(41, 31)),
        ("image/gif", gif(42, 32)),
        ("image/webp", webp(43, 33)),
    ] {
        let path = format!("/pet/{pet}/uploadImage");
        let plain = |kind: &str| {
            let request = app.request(Method::POST, &path).body(bytes.clone());
            request.header("content-type", kind)
        };
        let file = form(&[("name=\"file\"; filename=\"a.bin\"", &bytes)], "b");
        for request in [
            plain("application/octet-stream"),
            plain(kind),
            plain("image/x-whatever; a=b"),
            // The content determines the type, not the Content-Type.
            plain("image/tiff"),
            app.request(Method::POST, &path).body(bytes.clone()),
            app.upload_form(pet, file, "b"),
        ] {
            let before = app.get(&format!("/pet/{pet}")).await.etag();
            let response = request.is(200).await;
            let json = response.json();
            let (width, height) = images::size(&bytes);
            assert_eq!(json["code"], 200, "{response}");
            assert_eq!(json["type"], kind, "{response}");
            assert_eq!(json["size"], bytes.len(), "{response}");
            assert_eq!(
                (&json["width"], &json["height"]),
                (&json!(width), &json!(height))
            );
            let id = json["imageId"].as_str().expect("an id");
            let url = json["url"].as_str().expect("a URL");
            assert_eq!(url, app.url(&format!("/pet/{pet}/images/{id}")));
            let fetched = app.image_of(pet, id).is(200).await;
            assert_eq!(fetched.body, bytes, "{kind}");
            assert_eq!(fetched.header("content-type"), kind);
            let after = app.get(&format!("/pet/{pet}")).await;
            assert_ne!(after.etag(), before, "another version: {after}");
            assert_eq!(
                after.json()["photoUrls"]
                    .as_array()
                    .and_then(|urls| urls.last()),
                Some(&json["url"])
            );
            listed.push(json);
        }
    }
    let images = app.list(pet).await;
    assert_eq!(images.len(), listed.len());
    for (image, uploaded) in images.iter().zip(&listed) {
        assert_eq!(image["id"], uploaded["imageId"]);
        for field in ["type", "size", "width", "height", "url"] {
            assert_eq!(image[field], uploaded[field], "{image}");
        }
        let created = image["createdAt"].as_str().expect("a time");
        DateTime::parse_from_rfc3339(created).expect("RFC 3339");
    }
    // Equal bytes are stored once.
    assert_eq!(app.files().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_repeats_additional_metadata() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let image = png(20, 20);
    let path = format!("/pet/{pet}/uploadImage?additionalMetadata=from%20the%20left");
    let in_query = || app.request(Method::POST, &path).body(image.clone());
    let response = in_query().is(200).await;
    let message = response.json()["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(
        message.contains("additionalMetadata: from the left"),
        "{response}"
    );
    for parts in [
        [
            ("name=additionalMetadata", "ü".as_bytes()),
            ("name=file", &image),
        ],
        [
            ("name=\"x\"; filename=\"\"", &image),
            ("name=\"additionalMetadata\"", "ü".as_bytes()),
        ],
    ] {
        let response = app.upload_form(pet, form(&parts, "b"), "b").is(200).await;
        assert!(
            response.text().contains("additionalMetadata: ü"),
            "{response}"
        );
    }
    let long = "x".repeat(1_001);
    let path = format!("/pet/{pet}/uploadImage?additionalMetadata={long}");
    let response = app.request(Method::POST, &path).body(image.clone()).await;
    assert_eq!(response.invalid_fields(), ["additionalMetadata"]);
    let endless = "x".repeat(1 << 20);
    for metadata in [long.as_bytes(), endless.as_bytes(), b"a\0b", b"\xff"] {
        let body = form(
            &[("name=file", &image), ("name=additionalMetadata", metadata)],
            "b",
        );
        let response = app.upload_form(pet, body, "b").await;
        assert_eq!(response.invalid_fields(), ["additionalMetadata"]);
    }
    assert_eq!(app.list(pet).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn blob_is_kept_until_its_last_image_is_deleted() {
    let app = ImageApp::start().await;
    let (first, second) = (app.pet("first").await, app.pet("second").await);
    let bytes = jpeg(50, 40);
    let one = app.image(first, &bytes).await;
    let two = app.image(second, &bytes).await;
    let three = app.image(second, &bytes).await;
    assert_ne!(one, two);
    assert_eq!(app.files().len(), 1);
    app.image_of(second, &two)
        .query(&[("width", "20")])
        .is(200)
        .await;
    app.wait_for_files(2).await;

    app.delete(&format!("/pet/{second}/images/{three}"))
        .is(200)
        .await;
    app.delete(&format!("/pet/{first}")).is(200).await;
    app.image_of(first, &one).await.problem(404);
    let left = app.image_of(second, &two).is(200).await;
    assert_eq!(left.body, bytes);
    app.delete(&format!("/pet/{second}/images/{two}"))
        .is(200)
        .await;
    app.image_of(second, &two).await.problem(404);
    app.image_of(second, &two)
        .query(&[("width", "20")])
        .await
        .problem(404);
    app.assert_nothing_stored().await;
    assert_eq!(
        app.database
            .number("select count(*) from image_leftovers")
            .await,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_image_is_404_and_its_url_is_removed() {
    let app = ImageApp::start().await;
    let theirs = json!({"name": "Rex", "photoUrls": ["https://example.com/rex.jpg"]});
    let pet = app.post("/pet", &theirs).is(201).await.id();
    let other = app.pet("other").await;
    let (one, two) = (
        app.image(pet, &png(20, 20)).await,
        app.image(pet, &png(21, 20)).await,
    );
    let url = |id: &str| app.url(&format!("/pet/{pet}/images/{id}"));
    assert_eq!(
        app.photo_urls(pet).await,
        json!([theirs["photoUrls"][0], url(&one), url(&two)])
    );

    app.delete(&format!("/pet/{other}/images/{one}"))
        .await
        .problem(404);
    let before = app.get(&format!("/pet/{pet}")).await.etag();
    let deleted = app
        .delete(&format!("/pet/{pet}/images/{one}"))
        .is(200)
        .await;
    assert_eq!(
        deleted.json(),
        json!({"code": 200, "type": "deleted", "message": one})
    );
    assert_ne!(app.get(&format!("/pet/{pet}")).await.etag(), before);
    assert_eq!(
        app.photo_urls(pet).await,
        json!([theirs["photoUrls"][0], url(&two)])
    );
    app.image_of(pet, &one).await.problem(404);
    app.delete(&format!("/pet/{pet}/images/{one}"))
        .await
        .problem(404);
    app.wait_for_files(1).await;

    // An update of the pet keeps its images, even without their URLs in photoUrls; deleting the pet deletes them.
    app.put("/pet", &json!({"id": pet, "name": "Max"}))
        .is(200)
        .await;
    assert_eq!(app.photo_urls(pet).await, json!([]));
    assert_eq!(app.list(pet).await.len(), 1);
    app.image_of(pet, &two).is(200).await;
    app.delete(&format!("/pet/{pet}")).is(200).await;
    app.image_of(pet, &two).await.problem(404);
    app.get(&format!("/pet/{pet}/images")).await.problem(404);
    app.assert_nothing_stored().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_upload_is_stored_once() {
    let app = ImageApp::start().await;
    let (pet, other) = (app.pet("Rex").await, app.pet("Max").await);
    let image = png(20, 20);
    let upload = |pet: i64, image: &[u8], boundary: &str| {
        let body = form(&[("name=file; filename=a", image)], boundary);
        app.upload_form(pet, body, boundary)
            .header("idempotency-key", "k")
    };
    let first = upload(pet, &image, "a").is(200).await;
    assert_eq!(first.optional_header("idempotent-replayed"), None);
    let plain = app
        .upload(pet, image.clone())
        .header("idempotency-key", "k");
    for again in [
        upload(pet, &image, "a"),
        upload(pet, &image, "another"),
        plain,
    ] {
        let again = again.is(200).await;
        assert_eq!(again.header("idempotent-replayed"), "true", "{again}");
        assert_eq!(again.body, first.body);
    }
    upload(pet, &png(21, 20), "a").await.problem(422);
    upload(other, &image, "a").await.problem(422);
    let named = json!({"name": "a"});
    let elsewhere = app.post("/pet", &named).header("idempotency-key", "k");
    elsewhere.await.problem(422);
    assert_eq!(app.list(pet).await.len(), 1);
    app.wait_for_files(1).await;
    // The upload is replayed even after the pet has been deleted.
    app.delete(&format!("/pet/{pet}")).is(200).await;
    let again = upload(pet, &image, "a").is(200).await;
    assert_eq!(again.body, first.body);
    upload(99, &image, "a").await.problem(422);
    app.assert_nothing_stored().await;
    let unknown = app.upload(99, image.clone()).header("idempotency-key", "m");
    unknown.await.problem(404);
    app.assert_nothing_stored().await;

    // Of concurrent uploads one is stored; the others are replays or 409.
    let uploads = (0..6).map(|_| {
        app.upload(other, image.clone())
            .header("idempotency-key", "at-once")
    });
    let responses = send_all(uploads).await;
    assert!(
        responses
            .iter()
            .all(|response| [200, 409].contains(&response.status)),
        "{responses:?}"
    );
    assert_eq!(app.list(other).await.len(), 1);
    // A refused upload is not stored for the key.
    let broken = app
        .upload(other, &b"\x89PNG\r\n\x1a\n"[..])
        .header("idempotency-key", "l");
    broken.await.problem(400);
    app.upload(other, image)
        .header("idempotency-key", "l")
        .is(200)
        .await;
    app.upload(other, png(3, 3))
        .header("idempotency-key", "")
        .await
        .problem(400);
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_beyond_100_urls_or_images_is_409() {
    let app = ImageApp::start().await;
    let urls: Vec<String> = (0..100).map(|n| format!("/{n}.png")).collect();
    let full = json!({"id": 7, "name": "full", "photoUrls": urls});
    app.post("/pet", &full).is(201).await;
    let refused = app.upload(7, png(20, 20)).await;
    refused.problem(409);
    assert_eq!(app.photo_urls(7).await.as_array().map(Vec::len), Some(100));
    app.assert_nothing_stored().await;

    // The limit also holds for images without a URL in photoUrls.
    app.put("/pet", &json!({"id": 7, "name": "full"}))
        .is(200)
        .await;
    let image = png(20, 20);
    app.image(7, &image).await;
    let insert = "with filled as (
                    insert into images (id, pet_id, sha256)
                    select decode(lpad(to_hex(n), 32, '0'), 'hex'), 7, sha256
                    from image_contents, generate_series(1, 99) as n
                    returning 1
                ) select count(*) from filled";
    assert_eq!(app.database.number(insert).await, 99);
    app.upload(7, image).await.problem(409);
    assert_eq!(app.list(7).await.len(), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn image_is_public_and_other_operations_need_scopes() {
    let app = ImageApp::start().await;
    let pet = app.pet("Rex").await;
    let image = app.image(pet, &png(20, 20)).await;
    let reader = app
        .make_key("reader", [Scope::ReadPets].into_iter().collect::<Scopes>())
        .await;
    let with = |method: Method, path: String, key: &str| app.with_key(key, method, &path);
    let send = async |request: Call| request.await;
    let upload = format!("/pet/{pet}/uploadImage");
    let (images, one) = (
        format!("/pet/{pet}/images"),
        format!("/pet/{pet}/images/{image}"),
    );
    send(app.anonymous(Method::POST, &upload).body(png(2, 2)))
        .await
        .problem(401);
    send(with(Method::POST, upload, &reader.secret).body(png(2, 2)))
        .await
        .problem(403);
    send(app.anonymous(Method::GET, &images)).await.problem(401);
    send(with(Method::GET, images, &reader.secret))
        .await
        .is(200);
    send(app.anonymous(Method::DELETE, &one)).await.problem(401);
    send(with(Method::DELETE, one, &reader.secret))
        .await
        .problem(403);
    let shown: Response = send(app.image_of(pet, &image)).await.is(200);
    assert_eq!(shown.optional_header("ratelimit"), None, "{shown}");
    send(app.image_of(pet + 1, &image)).await.problem(404);
    send(app.image_of(pet, &"0".repeat(32))).await.problem(404);
    for wrong in [
        "x",
        &image.to_uppercase(),
        &image[1..],
        "%00",
        &format!("{image}0"),
    ] {
        if wrong != image {
            assert_eq!(
                send(app.image_of(pet, wrong)).await.invalid_fields(),
                ["imageId"],
                "{wrong}"
            );
        }
    }
    let both = app.anonymous(Method::GET, "/pet/0/images/x").await;
    assert_eq!(both.invalid_fields(), ["petId", "imageId"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn image_urls_begin_with_the_public_url() {
    let public = "https://pets.example.com/shop";
    let app = ImageApp::with(&[("PET_INVENTORY__SERVER__PUBLIC_URL", public)]).await;
    let pet = app.pet("Rex").await;
    let image = app.image(pet, &png(20, 20)).await;
    let url = json!(format!("{public}/api/v3/pet/{pet}/images/{image}"));
    assert_eq!(app.photo_urls(pet).await, json!([url]));
    assert_eq!(app.list(pet).await[0]["url"], url);
    app.delete(&format!("/pet/{pet}/images/{image}"))
        .is(200)
        .await;
    assert_eq!(app.photo_urls(pet).await, json!([]));
}

/// The last image with some bytes is deleted while the same bytes are uploaded.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_uploads_and_deletes_of_equal_bytes_lose_none() {
    let app = ImageApp::start().await;
    let bytes = png(30, 30);
    let pets = join_all((0..4).map(|_| app.pet("Rex"))).await;
    for round in 0..12 {
        let upload_or_delete = async |pet: i64| {
            let image = app.image(pet, &bytes).await;
            if (pet + round) % 2 == 0 {
                let deleted = app.delete(&format!("/pet/{pet}/images/{image}"));
                deleted.is(200).await;
            }
        };
        join_all(pets.iter().map(|pet| upload_or_delete(*pet))).await;
        for pet in &pets {
            for image in app.list(*pet).await {
                let id = image["id"].as_str().expect("an id");
                let fetched = app.image_of(*pet, id).is(200).await;
                assert_eq!(fetched.body, bytes);
            }
        }
    }
    app.wait_for_files(1).await;
    let deletions = pets.iter().map(|pet| app.delete(&format!("/pet/{pet}")));
    for response in send_all(deletions).await {
        response.is(200);
    }
    app.assert_nothing_stored().await;
}
