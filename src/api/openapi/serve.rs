//! Serves the document in each of its forms, and an index of the API. They need no credential.

use axum::{
    Router,
    body::Bytes,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::{MethodRouter, get},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::ser::Error as _;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use utoipa::openapi::OpenApi;

use super::{BASE, version_3_0};
use crate::api::{conditional::IfNoneMatch, state::Links};

/// Returns the document as YAML. Fails if it cannot be written.
pub fn to_yaml(document: &OpenApi) -> serde_json::Result<String> {
    serde_saphyr::to_string(document).map_err(serde_json::Error::custom)
}

/// Returns the routes of the index, `/api/v3`, and of the document, `openapi.json`, `openapi.yaml` and
/// `openapi-3.0.json` below it.
pub fn router<S>(document: &OpenApi, links: &Links) -> serde_json::Result<Router<S>>
where
    S: Clone + Send + Sync + 'static,
{
    const JSON: &str = "application/json";
    // RFC 9512.
    const YAML: &str = "application/yaml";
    let version_3_0 = version_3_0::convert(document)?;
    let forms = [
        ("openapi.json", JSON, serde_json::to_vec(document)?),
        ("openapi.yaml", YAML, to_yaml(document)?.into_bytes()),
        ("openapi-3.0.json", JSON, serde_json::to_vec(&version_3_0)?),
    ];
    let urls = forms
        .each_ref()
        .map(|(name, ..)| links.url(&format!("{BASE}/{name}")));
    let index = json!({
        "name": document.info.title,
        "version": document.info.version,
        "openapi": urls,
        "documentation": links.url("/docs/"),
    });
    let mut router = Router::new().route(BASE, unchanging(JSON, serde_json::to_vec(&index)?));
    for (name, media_type, content) in forms {
        router = router.route(&format!("{BASE}/{name}"), unchanging(media_type, content));
    }
    Ok(router)
}

/// Returns a route to content that does not change while the process runs. Its entity tag is weak, since the response
/// may be compressed.
fn unchanging<S>(media_type: &'static str, content: Vec<u8>) -> MethodRouter<S>
where
    S: Clone + Send + Sync + 'static,
{
    let opaque = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&content));
    let content = Bytes::from(content);
    get(async move |if_none_match: IfNoneMatch| {
        let headers = [
            (header::ETAG, format!("W/\"{opaque}\"")),
            (header::CACHE_CONTROL, "no-cache".to_owned()),
        ];
        if if_none_match.matches(&opaque) {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        (headers, [(header::CONTENT_TYPE, media_type)], content).into_response()
    })
}
