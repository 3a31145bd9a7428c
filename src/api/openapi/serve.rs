//! Serves the document in each of its forms, and an index of the API. They need no credential.

use axum::{
    Router,
    body::Bytes,
    extract::Request,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::ser::Error as _;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use utoipa::openapi::OpenApi;

use super::version_3_0;
use crate::api::{
    conditional::Conditions, error::Error, extract::is_local, operations::BASE, state::Links,
};

/// Returns the document as YAML. Fails if it cannot be written.
pub fn to_yaml(document: &OpenApi) -> serde_json::Result<String> {
    serde_saphyr::to_string(document).map_err(serde_json::Error::custom)
}

/// Returns the routes of the index, `/api/v3`, and of the document, `openapi.json`, `openapi.yaml` and
/// `openapi-3.0.json` below it. The index tells requests that may use demo keys if there are any.
pub fn router<S>(
    document: &OpenApi,
    links: &Links,
    has_demo_keys: bool,
) -> serde_json::Result<Router<S>>
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
    let index = |demo_keys: bool| {
        let index = json!({
            "name": document.info.title,
            "version": document.info.version,
            "openapi": urls,
            "documentation": links.url("/docs/"),
            "demoKeys": demo_keys,
        });
        Ok::<_, serde_json::Error>(Unchanging::new(JSON, serde_json::to_vec(&index)?))
    };
    let (remote, local) = (index(false)?, index(has_demo_keys)?);
    let index = get(async move |conditions: Conditions, request: Request| {
        let index = if is_local(request.version(), request.uri(), request.headers()) {
            local
        } else {
            remote
        };
        index.respond(&conditions)
    });
    let mut router = Router::new().route(BASE, index);
    for (name, media_type, content) in forms {
        let form = Unchanging::new(media_type, content);
        let form = get(async move |conditions: Conditions| form.respond(&conditions));
        router = router.route(&format!("{BASE}/{name}"), form);
    }
    Ok(router)
}

/// Content that does not change while the process runs. Its entity tag is weak, since the response may be compressed.
#[derive(Clone)]
struct Unchanging {
    media_type: &'static str,
    opaque: String,
    content: Bytes,
}

impl Unchanging {
    fn new(media_type: &'static str, content: Vec<u8>) -> Self {
        Self {
            media_type,
            opaque: BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&content)),
            content: content.into(),
        }
    }

    fn respond(self, conditions: &Conditions) -> Result<Response, Error> {
        let headers = [
            (header::ETAG, format!("W/\"{}\"", self.opaque)),
            (header::CACHE_CONTROL, "no-cache".to_owned()),
        ];
        if conditions.is_known(&self.opaque)? {
            return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
        }
        let media_type = [(header::CONTENT_TYPE, self.media_type)];
        Ok((headers, media_type, self.content).into_response())
    }
}
