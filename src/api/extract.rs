//! Extractors that reject requests with [`Error`]. `.clippy.toml` bans axum's own, which reject in plain text.

use std::{convert::Infallible, str::FromStr};

use axum::{
    extract::{FromRequest, FromRequestParts, RawPathParams, Request},
    http::{HeaderMap, HeaderValue, Uri, Version, header, request::Parts, uri::Authority},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::error::Category;

use super::{
    body::LimitedBody,
    error::Error,
    fields::{Field, Input, Violations},
    state::AppState,
};
use crate::domain::{Invalid, address};

/// Maximum number of parameters of a query or form. One of two bytes takes about 100 bytes of memory.
const MAX_PARAMETERS: usize = 1_000;

/// The only path parameter of a route.
#[derive(Debug)]
pub struct Path<T>(pub T);

impl<S: Send + Sync, T: FromStr<Err = Invalid>> FromRequestParts<S> for Path<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let parameters = path_parameters(parts, state).await?;
        let mut violations = Violations::default();
        let value = parse_next(&mut parameters.iter(), &mut violations)?;
        violations.finish(value.map(Self))
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
        let parameters = path_parameters(parts, state).await?;
        let mut parameters = parameters.iter();
        let mut violations = Violations::default();
        let first = parse_next(&mut parameters, &mut violations)?;
        let second = parse_next(&mut parameters, &mut violations)?;
        violations.finish(first.zip(second).map(|(first, second)| Self(first, second)))
    }
}

async fn path_parameters<S: Send + Sync>(
    parts: &mut Parts,
    state: &S,
) -> Result<RawPathParams, Error> {
    let parameters = RawPathParams::from_request_parts(parts, state).await;
    parameters.map_err(|_| Error::one_violation("path", "must be UTF-8"))
}

/// Parses the next parameter of a path, which the route has.
fn parse_next<'a, T: FromStr<Err = Invalid>>(
    parameters: &mut impl Iterator<Item = (&'a str, &'a str)>,
    violations: &mut Violations,
) -> Result<Option<T>, Error> {
    let (name, value) = parameters
        .next()
        .ok_or_else(|| Error::internal("a route without a path parameter"))?;
    let value = value.parse().map_err(|reason| violations.add(name, reason));
    Ok(value.ok())
}

/// Returns true if this is a host with an optional port, as `Host` has it (RFC 9110 §7.2): without user information, and
/// not a list.
pub fn is_host(text: &[u8]) -> bool {
    !text.iter().any(|byte| b"@,".contains(byte)) && Authority::try_from(text).is_ok()
}

/// Returns true if this is `localhost` or a loopback address, with an optional port.
pub fn is_loopback(host: &[u8]) -> bool {
    Authority::try_from(host).is_ok_and(|authority| address::is_loopback(authority.host()))
}

/// Fields that proxies and content delivery networks add, besides `X-Forwarded-*`. A proxy that adds no field, or works
/// below HTTP, cannot be detected.
const OF_PROXIES: [&str; 7] = [
    "forwarded",
    "via",
    "x-real-ip",
    "cf-connecting-ip",
    "true-client-ip",
    "x-envoy-external-address",
    "cdn-loop",
];

/// Returns true if the request names loopback hosts only, at least one, comes from no page of another host, and shows no sign
/// of a proxy. nginx forwards in HTTP/1.0 by default.
pub fn is_local(version: Version, uri: &Uri, headers: &HeaderMap) -> bool {
    let authority = uri.authority().map(|it| it.as_str().as_bytes());
    let fields = headers.get_all(header::HOST);
    let fields = fields.iter().map(HeaderValue::as_bytes);
    let hosts: Vec<_> = authority.into_iter().chain(fields).collect();
    let origins = headers.get_all(header::ORIGIN);
    version != Version::HTTP_10
        && !hosts.is_empty()
        && hosts.into_iter().all(is_loopback)
        && origins.iter().all(is_local_origin)
        && !headers.keys().any(|name| {
            OF_PROXIES.contains(&name.as_str()) || name.as_str().starts_with("x-forwarded-")
        })
}

/// Returns true for the origin of a page of this machine. That of a sandboxed page or a file is `null`.
fn is_local_origin(origin: &HeaderValue) -> bool {
    let origin = origin.as_bytes();
    let host = origin.strip_prefix(b"http://");
    let host = host.or_else(|| origin.strip_prefix(b"https://"));
    host.is_some_and(is_loopback)
}

/// Host that the client addressed, or `localhost` if the request names none.
#[derive(Debug)]
pub struct Host(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Host {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        // The host of a request target takes precedence (RFC 9112, section 3.2.2).
        let authority = parts.uri.authority().map(Authority::as_str);
        let host = authority.or_else(|| parts.headers.get(header::HOST)?.to_str().ok());
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
    /// Value as sent.
    encoded: String,
}

impl Parameter {
    /// Returns true if the parameter is called `list` or, as some clients write the items of a list, `list[]` or `list[0]`.
    fn is_item_of(&self, list: &str) -> bool {
        let index = self.name.strip_prefix(list);
        index.is_some_and(|index| {
            let digits = index
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'));
            index.is_empty()
                || digits.is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()))
        })
    }

    /// Returns the values between literal commas. All are UTF-8, as the whole is, since no comma is within a character.
    fn elements(&self) -> impl Iterator<Item = String> {
        self.encoded.split(',').filter_map(Parameters::decode)
    }
}

impl Parameters {
    /// Parses `application/x-www-form-urlencoded`, which is the format of queries, too.
    pub fn parse(encoded: &str, place: &str) -> Result<Self, Error> {
        let decode =
            |text| Self::decode(text).ok_or_else(|| Error::one_violation(place, "must be UTF-8"));
        let pairs = encoded.split('&').filter(|pair| !pair.is_empty());
        if pairs.clone().nth(MAX_PARAMETERS).is_some() {
            let reason = format!("must have at most {MAX_PARAMETERS} parameters");
            return Err(Error::one_violation(place, reason));
        }
        let parameters = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok(Parameter {
                name: decode(name)?,
                value: decode(value)?,
                encoded: value.to_owned(),
            })
        });
        parameters.collect::<Result<_, _>>().map(Self)
    }

    /// Decodes a name or a value. Returns `None` if it is not UTF-8.
    pub fn decode(encoded: &str) -> Option<String> {
        let spaced = encoded.replace('+', " ");
        let decoded = percent_decode_str(&spaced).decode_utf8().ok()?;
        Some(decoded.into_owned())
    }

    /// Returns all values of a parameter.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let named = self.0.iter().filter(move |one| one.name == name);
        named.map(|one| one.value.as_str())
    }

    fn items<'a>(&'a self, list: &'a str) -> impl Iterator<Item = &'a Parameter> {
        self.0.iter().filter(move |one| one.is_item_of(list))
    }

    /// Returns true if a list parameter is given.
    pub fn has_list(&self, name: &str) -> bool {
        self.items(name).next().is_some()
    }

    /// Returns the values of a list parameter, which may be repeated, separated by commas, or both. An encoded comma is a
    /// character of a value (RFC 3986 §2.2).
    pub fn list(&self, name: &str) -> Vec<String> {
        self.items(name).flat_map(Parameter::elements).collect()
    }

    /// Returns the values of a list parameter whose values have no commas: an encoded comma separates, too, because many
    /// HTTP libraries encode it.
    pub fn words(&self, name: &str) -> Vec<String> {
        let words = self.items(name).flat_map(|one| one.value.split(','));
        words.map(str::to_owned).collect()
    }

    /// Reads and checks a parameter. A repeated one is invalid.
    pub fn field<T>(&self, name: &str, read: impl FnOnce(&str) -> Result<T, Invalid>) -> Field<T> {
        let mut values = self.all(name);
        let Some(value) = values.next() else {
            return Field::Absent;
        };
        match values.next() {
            None => read(value).into(),
            Some(_) => Field::invalid(Invalid::because("must be given once")),
        }
    }

    /// Reads and checks a parameter that may be absent.
    pub fn optional<T>(
        &self,
        violations: &mut Violations,
        name: &str,
        read: impl FnOnce(&str) -> Result<T, Invalid>,
    ) -> Option<T> {
        violations.optional(name, self.field(name, read))
    }

    /// Appends the parameters of `more`.
    pub fn and(mut self, more: Self) -> Self {
        self.0.extend(more.0);
        self
    }

    /// Returns a query of the parameters in `names`, percent-encoded, then one more that needs no encoding.
    pub fn query_with(&self, names: &[&str], (name, value): (&str, &str)) -> String {
        let kept = self
            .0
            .iter()
            .filter(|one| names.iter().any(|name| one.is_item_of(name)));
        let mut query = String::new();
        for parameter in kept {
            let elements = parameter.elements().map(|element| percent_encode(&element));
            let value = elements.collect::<Vec<_>>().join(",");
            query.extend([&percent_encode(&parameter.name), "=", &value, "&"]);
        }
        query.extend([name, "=", value]);
        query
    }
}

/// Percent-encodes all but the unreserved characters (RFC 3986 §2.3).
pub fn percent_encode(text: &str) -> String {
    const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'.')
        .remove(b'_')
        .remove(b'~');
    utf8_percent_encode(text, RESERVED).to_string()
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

impl<T: Input> FromRequest<AppState> for Json<T> {
    type Rejection = Error;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, Error> {
        read_json(request, "application/json", state)
            .await
            .map(Self)
    }
}

/// JSON Merge Patch (RFC 7396).
#[derive(Debug)]
pub struct MergePatch<T>(pub T);

impl<T: Input> FromRequest<AppState> for MergePatch<T> {
    type Rejection = Error;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, Error> {
        const ACCEPTED: &str = "application/merge-patch+json or application/json";
        read_json(request, ACCEPTED, state).await.map(Self)
    }
}

async fn read_json<T: Input>(
    request: Request,
    accepted: &'static str,
    state: &AppState,
) -> Result<T, Error> {
    let (parts, body) = request.into_parts();
    require_media_type(&parts.headers, accepted)?;
    require_plain(&parts.headers)?;
    let body = LimitedBody::new(body, state.body_limits, 0)?.join().await?;
    json_from_slice(without_byte_order_mark(&body))
}

/// Returns JSON without the byte order mark that some programs write before it, and parsers may ignore (RFC 8259 §8.1).
pub fn without_byte_order_mark(json: &[u8]) -> &[u8] {
    json.strip_prefix(b"\xef\xbb\xbf").unwrap_or(json)
}

/// Parses a JSON body without a byte order mark. Fails with [`Error::Invalid`].
pub fn json_from_slice<T: Input>(body: &[u8]) -> Result<T, Error> {
    let body = serde_json::from_slice(body).map_err(|error| invalid_json(&error))?;
    let mut violations = Violations::default();
    let body = match body {
        Field::Absent | Field::Null => Field::invalid(T::wrong_type()),
        body => body,
    };
    let body = violations.optional("body", body);
    violations.finish(body)
}

/// Form body, which may be absent.
#[derive(Debug)]
pub struct Form(pub Parameters);

impl FromRequest<AppState> for Form {
    type Rejection = Error;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, Error> {
        let (parts, body) = request.into_parts();
        let body = LimitedBody::new(body, state.body_limits, 0)?.join().await?;
        if body.is_empty() {
            return Ok(Self(Parameters::default()));
        }
        require_media_type(&parts.headers, "application/x-www-form-urlencoded")?;
        require_plain(&parts.headers)?;
        let text = std::str::from_utf8(&body)
            .map_err(|_| Error::one_violation("body", "must be UTF-8"))?;
        Parameters::parse(text, "body").map(Self)
    }
}

/// Rejects a body of another media type than those in `accepted`, separated by "or".
pub fn require_media_type(headers: &HeaderMap, accepted: &'static str) -> Result<(), Error> {
    let mut essences = accepted.split(" or ");
    if essences.any(|essence| has_media_type(headers, essence)) {
        return Ok(());
    }
    Err(Error::UnsupportedMediaType(accepted))
}

/// Rejects an encoded body (RFC 9110 §8.4), which would be misread, since decoding is not supported.
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
        return Ok(());
    }
    Err(Error::EncodedBody)
}

/// Returns true if `Content-Type` has this media type, with any parameters.
pub fn has_media_type(headers: &HeaderMap, essence: &str) -> bool {
    let value = headers.get(header::CONTENT_TYPE).map(HeaderValue::to_str);
    let sent = value.and_then(|value| value.ok()?.split(';').next());
    sent.is_some_and(|sent| sent.trim().eq_ignore_ascii_case(essence))
}

/// Returns the error for a body that is not JSON. Its message contains a position, never parts of the body.
fn invalid_json(error: &serde_json::Error) -> Error {
    let place = format_args!("line {} column {}", error.line(), error.column());
    let reason = match error.classify() {
        Category::Data => format!("must be a JSON object without duplicate fields ({place})"),
        Category::Eof => format!("must be complete JSON; it ends early ({place})"),
        Category::Syntax | Category::Io => format!("must be valid JSON ({place})"),
    };
    Error::one_violation("body", reason)
}
