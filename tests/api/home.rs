//! The page at `/`: whole without another host, and nothing but its own may run in it.

use reqwest::Method;

use crate::support::{Ask, TestApp};

#[tokio::test(flavor = "multi_thread")]
async fn the_page_and_its_files_need_no_credential_and_no_other_host() {
    let app = TestApp::start().await;
    let page = app.bare(Method::GET, "/").answer().await.is(200);
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    let mut texts = vec![page.text()];
    for (file, media_type) in [
        ("home.css", "text/css; charset=utf-8"),
        ("home.js", "text/javascript; charset=utf-8"),
    ] {
        assert!(page.text().contains(&format!("\"{file}\"")), "{file}");
        let answer = app.bare(Method::GET, &format!("/{file}")).answer().await;
        let answer = answer.is(200);
        assert_eq!(answer.header("content-type"), media_type);
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        texts.push(answer.text());
    }
    for text in texts {
        // The namespace of SVG is a name, not a host that is asked.
        let text = text.replace("http://www.w3.org/2000/svg", "");
        assert!(
            !text.contains("//www") && !text.contains("http:") && !text.contains("https:"),
            "{text}"
        );
    }
    let policy = page.header("content-security-policy");
    assert!(
        policy.starts_with("default-src 'none';") && !policy.contains("unsafe"),
        "{policy}"
    );
    // The links lead somewhere.
    for path in ["/docs/", "/api/v3/openapi.json", "/readyz"] {
        app.bare(Method::GET, path).answer().await.is(200);
    }
    app.bare(Method::POST, "/").answer().await.problem(405);
}
