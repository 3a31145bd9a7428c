//! The form of every error: RFC 9457 `application/problem+json`.

use std::fmt::Display;

use axum::{
    body::Body,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Violation {
    /// Where: the path of a JSON field (`tags[2].name`), the name of a parameter or header, or `body`.
    #[schema(example = "tags[2].name", max_length = 255, pattern = r"^[^\x00]*$")]
    pub field: String,
    /// What the rule is.
    #[schema(
        example = "must be at most 255 characters",
        max_length = 255,
        pattern = r"^[^\x00]*$"
    )]
    pub reason: String,
}

impl Violation {
    /// `reason` broken at `field`.
    pub fn new(field: impl Into<String>, reason: impl Display) -> Self {
        Self {
            field: field.into(),
            reason: reason.to_string(),
        }
    }
}

/// The body of every error: RFC 9457, with `code` and `message` of Petstore's `ApiResponse` beside it,
/// so that a client which knows only that reads it too.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// What kind of problem it is; `about:blank` where the status says it all.
    #[serde(rename = "type")]
    #[schema(format = "uri-reference", example = "about:blank", max_length = 255)]
    kind: String,
    /// The kind in words.
    #[schema(example = "Bad Request", max_length = 64, pattern = "^[ -~]+$")]
    title: String,
    /// The HTTP status.
    #[schema(example = 400, minimum = 400, maximum = 599)]
    status: u16,
    /// What is wrong with this very request.
    #[schema(
        example = "name must not be empty",
        max_length = 262_144,
        pattern = r"^[^\x00]*$"
    )]
    detail: String,
    /// The request's id, as in `X-Request-Id`.
    #[schema(
        example = "9f86d081884c7d659a2feaa0c55ad015",
        max_length = 64,
        pattern = "^[A-Za-z0-9._-]+$"
    )]
    instance: String,
    /// The status again, where Petstore's clients look for it.
    #[schema(example = 400, minimum = 400, maximum = 599)]
    code: u16,
    /// The detail again, where Petstore's clients look for it.
    #[schema(
        example = "name must not be empty",
        max_length = 262_144,
        pattern = r"^[^\x00]*$"
    )]
    message: String,
    /// Every broken rule, for invalid input.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 10_000)]
    errors: Vec<Violation>,
    /// Every limit that is reached, for 429.
    #[serde(
        rename = "violated-policies",
        default,
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schema(value_type = Vec<PolicyName>, inline, max_items = 4, example = json!(["minute"]))]
    violated_policies: Vec<String>,
}

/// The name of a limit, as `RateLimit-Policy` has it.
#[derive(ToSchema)]
#[schema(value_type = String, max_length = 32, pattern = "^[a-z-]+$")]
#[expect(dead_code, reason = "describes what is written as text")]
struct PolicyName(String);

impl Problem {
    /// The media type, RFC 9457 §3.
    pub const MEDIA_TYPE: &'static str = "application/problem+json";

    /// A problem that the status says all of.
    #[must_use]
    pub fn new(status: StatusCode, detail: String, errors: Vec<Violation>) -> Self {
        Self {
            kind: "about:blank".into(),
            title: status.canonical_reason().unwrap_or("Error").into(),
            status: status.as_u16(),
            instance: String::new(),
            code: status.as_u16(),
            message: detail.clone(),
            detail,
            errors,
            violated_policies: Vec::new(),
        }
    }

    /// A limit that is reached (`draft-ietf-httpapi-ratelimit-headers`).
    #[must_use]
    pub fn quota_exceeded(policies: &[&str], detail: String) -> Self {
        Self {
            kind: "https://iana.org/assignments/http-problem-types#quota-exceeded".into(),
            violated_policies: policies.iter().map(|policy| (*policy).to_owned()).collect(),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, detail, Vec::new())
        }
    }

    /// The problem of a response that the framework made, which knows nothing but a status.
    #[must_use]
    pub fn of_status(status: StatusCode) -> Self {
        let detail = match status {
            StatusCode::BAD_REQUEST => "the request is not valid HTTP",
            StatusCode::METHOD_NOT_ALLOWED => {
                "this path does not take this method; the header Allow names those it takes"
            }
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                "the request head is too large or has too many fields"
            }
            StatusCode::URI_TOO_LONG => "the request target is too long",
            other => other.canonical_reason().unwrap_or("the request failed"),
        };
        Self::new(status, detail.to_owned(), Vec::new())
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The body, about the request of that id.
    #[must_use]
    pub fn into_json(mut self, request_id: &str) -> Vec<u8> {
        /// Most need no more.
        const ROOM: usize = 512;
        request_id.clone_into(&mut self.instance);
        let mut json = Vec::with_capacity(ROOM);
        match serde_json::to_writer(&mut json, &self) {
            Ok(()) => json,
            Err(_) => Vec::new(),
        }
    }
}

/// Without a body yet: [`super::middleware::observe`] writes it, since it knows the request's id.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        /// Those of a limit that is reached, which must not cost more than what it refuses.
        const HEADERS: usize = 9;
        let mut response = Response::new(Body::empty());
        response.headers_mut().reserve(HEADERS);
        *response.status_mut() = self.status();
        response.extensions_mut().insert(self);
        response
    }
}
