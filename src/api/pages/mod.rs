//! HTML pages: the console at `/`, and Swagger UI for the API at `/docs`.
//!
//! Invariants:
//! - All content comes from this service, and their content security policy forbids any other.
//! - The console keeps a credential in the session storage of its tabs only, which give it to one another. `/docs` stores none.

mod bundle;

use std::{borrow::Cow, sync::Arc};

use axum::{
    Router,
    body::Bytes,
    extract::RawQuery,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};
use sha2::{Digest as _, Sha256};

use self::bundle::bundle;
use super::{error::Error, state::AppState};

/// Declares modules of the console by their paths below `console/`.
macro_rules! modules {
    ($($path:literal),+ $(,)?) => {
        [$(($path, include_str!(concat!("console/", $path)))),+]
    };
}

/// Modules of the console, with their paths.
const MODULES: [(&str, &str); 46] = modules![
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
    "widgets/fold.js",
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
    let script = bundle("main.js", &MODULES);
    let styles = include_str!("console/console.css");
    let version = version(&[&script, styles]);
    let index = include_str!("console/index.html").replace("{version}", &version);
    Router::new()
        .route("/", own(HTML, index))
        .route(
            "/console/console.js",
            versioned(JAVASCRIPT, script, &version),
        )
        .route("/console/console.css", versioned(CSS, styles, &version))
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

/// Serves a file that browsers keep for a year if they request it with its version, `?v=…`. Without it, or with the version of another
/// replica during an upgrade, they ask again each time.
fn versioned(
    media_type: &'static str,
    content: impl Into<Bytes>,
    version: &str,
) -> MethodRouter<AppState> {
    let content = content.into();
    let query = format!("v={version}");
    get(async move |RawQuery(requested): RawQuery| {
        let is_own = requested.is_some_and(|requested| requested == query);
        let caching = if is_own {
            "public, max-age=31536000, immutable"
        } else {
            "no-cache"
        };
        file(media_type, caching, content)
    })
}

/// Returns the version of files, which depends on nothing but what they contain.
fn version(files: &[&str]) -> String {
    let hash = Sha256::digest(files.concat());
    let begin = hash
        .first_chunk()
        .map_or(0, |bytes| u64::from_be_bytes(*bytes));
    format!("{begin:016x}")
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
