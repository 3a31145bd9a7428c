//! `/`: a page that says what this is, whether it is ready, and how a caller's limits stand.
//!
//! Invariant: all of it comes from here. The page asks no other host, keeps no key, and its policy lets
//! nothing else run in it.

use axum::{
    Router,
    http::header,
    response::{IntoResponse, Response},
    routing::get,
};

use super::state::AppState;

/// The page and its two files.
pub fn router() -> Router<AppState> {
    Router::new()
        .route("/", get(page))
        .route("/home.css", get(style))
        .route("/home.js", get(script))
}

async fn page() -> Response {
    file("text/html; charset=utf-8", include_str!("home.html"))
}

async fn style() -> Response {
    file("text/css; charset=utf-8", include_str!("home.css"))
}

async fn script() -> Response {
    file("text/javascript; charset=utf-8", include_str!("home.js"))
}

fn file(media_type: &'static str, content: &'static str) -> Response {
    const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                          img-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";
    let headers = [
        (header::CONTENT_TYPE, media_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // A new version of the program may have another page.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, content).into_response()
}
