//! Bodies of error responses: RFC 9457 `application/problem+json`.

use std::fmt::Display;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::change::Position;

/// Violation of a validation rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Violation {
    /// Location: the path of a JSON field (`tags[2].name`), a parameter, a header, `body`, `query` or `path`.
    #[schema(example = "tags[2].name", max_length = 255, pattern = r"^[^\x00]*$")]
    pub field: String,
    /// The rule.
    #[schema(
        example = "must be at most 255 characters",
        max_length = 255,
        pattern = r"^[^\x00]*$"
    )]
    pub reason: String,
}

impl Violation {
    /// Creates a violation of the rule `reason` at `field`.
    pub fn new(field: impl Into<String>, reason: impl Display) -> Self {
        Self {
            field: field.into(),
            reason: reason.to_string(),
        }
    }
}

/// Body of an error response: RFC 9457, plus `code` and `message` of Petstore's `ApiResponse` for its clients.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Type of the problem; `about:blank` if the status alone describes the problem.
    #[serde(rename = "type")]
    #[schema(format = "uri-reference", example = "about:blank", max_length = 255)]
    kind: String,
    /// Title of the type.
    #[schema(example = "Bad Request", max_length = 64, pattern = "^[ -~]+$")]
    title: String,
    /// HTTP status code.
    #[schema(example = 400, minimum = 400, maximum = 599)]
    status: u16,
    /// Description of the problem with this request.
    #[schema(
        example = "name must not be empty",
        max_length = 262_144,
        pattern = r"^[^\x00]*$"
    )]
    detail: String,
    /// Request id, as in `X-Request-Id`.
    #[schema(
        example = "9f86d081884c7d659a2feaa0c55ad015",
        max_length = 64,
        pattern = "^[A-Za-z0-9._-]+$"
    )]
    instance: String,
    /// Same as `status`, for Petstore clients.
    #[schema(example = 400, minimum = 400, maximum = 599)]
    code: u16,
    /// Same as `detail`, for Petstore clients.
    #[schema(
        example = "name must not be empty",
        max_length = 262_144,
        pattern = r"^[^\x00]*$"
    )]
    message: String,
    /// All violations, if the input is invalid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 10_000)]
    errors: Vec<Violation>,
    /// All limits that are reached, for status 429.
    #[serde(
        rename = "violated-policies",
        default,
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schema(value_type = Vec<PolicyName>, inline, max_items = 4, example = json!(["minute"]))]
    violated_policies: Vec<String>,
    /// Oldest position of the record of changes, for status 410.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    oldest: Option<i64>,
}

/// Name of a limit, as in `RateLimit-Policy`.
#[derive(ToSchema)]
#[schema(value_type = String, max_length = 32, pattern = "^[a-z-]+$")]
#[expect(dead_code, reason = "describes what is written as text")]
struct PolicyName(String);

impl Problem {
    /// Media type (RFC 9457 §3).
    pub const MEDIA_TYPE: &'static str = "application/problem+json";

    /// Creates a problem of type `about:blank`.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self {
            kind: "about:blank".into(),
            title: status.canonical_reason().unwrap_or("Error").into(),
            status: status.as_u16(),
            instance: String::new(),
            code: status.as_u16(),
            message: detail.clone(),
            detail,
            errors: Vec::new(),
            violated_policies: Vec::new(),
            oldest: None,
        }
    }

    /// Creates the problem of invalid input, with a summary for clients that read only `message`.
    pub fn invalid(errors: Vec<Violation>) -> Self {
        let detail = match &errors[..] {
            [only] => format!("{} {}", only.field, only.reason),
            many => {
                let fields: Vec<_> = many.iter().map(|error| error.field.as_str()).collect();
                format!("{} fields are invalid: {}", many.len(), fields.join(", "))
            }
        };
        Self {
            errors,
            ..Self::new(StatusCode::BAD_REQUEST, detail)
        }
    }

    /// Creates a problem for reached limits (`draft-ietf-httpapi-ratelimit-headers`).
    pub fn quota_exceeded(policies: &[&str], retry_after: u64) -> Self {
        let reached = policies.join(" and ");
        let detail = format!("limit reached: {reached}; retry in {retry_after} s");
        Self {
            kind: "https://iana.org/assignments/http-problem-types#quota-exceeded".into(),
            violated_policies: policies.iter().map(|policy| (*policy).to_owned()).collect(),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, detail)
        }
    }

    /// Creates the problem of a position that is not in the record of changes, which begins at `oldest`.
    pub fn unknown_position(oldest: Position) -> Self {
        let detail = "after is not a position of the record of changes, or is past its retention";
        Self {
            oldest: Some(oldest.0),
            ..Self::new(StatusCode::GONE, detail)
        }
    }

    /// Creates the problem of a response from the framework, of which only the status is known.
    pub fn of_status(status: StatusCode) -> Self {
        let detail = match status {
            StatusCode::BAD_REQUEST => "the request is not valid HTTP",
            StatusCode::METHOD_NOT_ALLOWED => {
                "the path does not support the method; the Allow header lists the supported methods"
            }
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                "the request head is too large or has too many fields"
            }
            StatusCode::URI_TOO_LONG => "the request target is too long",
            other => other.canonical_reason().unwrap_or("the request failed"),
        };
        Self::new(status, detail)
    }

    /// Returns the HTTP status.
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Serializes the problem of the request with this id.
    pub fn into_json(mut self, request_id: &str) -> Vec<u8> {
        request_id.clone_into(&mut self.instance);
        // Enough for most problems.
        let mut json = Vec::with_capacity(512);
        match serde_json::to_writer(&mut json, &self) {
            Ok(()) => json,
            Err(_) => Vec::new(),
        }
    }
}
