//! HTML pages: the console at `/`, and Swagger UI for the API at `/docs`.
//!
//! Invariants:
//! - All content comes from this service, and their content security policy forbids any other.
//! - The console keeps a credential in the session storage of its tabs only, which give it to one another. `/docs` stores none.

use std::{borrow::Cow, sync::Arc};

use axum::{
    Router,
    body::Bytes,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};

use super::{error::Error, state::AppState};

/// Declares modules of the console by their paths below `console/`.
macro_rules! modules {
    ($($path:literal),+ $(,)?) => {
        [$((concat!("/console/", $path), include_str!(concat!("console/", $path)))),+]
    };
}

/// Modules of the console, with their paths.
const MODULES: [(&str, &str); 45] = modules![
    "main.js",
    "api.js",
    "dom.js",
    "pictures.js",
    "wording.js",
    "views/account.js",
    "views/caller.js",
    "views/callers.js",
    "views/changes.js",
    "views/orders.js",
    "views/pet.js",
    "views/pets.js",
    "views/sessions.js",
    "views/sign_in.js",
    "views/webhook.js",
    "views/webhooks.js",
    "widgets/announcement.js",
    "widgets/boxes.js",
    "widgets/category_suggestions.js",
    "widgets/change_table.js",
    "widgets/change_text.js",
    "widgets/days.js",
    "widgets/dialog.js",
    "widgets/edits.js",
    "widgets/gallery.js",
    "widgets/grid.js",
    "widgets/inventory.js",
    "widgets/limit.js",
    "widgets/lookup.js",
    "widgets/many.js",
    "widgets/outdated.js",
    "widgets/overlap.js",
    "widgets/patience.js",
    "widgets/people.js",
    "widgets/pet_card.js",
    "widgets/pet_form.js",
    "widgets/problem.js",
    "widgets/rows.js",
    "widgets/scopes.js",
    "widgets/secret.js",
    "widgets/smaller_picture.js",
    "widgets/tag_field.js",
    "widgets/tag_suggestions.js",
    "widgets/undo.js",
    "widgets/uploads.js",
];

pub fn router() -> Router<AppState> {
    const HTML: &str = "text/html; charset=utf-8";
    const CSS: &str = "text/css; charset=utf-8";
    const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
    const SVG: &str = "image/svg+xml";
    let swagger_ui = |media_type: &'static str, name: &'static str| {
        get(async move || swagger_ui(media_type, name))
    };
    // The links in the page are relative to `/docs/`.
    let docs = get(async || (StatusCode::SEE_OTHER, [(header::LOCATION, "docs/")]));
    let mut router = Router::new();
    for (path, content) in MODULES {
        router = router.route(path, own(JAVASCRIPT, without_comments(content)));
    }
    router
        .route("/", own(HTML, include_str!("console/index.html")))
        .route(
            "/console/console.css",
            own(CSS, include_str!("console/console.css")),
        )
        // Browsers request this path for documents other than pages, too.
        .route("/favicon.ico", own(SVG, include_str!("icon.svg")))
        .route("/docs", docs)
        .route("/docs/", own(HTML, include_str!("docs.html")))
        .route("/docs/docs.css", own(CSS, include_str!("docs.css")))
        .route("/docs/docs.js", own(JAVASCRIPT, include_str!("docs.js")))
        .route("/docs/swagger-ui.css", swagger_ui(CSS, "swagger-ui.css"))
        .route(
            "/docs/swagger-ui-bundle.js",
            swagger_ui(JAVASCRIPT, "swagger-ui-bundle.js"),
        )
}

fn own(media_type: &'static str, content: impl Into<Bytes>) -> MethodRouter<AppState> {
    let content = content.into();
    // Revalidated, since a new version of the program may change them.
    get(async move || file(media_type, "no-cache", content))
}

/// Returns a module without the lines of its comments, and without its indentation, which are a fifth of it. The other lines keep their
/// numbers, which browsers report errors with.
fn without_comments(module: &str) -> String {
    let lines = module.lines().map(str::trim_start).map(|line| {
        let is_comment = ["//", "/**", "*"]
            .iter()
            .any(|begin| line.starts_with(begin));
        if is_comment { "" } else { line }
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

fn file(media_type: &'static str, caching: &'static str, content: impl Into<Bytes>) -> Response {
    // Swagger UI has `data:` images in its styles, and shows image responses as blobs.
    const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                          img-src 'self' data: blob:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";
    let headers = [
        (header::CONTENT_TYPE, media_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, caching),
    ];
    (headers, content.into()).into_response()
}

/// Returns a file of Swagger UI: 1.5 MB in all, which change only with the library.
fn swagger_ui(media_type: &'static str, name: &str) -> Result<Response, Error> {
    let content: Bytes = match utoipa_swagger_ui::serve(name, Arc::default()) {
        Ok(Some(file)) => match file.bytes {
            Cow::Borrowed(bytes) => Bytes::from_static(bytes),
            Cow::Owned(bytes) => bytes.into(),
        },
        Ok(None) => return Err(Error::NoSuchRoute),
        Err(error) => return Err(Error::internal(error.to_string())),
    };
    Ok(file(media_type, "max-age=3600", content))
}
