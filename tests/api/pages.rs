//! HTML pages: no resources from other hosts, and a strict Content-Security-Policy.

use reqwest::Method;
use test_support::{RequestExt, TestApp};

#[tokio::test(flavor = "multi_thread")]
async fn pages_need_no_credential_and_no_other_host() {
    let app = TestApp::start().await;
    for (page, own, library) in [
        ("/", ["home.css", "home.js"], &[] as &[&str]),
        (
            "/docs/",
            ["docs.css", "docs.js"],
            &["swagger-ui.css", "swagger-ui-bundle.js"],
        ),
    ] {
        let html = app.bare(Method::GET, page).is(200).await;
        assert_eq!(html.header("content-type"), "text/html; charset=utf-8");
        let mut texts = vec![html.text()];
        for file in own.iter().chain(library) {
            assert!(html.text().contains(&format!("\"{file}\"")), "{file}");
            let response = app.bare(Method::GET, &format!("{page}{file}"));
            let response = response.is(200).await;
            let media_type = match file.rsplit_once('.') {
                Some((_, "css")) => "text/css; charset=utf-8",
                _ => "text/javascript; charset=utf-8",
            };
            assert_eq!(response.header("content-type"), media_type);
            assert_eq!(response.header("x-content-type-options"), "nosniff");
            if own.contains(file) {
                assert_eq!(response.header("cache-control"), "no-cache");
                texts.push(response.text());
            } else {
                assert_eq!(response.header("cache-control"), "max-age=3600");
            }
        }
        for text in texts {
            assert!(
                !text.contains("//www") && !text.contains("http:") && !text.contains("https:"),
                "{text}"
            );
        }
        let policy = html.header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none';") && !policy.contains("unsafe"),
            "{policy}"
        );
        app.bare(Method::POST, page).response().await.problem(405);
    }
    let icon = app.bare(Method::GET, "/favicon.ico").is(200).await;
    assert_eq!(icon.header("content-type"), "image/svg+xml");
    let moved = app.bare(Method::GET, "/docs").is(303).await;
    assert_eq!(moved.header("location"), "docs/");
    app.bare(Method::GET, "/docs/nothing.js")
        .response()
        .await
        .problem(404);
}
