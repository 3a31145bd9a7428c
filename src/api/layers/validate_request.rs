//! Rejects requests that hyper accepts although RFC 9112 does not, and fields that are too long.

use axum::{
    extract::Request,
    http::{HeaderName, Version, header},
};

use crate::api::{error::Error, extract::is_host};

/// Maximum length of a request target in bytes. RFC 9110, section 4.1, recommends at least 8,000.
const MAX_TARGET: usize = 8_192;

/// Conditional and range fields, which have a maximum length.
static CONDITIONS: [HeaderName; 4] = [
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_RANGE,
    header::RANGE,
];
const MAX_CONDITION: usize = 4_096;

/// Validates the length of the target and of conditional fields, the authority of the target, and
/// `Host`: HTTP/1.1 requires exactly one (RFC 9112, section 3.2), because two servers could read different ones.
pub fn validate_request(request: &Request) -> Result<(), Error> {
    let target = request.uri().path_and_query();
    if target.is_some_and(|target| target.as_str().len() > MAX_TARGET) {
        return Err(Error::UriTooLong(MAX_TARGET));
    }
    let mut lengths = [0; CONDITIONS.len()];
    for (name, value) in request.headers() {
        if let Some(which) = CONDITIONS.iter().position(|condition| condition == name) {
            lengths[which] += value.len();
        }
    }
    if let Some(which) = lengths.iter().position(|length| *length > MAX_CONDITION) {
        let reason = format!("must be at most {MAX_CONDITION} characters");
        return Err(Error::one_violation(CONDITIONS[which].as_str(), reason));
    }
    let authority = request.uri().authority();
    if authority.is_some_and(|authority| !is_host(authority.as_str().as_bytes())) {
        return Err(Error::one_violation("authority", "must be a host name"));
    }
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let broken = match (hosts.next(), hosts.next()) {
        (Some(host), None) => {
            (!host.is_empty() && !is_host(host.as_bytes())).then_some("must be a host name")
        }
        (None, _) => (request.version() == Version::HTTP_11).then_some("is required"),
        (Some(_), Some(_)) => Some("must be given once"),
    };
    broken.map_or(Ok(()), |reason| Err(Error::one_violation("Host", reason)))
}
