//! HTTP responses and checks of them. A failed check prints the response.

use std::{
    fmt,
    io::{self, Read as _},
};

use bytes::Bytes;
use flate2::read::GzDecoder;
use reqwest::{
    RequestBuilder,
    header::{HeaderMap, HeaderName},
};
use serde_json::Value;

use crate::document;

/// Extension of reqwest's request builder.
pub trait RequestExt {
    /// Sends the request and returns the response with its whole body.
    fn response(self) -> impl Future<Output = Response> + Send;

    /// Sends the request and returns the response, which must have this status.
    fn is(self, status: u16) -> impl Future<Output = Response> + Send;
}

impl RequestExt for RequestBuilder {
    async fn response(self) -> Response {
        let (client, request) = self.build_split();
        let request = request.expect("a request");
        let (method, path) = (request.method().clone(), request.url().path().to_owned());
        let response = client.execute(request).await.expect("a response");
        let response = Response {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.bytes().await.expect("a whole body"),
        };
        document::check(&method, &path, &response);
        response
    }

    async fn is(self, status: u16) -> Response {
        self.response().await.is(status)
    }
}

/// HTTP response with its whole body.
#[derive(Clone)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Header fields.
    pub headers: HeaderMap,
    /// Whole body.
    pub body: Bytes,
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.status)?;
        for (name, value) in &self.headers {
            writeln!(f, "{name}: {}", String::from_utf8_lossy(value.as_bytes()))?;
        }
        write!(f, "\n{}", self.text())
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Response {
    /// Checks the status.
    #[track_caller]
    pub fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self}");
        self
    }

    /// Returns the body as text, with invalid UTF-8 replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body without its content encoding, and checks that it is complete.
    #[track_caller]
    pub fn decoded(&self) -> Vec<u8> {
        let mut decoded = Vec::new();
        let result = self.decode(&mut decoded);
        result.unwrap_or_else(|error| panic!("{error}: {self}"));
        decoded
    }

    /// Returns what can be decoded of a body of which only a part has arrived.
    pub fn decoded_part(&self) -> Vec<u8> {
        let mut decoded = Vec::new();
        // Fails at the end of the part.
        let _ = self.decode(&mut decoded);
        decoded
    }

    fn decode(&self, decoded: &mut Vec<u8>) -> io::Result<usize> {
        let mut body = &self.body[..];
        match self.optional_header("content-encoding") {
            None => body.read_to_end(decoded),
            Some("gzip") => GzDecoder::new(body).read_to_end(decoded),
            Some("zstd") => zstd::Decoder::new(body)?.read_to_end(decoded),
            Some(other) => panic!("unknown encoding {other}"),
        }
    }

    /// Returns the body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self}"))
    }

    /// Returns a header, which must be present.
    #[track_caller]
    pub fn header(&self, name: &str) -> &str {
        self.optional_header(name)
            .unwrap_or_else(|| panic!("no {name} in {self}"))
    }

    /// Returns a header, or `None`.
    pub fn optional_header(&self, name: &str) -> Option<&str> {
        let name: HeaderName = name.parse().expect("the name of a header");
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the ETag, which must be a strong one.
    #[track_caller]
    pub fn etag(&self) -> String {
        let etag = self.header("etag");
        assert!(
            etag.len() > 2 && etag.starts_with('"') && etag.ends_with('"'),
            "not a strong entity tag: {self}"
        );
        etag.to_owned()
    }

    /// Returns the `id` of the object in the body.
    #[track_caller]
    pub fn id(&self) -> i64 {
        self.json()["id"]
            .as_i64()
            .unwrap_or_else(|| panic!("no id in {self}"))
    }

    /// Returns the version of a pet, which is its ETag.
    #[track_caller]
    pub fn version(&self) -> i64 {
        let etag = self.etag();
        etag.trim_matches('"').parse().expect("a version")
    }

    /// Returns the changes of a page of the record.
    #[track_caller]
    pub fn changes(&self) -> Vec<Value> {
        let changes = self.json()["changes"].take();
        serde_json::from_value(changes).unwrap_or_else(|_| panic!("no changes in {self}"))
    }

    /// Returns the path of the uploaded image that the body describes.
    #[track_caller]
    pub fn image_path(&self) -> String {
        let json = self.json();
        let url = json["url"].as_str();
        let path = url.and_then(|url| url.split_once("/api/v3"));
        path.unwrap_or_else(|| panic!("no image in {self}"))
            .1
            .to_owned()
    }

    /// Returns the `id` of each object in the body's array.
    #[track_caller]
    pub fn ids(&self) -> Vec<i64> {
        let json = self.json();
        let pets = json.as_array().unwrap_or_else(|| panic!("{self}"));
        pets.iter()
            .map(|pet| pet["id"].as_i64().unwrap_or_else(|| panic!("{self}")))
            .collect()
    }

    /// Checks that this is a problem document (RFC 9457) with the given status and all common members; returns it.
    #[track_caller]
    pub fn problem(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self}");
        assert_eq!(
            self.header("content-type"),
            "application/problem+json",
            "{self}"
        );
        let problem = self.json();
        let members: Vec<&str> = problem
            .as_object()
            .unwrap_or_else(|| panic!("{self}"))
            .keys()
            .map(String::as_str)
            .filter(|member| !["errors", "violated-policies", "oldest"].contains(member))
            .collect();
        let mut expected = [
            "type", "title", "status", "detail", "instance", "code", "message",
        ];
        expected.sort_unstable();
        let mut sorted = members.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, expected, "{self}");
        assert_eq!(problem["status"], status, "{self}");
        assert_eq!(problem["code"], status, "{self}");
        assert_eq!(problem["message"], problem["detail"], "{self}");
        assert_eq!(problem["instance"], self.header("x-request-id"), "{self}");
        for text in ["type", "title", "detail", "instance"] {
            let text = problem[text].as_str();
            assert!(text.is_some_and(|text| !text.is_empty()), "{self}");
        }
        for violation in problem["errors"].as_array().into_iter().flatten() {
            assert!(
                violation["field"].is_string()
                    && violation["reason"].is_string()
                    && violation
                        .as_object()
                        .is_some_and(|members| members.len() == 2),
                "{self}"
            );
        }
        problem
    }

    /// Checks that this is a 400 and returns the fields that it names.
    #[track_caller]
    pub fn invalid_fields(&self) -> Vec<String> {
        let problem = self.problem(400);
        let errors = problem["errors"]
            .as_array()
            .unwrap_or_else(|| panic!("no errors in {self}"));
        errors
            .iter()
            .map(|violation| violation["field"].as_str().unwrap_or_default().to_owned())
            .collect()
    }
}
