//! Conditional requests on images: `If-Match` and `If-None-Match` (RFC 9110 §13.1).

use test_support::*;

use super::{ImageApp, form};
use crate::conditional::CONDITIONS;

/// Adds pet 5 and returns its ETag.
async fn add_pet_5(app: &ImageApp) -> String {
    let pet = json!({"id": 5, "name": "five"});
    app.post("/pet", &pet).is(201).await.etag()
}

/// Uploads a PNG of this width as a body of its own, or as a form.
fn upload(app: &ImageApp, width: u32, as_form: bool) -> Call {
    let bytes = png(width, 8);
    if as_form {
        let body = form(&[("name=\"file\"; filename=\"a.png\"", &bytes)], "x");
        return app.upload_form(5, body, "x");
    }
    app.upload(5, bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_with_if_match_needs_the_etag_of_the_pet() {
    let app = ImageApp::start().await;
    let stale = add_pet_5(&app).await;
    let current = async || app.get("/pet/5").is(200).await.etag();
    for (number, as_form) in [(1, false), (2, true)] {
        let etag = current().await;
        let first = upload(&app, 8 * number, as_form).header("if-match", format!("\"9\", {etag}"));
        let image = first.is(200).await.image_path();
        let image = app.get(&image).is(200).await.etag();
        let before = app.get("/pet/5").is(200).await;
        for (name, value, status) in [
            ("stale", etag.clone(), 412),
            ("older", stale.clone(), 412),
            ("weak", format!("W/{}", before.etag()), 412),
            ("of an image", image.clone(), 412),
            ("unquoted", "5".to_owned(), 400),
        ] {
            for key in [None, Some(format!("{number} {name}"))] {
                let mut request = upload(&app, 9, as_form).header("if-match", &value);
                if let Some(key) = &key {
                    request = request.header("idempotency-key", key);
                }
                let response = request.await;
                response.problem(status);
                // A refused upload is not stored as the response of its key.
                if let Some(key) = key {
                    let again = upload(&app, 9, as_form).header("idempotency-key", key);
                    again.header("if-match", &value).await.problem(status);
                }
            }
        }
        let after = app.get("/pet/5").is(200).await;
        assert_eq!((after.text(), after.etag()), (before.text(), before.etag()));
        let any = upload(&app, 9 + number, as_form).header("if-match", "*");
        any.is(200).await;
    }
    assert_eq!(app.database.number("select count(*) from images").await, 4);
    let unknown = app.request(Method::POST, "/pet/6/uploadImage");
    let unknown = unknown.header("content-type", "image/png").body(png(8, 8));
    unknown.header("if-match", "*").await.problem(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_uploads_with_one_etag_have_one_winner() {
    let app = ImageApp::start().await;
    let etag = add_pet_5(&app).await;
    let uploads = (0..8).map(|number| {
        let upload = upload(&app, 8 + number, number % 2 == 0);
        upload.header("if-match", &etag)
    });
    let statuses = statuses_of(uploads).await;
    assert_eq!(statuses, [vec![200], vec![412; 7]].concat());
    let pet = app.get("/pet/5").is(200).await.json();
    assert_eq!(pet["photoUrls"].as_array().map(Vec::len), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn image_deletion_with_if_match_needs_the_etag_of_the_image() {
    let app = ImageApp::start().await;
    add_pet_5(&app).await;
    for allowed in ["{}", "\"x\" , {}", "*"] {
        let path = upload(&app, 8, false).is(200).await.image_path();
        let etag = app.get(&path).is(200).await.etag();
        let before = app.get("/pet/5").is(200).await;
        for (value, status) in [
            (before.etag(), 412),
            (format!("W/{etag}"), 412),
            ("\"\"".to_owned(), 412),
            (etag.replace('"', ""), 400),
        ] {
            let delete = app.delete(&path).header("if-match", &value);
            delete.await.problem(status);
        }
        app.get(&path).is(200).await;
        let after = app.get("/pet/5").is(200).await;
        assert_eq!((after.text(), after.etag()), (before.text(), before.etag()));
        let delete = || {
            app.delete(&path)
                .header("if-match", allowed.replace("{}", &etag))
        };
        delete().is(200).await;
        delete().await.problem(404);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_on_an_image_evaluates_both_conditions() {
    let app = ImageApp::start().await;
    add_pet_5(&app).await;
    let uploaded = async || upload(&app, 64, false).is(200).await.image_path();
    let mut path = uploaded().await;
    for (name, form, holds) in CONDITIONS {
        let what = format!("{name}: {form}");
        let (allowed, unread) = match (holds, name) {
            (true, _) => (200, 200),
            (false, "if-match") => (412, 412),
            (false, _) => (412, 304),
        };
        for query in ["", "?width=16"] {
            let path = format!("{path}{query}");
            let etag = app.get(&path).is(200).await.etag();
            for method in [Method::GET, Method::HEAD] {
                let read = app.request(method, &path);
                let read = read.header(name, form.replace("{}", &etag)).await;
                assert_eq!(read.status, unread, "{what}{query}: {read}");
            }
        }
        for as_form in [false, true] {
            let before = app.get("/pet/5").is(200).await;
            let upload = upload(&app, 8, as_form);
            let upload = upload
                .header(name, form.replace("{}", &before.etag()))
                .await;
            assert_eq!(upload.status, allowed, "{what}: {upload}");
            let is_unchanged = app.get("/pet/5").is(200).await.etag() == before.etag();
            assert_eq!(is_unchanged, !holds, "{what}");
        }
        let etag = app.get(&path).is(200).await.etag();
        let delete = app.delete(&path);
        let delete = delete.header(name, form.replace("{}", &etag)).await;
        assert_eq!(delete.status, allowed, "{what}: {delete}");
        if holds {
            path = uploaded().await;
        }
    }
    let upload = upload(&app, 8, false).header("if-none-match", "5");
    assert_eq!(upload.await.invalid_fields(), ["If-None-Match"]);
    let delete = app.delete(&path).header("if-none-match", "5");
    assert_eq!(delete.await.invalid_fields(), ["If-None-Match"]);
}
