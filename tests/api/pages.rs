//! HTML pages: no resources from other hosts, a strict Content-Security-Policy, and the size of the console.

use test_support::*;

const CONSOLE: &str = "src/api/pages/console";

/// Returns the files of the console, relative to its folder.
fn console_files() -> Vec<String> {
    let folder = repository().join(CONSOLE);
    let mut files = Vec::new();
    let mut folders = vec![folder.clone()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let relative = path.strip_prefix(&folder).map(Path::to_str);
            files.push(relative.ok().flatten().expect("a path").to_owned());
        }
    }
    files
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_need_no_credential_and_no_other_host() {
    let app = TestApp::start().await;
    for (page, own, library) in [
        (
            "/",
            ["console/console.css", "console/console.js"],
            &[] as &[&str],
        ),
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
            assert!(html.text().contains(&format!("\"{file}")), "{file}");
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
            let text = text.replace("http://www.w3.org/2000/svg", "");
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
        app.bare(Method::POST, page).await.problem(405);
    }
    let icon = app.bare(Method::GET, "/favicon.ico").is(200).await;
    assert_eq!(icon.header("content-type"), "image/svg+xml");
    let moved = app.bare(Method::GET, "/docs").is(303).await;
    assert_eq!(moved.header("location"), "docs/");
    app.bare(Method::GET, "/docs/nothing.js").await.problem(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn console_is_served_as_a_whole_and_is_small() {
    const MAX_SIZE: usize = 170_000;
    let app = TestApp::start().await;
    let index = app.bare(Method::GET, "/").is(200).await.text();
    let version = index.split("console.js?v=").nth(1);
    let version = version.and_then(|rest| rest.split('"').next());
    let version = version.expect("a version");
    let mut size = index.len();
    for file in ["console.js", "console.css"] {
        let path = format!("/console/{file}");
        let kept = app.bare(Method::GET, &format!("{path}?v={version}"));
        let kept = kept.is(200).await;
        assert!(kept.header("cache-control").ends_with("immutable"));
        // A replica of another version, whose files must not be kept as those of this one.
        for query in ["", "?v=0123456789abcdef"] {
            let other = app.bare(Method::GET, &format!("{path}{query}"));
            assert_eq!(other.is(200).await.header("cache-control"), "no-cache");
        }
        let text = kept.text();
        size += text.len();
        if file == "console.js" {
            for module in console_files()
                .iter()
                .filter(|it| Path::new(it).extension().is_some_and(|it| it == "js"))
            {
                let begin = format!("modules[\"{module}\"] = ");
                assert_eq!(text.matches(&begin).count(), 1, "{module}");
            }
        }
        for forbidden in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "localStorage",
            "http:",
            "https:",
        ] {
            let is_namespace = forbidden == "http:" && text.contains("http://www.w3.org/2000/svg");
            assert!(
                is_namespace || !text.contains(forbidden),
                "{file}: {forbidden}"
            );
        }
    }
    assert!((1..MAX_SIZE).contains(&size), "{size} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn index_tells_local_requests_of_demo_keys() {
    let app = TestApp::start().await;
    let index = app.anonymous(Method::GET, "").is(200).await;
    assert_eq!(index.json()["demoKeys"], false, "{index}");
}
