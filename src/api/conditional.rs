//! Conditional requests on pets and images (RFC 9110 §13): entity tags, `If-Match`, `If-None-Match`, `If-Range`.

use std::convert::Infallible;

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts},
};

use super::{error::Error, problem::Violation};
use crate::domain::pet::Version;

/// Returns the strong entity tag of a version.
#[must_use]
pub fn etag(version: Version) -> HeaderValue {
    let mut digits = itoa::Buffer::new();
    let tag = ["\"", digits.format(version.0), "\""].concat();
    // Digits in quotes are always a valid header value.
    HeaderValue::try_from(tag).unwrap_or(HeaderValue::from_static("\"\""))
}

/// `If-Match`: the versions that may be changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct IfMatch {
    /// `None` if the header is absent or `*`, which allows any version. Weak and foreign tags match nothing and are
    /// left out, so the list may be empty.
    versions: Option<Vec<Version>>,
}

impl IfMatch {
    /// Returns the versions to compare with in a statement, or `None` for any.
    #[must_use]
    pub fn versions(&self) -> Option<&[Version]> {
        self.versions.as_deref()
    }

    /// Returns true if `version` may be changed.
    #[must_use]
    pub fn admits(&self, version: Version) -> bool {
        self.versions
            .as_ref()
            .is_none_or(|versions| versions.contains(&version))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let versions = match entity_tags(&parts.headers, &header::IF_MATCH) {
            None => None,
            Some(Ok(Tags::Any)) => None,
            // Strong comparison (§8.8.3.2): a weak tag never matches.
            Some(Ok(Tags::Listed(tags))) => Some(
                tags.into_iter()
                    .filter(|tag| !tag.weak)
                    .filter_map(|tag| tag.version())
                    .collect(),
            ),
            Some(Err(NotATag)) => {
                return Err(Error::Invalid(vec![Violation::new(
                    "If-Match",
                    "must be * or a list of entity tags in double quotes",
                )]));
            }
        };
        Ok(Self { versions })
    }
}

/// `If-None-Match`: the versions that the client already has.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum IfNoneMatch {
    /// No version: the header is absent or malformed.
    #[default]
    None,
    /// Any version (`*`).
    Any,
    /// The listed versions.
    Versions(Vec<Version>),
}

impl IfNoneMatch {
    /// Returns true if the client has `version`.
    #[must_use]
    pub fn has(&self, version: Version) -> bool {
        match self {
            Self::None => false,
            Self::Any => true,
            Self::Versions(versions) => versions.contains(&version),
        }
    }
}

/// A malformed header is ignored, so that the client gets the full response.
impl<S: Send + Sync> FromRequestParts<S> for IfNoneMatch {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(match entity_tags(&parts.headers, &header::IF_NONE_MATCH) {
            None | Some(Err(NotATag)) => Self::None,
            Some(Ok(Tags::Any)) => Self::Any,
            // Weak comparison (§8.8.3.2).
            Some(Ok(Tags::Listed(tags))) => {
                Self::Versions(tags.into_iter().filter_map(|tag| tag.version()).collect())
            }
        })
    }
}

/// Returns true if `If-None-Match` matches the entity tag `opaque`, given without its quotes.
#[must_use]
pub fn is_had(headers: &HeaderMap, opaque: &str) -> bool {
    match entity_tags(headers, &header::IF_NONE_MATCH) {
        None | Some(Err(NotATag)) => false,
        Some(Ok(Tags::Any)) => true,
        Some(Ok(Tags::Listed(tags))) => tags.iter().any(|tag| tag.opaque == opaque),
    }
}

/// Returns true if `If-Range` is absent or is the strong entity tag `opaque` (RFC 9110 §13.1.5). A date never matches:
/// there is no `Last-Modified`.
#[must_use]
pub fn admits_range(headers: &HeaderMap, opaque: &str) -> bool {
    match entity_tags(headers, &header::IF_RANGE) {
        None => true,
        Some(Ok(Tags::Listed(tags))) => {
            matches!(&tags[..], [tag] if !tag.weak && tag.opaque == opaque)
        }
        Some(Ok(Tags::Any) | Err(NotATag)) => false,
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Tags<'a> {
    Any,
    Listed(Vec<Tag<'a>>),
}

#[derive(Debug, PartialEq, Eq)]
struct Tag<'a> {
    weak: bool,
    opaque: &'a str,
}

impl Tag<'_> {
    /// Returns the version, or `None` for a tag that [`etag`] does not create.
    fn version(&self) -> Option<Version> {
        let version = self.opaque.parse().ok()?;
        (etag(Version(version)).as_bytes() == format!("\"{}\"", self.opaque).as_bytes())
            .then_some(Version(version))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct NotATag;

fn entity_tags<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Result<Tags<'a>, NotATag>> {
    let mut values = headers.get_all(name).iter().peekable();
    values.peek()?;
    let mut tags = Vec::new();
    for value in values {
        match value.to_str().map_err(|_| NotATag).and_then(parse) {
            Ok(Tags::Any) => return Some(Ok(Tags::Any)),
            Ok(Tags::Listed(more)) => tags.extend(more),
            Err(error) => return Some(Err(error)),
        }
    }
    Some(Ok(Tags::Listed(tags)))
}

/// Parses `"*" / #entity-tag`. An opaque tag may contain commas, so the value cannot be split at them.
fn parse(value: &str) -> Result<Tags<'_>, NotATag> {
    let mut rest = value.trim_matches([' ', '\t']);
    if rest == "*" {
        return Ok(Tags::Any);
    }
    let mut tags = Vec::new();
    while !rest.is_empty() {
        let (weak, quoted) = match rest.strip_prefix("W/") {
            Some(quoted) => (true, quoted),
            None => (false, rest),
        };
        let (opaque, after) = quoted
            .strip_prefix('"')
            .and_then(|open| open.split_once('"'))
            .filter(|(opaque, _)| opaque.bytes().all(|byte| byte.is_ascii_graphic()))
            .ok_or(NotATag)?;
        tags.push(Tag { weak, opaque });
        rest = after.trim_start_matches([' ', '\t']);
        if !rest.is_empty() {
            rest = rest.strip_prefix(',').ok_or(NotATag)?;
            rest = rest.trim_start_matches([' ', '\t', ',']);
        }
    }
    if tags.is_empty() {
        Err(NotATag)
    } else {
        Ok(Tags::Listed(tags))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(value: &str) -> Result<Vec<Option<i64>>, NotATag> {
        match parse(value)? {
            Tags::Any => Ok(vec![]),
            Tags::Listed(tags) => Ok(tags
                .iter()
                .map(|tag| tag.version().map(|version| version.0))
                .collect()),
        }
    }

    #[test]
    fn entity_tags_are_read_as_the_rfc_has_them() {
        assert_eq!(parse("*"), Ok(Tags::Any));
        assert_eq!(versions(r#""5""#), Ok(vec![Some(5)]));
        assert_eq!(
            versions(r#""5", W/"6" ,"a,b", "07", "+8""#),
            Ok(vec![Some(5), Some(6), None, None, None])
        );
        for bad in [
            "",
            "5",
            r#""5"#,
            r#""5" "6""#,
            "W/",
            r#"*, "5""#,
            r#""a b""#,
        ] {
            assert_eq!(versions(bad), Err(NotATag), "{bad}");
        }
    }
}
