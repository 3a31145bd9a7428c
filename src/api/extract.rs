//! Extractors that reject requests with [`Error`]. `.clippy.toml` bans axum's own, which reject in plain text.

use std::{borrow::Cow, convert::Infallible, str::FromStr};

use axum::{
    body::{Body, Bytes},
    extract::{FromRef, FromRequest, FromRequestParts, RawPathParams, Request},
    http::{HeaderMap, header, request::Parts, uri::Authority},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use percent_encoding::percent_decode_str;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::error::Category;

use super::{
    error::Error,
    fields::{FieldType, Violations},
    problem::Violation,
    state::BodyLimits,
};
use crate::domain::Invalid;

/// The only path parameter of a route.
#[derive(Debug)]
pub struct Path<T>(pub T);

impl<S: Send + Sync, T: FromStr<Err = Invalid>> FromRequestParts<S> for Path<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let parameters = RawPathParams::from_request_parts(parts, state)
            .await
            .map_err(|_| Error::Invalid(vec![Violation::new("path", "must be UTF-8")]))?;
        let (name, value) = parameters
            .iter()
            .next()
            .ok_or_else(|| Error::Internal("a route without a path parameter".into()))?;
        value
            .parse()
            .map(Self)
            .map_err(|reason| Error::invalid(name, &reason))
    }
}

/// The two path parameters of a route.
#[derive(Debug)]
pub struct PathPair<A, B>(pub A, pub B);

impl<S, A, B> FromRequestParts<S> for PathPair<A, B>
where
    S: Send + Sync,
    A: FromStr<Err = Invalid>,
    B: FromStr<Err = Invalid>,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let parameters = RawPathParams::from_request_parts(parts, state)
            .await
            .map_err(|_| Error::Invalid(vec![Violation::new("path", "must be UTF-8")]))?;
        let mut parameters = parameters.iter();
        let (Some((first, a)), Some((second, b))) = (parameters.next(), parameters.next()) else {
            return Err(Error::Internal(
                "a route without two path parameters".into(),
            ));
        };
        let mut violations = Violations::default();
        let a = a.parse().map_err(|reason| violations.add(first, reason));
        let b = b.parse().map_err(|reason| violations.add(second, reason));
        violations.finish(a.ok().zip(b.ok()).map(|(a, b)| Self(a, b)))
    }
}

/// Host that the client addressed, or `localhost` if the request names none.
#[derive(Debug)]
pub struct Host(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Host {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        // HTTP/2 sends the host in the request target.
        let host = parts.uri.authority().map(Authority::as_str).or_else(|| {
            let host = parts.headers.get(header::HOST)?;
            host.to_str().ok()
        });
        Ok(Self(host.unwrap_or("localhost").to_owned()))
    }
}

/// Parameters of a query or form, in the order received.
#[derive(Debug, Default)]
pub struct Parameters(Vec<Parameter>);

#[derive(Debug)]
struct Parameter {
    name: String,
    value: String,
    /// Name and value as sent.
    encoded: String,
}

impl Parameters {
    /// Parses `application/x-www-form-urlencoded`, which is the format of queries, too.
    fn parse(encoded: &str, place: &str) -> Result<Self, Error> {
        let decode = |text: &str| {
            Self::decode(text)
                .ok_or_else(|| Error::Invalid(vec![Violation::new(place, "must be UTF-8")]))
        };
        encoded
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                Ok(Parameter {
                    name: decode(name)?,
                    value: decode(value)?,
                    encoded: format!("{name}={value}"),
                })
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Decodes a name or a value. Returns `None` if it is not UTF-8.
    #[must_use]
    pub fn decode(encoded: &str) -> Option<String> {
        let spaced = encoded.replace('+', " ");
        percent_decode_str(&spaced)
            .decode_utf8()
            .ok()
            .map(Cow::into_owned)
    }

    /// Returns all values of a parameter.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |parameter| parameter.name == name)
            .map(|parameter| parameter.value.as_str())
    }

    /// Returns the values of a list parameter, which may be repeated, separated by commas, or both.
    #[must_use]
    pub fn list<'a>(&'a self, name: &'a str) -> Vec<&'a str> {
        self.all(name).flat_map(|value| value.split(',')).collect()
    }

    /// Reads and checks a parameter that may be absent. Repeating it is a violation.
    pub fn optional<T>(
        &self,
        violations: &mut Violations,
        name: &str,
        read: impl FnOnce(&str) -> Result<T, Invalid>,
    ) -> Option<T> {
        let mut values = self.all(name);
        let value = values.next()?;
        let once = match values.next() {
            None => Ok(value),
            Some(_) => Err(Invalid::because("must be given once")),
        };
        once.and_then(read)
            .map_err(|reason| violations.add(name, reason))
            .ok()
    }

    /// Appends the parameters of `more`.
    #[must_use]
    pub fn and(mut self, more: Self) -> Self {
        self.0.extend(more.0);
        self
    }

    /// Returns a query of the parameters in `names`, encoded as sent, then one more that needs no encoding.
    #[must_use]
    pub fn query_with(&self, names: &[&str], (name, value): (&str, &str)) -> String {
        let kept = self
            .0
            .iter()
            .filter(|kept| names.contains(&kept.name.as_str()));
        let kept = kept.map(|kept| kept.encoded.as_str());
        let last = format!("{name}={value}");
        kept.chain([last.as_str()]).collect::<Vec<_>>().join("&")
    }
}

/// Query parameters.
#[derive(Debug)]
pub struct Query(pub Parameters);

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        Parameters::parse(parts.uri.query().unwrap_or_default(), "query").map(Self)
    }
}

/// JSON body.
#[derive(Debug)]
pub struct Json<T>(pub T);

impl<S, T> FromRequest<S> for Json<T>
where
    S: Send + Sync,
    BodyLimits: FromRef<S>,
    T: FieldType,
{
    type Rejection = Error;

    async fn from_request(request: Request, state: &S) -> Result<Self, Error> {
        require_media_type(request.headers(), "application/json", &["application/json"])?;
        require_plain(request.headers())?;
        let body = read_body(request.into_body(), BodyLimits::from_ref(state)).await?;
        // serde would accept an array for an object, with its elements as the fields.
        if !T::KIND.may_begin_with(body.trim_ascii_start().first()) {
            parse_json::<IgnoredAny>(&body)?;
            let reason = format!("must be {}", T::KIND.name());
            return Err(Error::Invalid(vec![Violation::new("body", reason)]));
        }
        parse_json(&body).map(Self)
    }
}

/// JSON Merge Patch (RFC 7396).
#[derive(Debug)]
pub struct MergePatch(pub serde_json::Value);

impl<S> FromRequest<S> for MergePatch
where
    S: Send + Sync,
    BodyLimits: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request(request: Request, state: &S) -> Result<Self, Error> {
        require_media_type(
            request.headers(),
            "application/merge-patch+json or application/json",
            &["application/merge-patch+json", "application/json"],
        )?;
        require_plain(request.headers())?;
        parse_json(&read_body(request.into_body(), BodyLimits::from_ref(state)).await?).map(Self)
    }
}

/// Form body, which may be absent.
#[derive(Debug)]
pub struct Form(pub Parameters);

impl<S> FromRequest<S> for Form
where
    S: Send + Sync,
    BodyLimits: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request(request: Request, state: &S) -> Result<Self, Error> {
        const FORM: &str = "application/x-www-form-urlencoded";
        let media_type = require_media_type(request.headers(), FORM, &[FORM]);
        let plain = require_plain(request.headers());
        let body = read_body(request.into_body(), BodyLimits::from_ref(state)).await?;
        if body.is_empty() {
            return Ok(Self(Parameters::default()));
        }
        media_type?;
        plain?;
        let text = std::str::from_utf8(&body)
            .map_err(|_| Error::Invalid(vec![Violation::new("body", "must be UTF-8")]))?;
        Parameters::parse(text, "body").map(Self)
    }
}

fn require_media_type(
    headers: &HeaderMap,
    accepted: &'static str,
    essences: &[&str],
) -> Result<(), Error> {
    if essences
        .iter()
        .any(|essence| has_media_type(headers, essence))
    {
        Ok(())
    } else {
        Err(Error::UnsupportedMediaType(accepted))
    }
}

/// Rejects an encoded body (RFC 9110 §8.4), which would be misread, since decoding is not supported.
///
/// # Errors
/// [`Error::EncodedBody`].
pub fn require_plain(headers: &HeaderMap) -> Result<(), Error> {
    let mut values = headers.get_all(header::CONTENT_ENCODING).iter();
    let plain = values.all(|value| {
        let mut codings = value.as_bytes().split(|byte| *byte == b',');
        codings.all(|coding| {
            let coding = coding.trim_ascii();
            coding.is_empty() || coding.eq_ignore_ascii_case(b"identity")
        })
    });
    if plain {
        Ok(())
    } else {
        Err(Error::EncodedBody)
    }
}

/// Returns true if `Content-Type` has this media type, with any parameters.
#[must_use]
pub fn has_media_type(headers: &HeaderMap, essence: &str) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|sent| sent.trim().eq_ignore_ascii_case(essence))
}

/// Reads a whole body within its limits, so that no handler acts on half of a request.
///
/// # Errors
/// [`Error::BodyTooLarge`], [`Error::BodyTimeout`], or [`Error::Invalid`] if the body is cut off.
pub async fn read_body(body: Body, limits: BodyLimits) -> Result<Bytes, Error> {
    let too_large = || Error::BodyTooLarge(limits.max_size);
    // A declared length over the limit is rejected without reading.
    if http_body::Body::size_hint(&body).lower() > limits.max_size {
        return Err(too_large());
    }
    let max_size = usize::try_from(limits.max_size).unwrap_or(usize::MAX);
    let collected = tokio::time::timeout(limits.timeout, Limited::new(body, max_size).collect());
    match collected.await {
        Err(_) => Err(Error::BodyTimeout),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Error::Invalid(vec![Violation::new(
            "body",
            "must be complete; it ends early",
        )])),
    }
}

/// Parses JSON. Error messages contain positions, never parts of the body.
fn parse_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|error| {
        let place = format_args!("line {} column {}", error.line(), error.column());
        let reason = match error.classify() {
            Category::Data => format!("must be a JSON object without duplicate fields ({place})"),
            Category::Eof => format!("must be complete JSON; it ends early ({place})"),
            Category::Syntax | Category::Io => format!("must be valid JSON ({place})"),
        };
        Error::Invalid(vec![Violation::new("body", reason)])
    })
}
