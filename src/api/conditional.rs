//! Conditional requests on pets and images (RFC 9110 §13): entity tags, `If-Match`, `If-None-Match`, `If-Range`.
//!
//! The types of `headers` 0.4 do not suffice: its `IfMatch` accepts malformed tags, which get 400 here, and does not
//! list the tags, which the statement of a change compares.

use std::convert::Infallible;

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts},
};

use super::error::Error;
use crate::domain::pet::Version;

/// Returns the strong entity tag of a version.
pub fn etag(version: Version) -> HeaderValue {
    let mut digits = itoa::Buffer::new();
    let tag = ["\"", digits.format(version.0), "\""].concat();
    // Digits in quotes are always a valid header value.
    HeaderValue::try_from(tag).unwrap_or(HeaderValue::from_static("\"\""))
}

/// `If-Match`: the entity tags of what may be changed. `None` if the header is absent or `*`, which allows any. Weak tags
/// match nothing (§8.8.3.2) and are left out, so the list may be empty.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct IfMatch(Option<Vec<EntityTag>>);

impl IfMatch {
    /// Returns the versions to compare with in a statement, or `None` for any. Foreign tags are left out.
    pub fn into_versions(self) -> Option<Vec<Version>> {
        Some(self.0?.iter().filter_map(EntityTag::version).collect())
    }

    /// Fails with [`Error::PreconditionFailed`] if the entity tag `opaque`, given without its quotes, is not allowed.
    pub fn check(&self, opaque: &str) -> Result<(), Error> {
        if (self.0.as_ref()).is_none_or(|tags| tags.iter().any(|tag| tag.opaque == opaque)) {
            return Ok(());
        }
        Err(Error::PreconditionFailed)
    }

    /// Fails with [`Error::PreconditionFailed`] if `version` is not allowed.
    pub fn check_version(&self, version: Version) -> Result<(), Error> {
        self.check(itoa::Buffer::new().format(version.0))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let tags = entity_tags(&parts.headers, &header::IF_MATCH).map_err(|Malformed| {
            let reason = "must be * or a list of entity tags in double quotes";
            Error::one_violation("If-Match", reason)
        })?;
        Ok(Self(match tags {
            None | Some(EntityTags::Any) => None,
            Some(EntityTags::Listed(mut tags)) => {
                tags.retain(|tag| !tag.weak);
                Some(tags)
            }
        }))
    }
}

/// `If-None-Match`: the entity tags that the client already has. `None` if the header is absent or malformed, so that
/// the client gets the full response.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct IfNoneMatch(Option<EntityTags>);

impl IfNoneMatch {
    /// Reads the header.
    pub fn from_headers(headers: &HeaderMap) -> Self {
        Self(entity_tags(headers, &header::IF_NONE_MATCH).unwrap_or_default())
    }

    /// Returns true if the client has the content with the entity tag `opaque`, given without its quotes.
    pub fn matches(&self, opaque: &str) -> bool {
        match &self.0 {
            None => false,
            Some(EntityTags::Any) => true,
            // Weak comparison (§8.8.3.2).
            Some(EntityTags::Listed(tags)) => tags.iter().any(|tag| tag.opaque == opaque),
        }
    }

    /// Returns true if the client has `version`.
    pub fn matches_version(&self, version: Version) -> bool {
        self.matches(itoa::Buffer::new().format(version.0))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for IfNoneMatch {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::from_headers(&parts.headers))
    }
}

/// Returns true if `If-Range` is absent or is the strong entity tag `opaque` (§13.1.5). A date never matches: there is
/// no `Last-Modified`.
pub fn admits_range(headers: &HeaderMap, opaque: &str) -> bool {
    match entity_tags(headers, &header::IF_RANGE) {
        Ok(None) => true,
        Ok(Some(EntityTags::Listed(tags))) => {
            matches!(&tags[..], [tag] if !tag.weak && tag.opaque == opaque)
        }
        Ok(Some(EntityTags::Any)) | Err(Malformed) => false,
    }
}

#[derive(Debug, PartialEq, Eq)]
enum EntityTags {
    /// `*`.
    Any,
    Listed(Vec<EntityTag>),
}

#[derive(Debug, PartialEq, Eq)]
struct EntityTag {
    weak: bool,
    /// Text between the quotes.
    opaque: String,
}

impl EntityTag {
    /// Returns the version, or `None` for a tag that [`etag`] does not create.
    fn version(&self) -> Option<Version> {
        let version: i64 = self.opaque.parse().ok()?;
        (itoa::Buffer::new().format(version) == self.opaque).then_some(Version(version))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Malformed;

/// Returns the entity tags of all fields with this name, or `None` if there is no such field. Several fields mean the
/// same as one with all of their values (§5.3).
fn entity_tags(headers: &HeaderMap, name: &HeaderName) -> Result<Option<EntityTags>, Malformed> {
    let values = headers.get_all(name).iter().map(HeaderValue::to_str);
    let values: Vec<_> = values.collect::<Result<_, _>>().map_err(|_| Malformed)?;
    if values.is_empty() {
        return Ok(None);
    }
    parse(&values.join(",")).map(Some)
}

/// Parses `"*" / #entity-tag`. An opaque tag may contain commas, so the value cannot be split at them.
fn parse(value: &str) -> Result<EntityTags, Malformed> {
    let mut rest = value.trim_matches([' ', '\t']);
    if rest == "*" {
        return Ok(EntityTags::Any);
    }
    let mut tags = Vec::new();
    // Empty elements are ignored (§5.6.1.2).
    rest = rest.trim_start_matches([' ', '\t', ',']);
    while !rest.is_empty() {
        let quoted = rest.strip_prefix("W/");
        let (opaque, after) = quoted
            .unwrap_or(rest)
            .strip_prefix('"')
            .and_then(|open| open.split_once('"'))
            .filter(|(opaque, _)| opaque.bytes().all(|byte| byte.is_ascii_graphic()))
            .ok_or(Malformed)?;
        tags.push(EntityTag {
            weak: quoted.is_some(),
            opaque: opaque.to_owned(),
        });
        rest = after.trim_start_matches([' ', '\t']);
        if !rest.is_empty() {
            rest = rest.strip_prefix(',').ok_or(Malformed)?;
            rest = rest.trim_start_matches([' ', '\t', ',']);
        }
    }
    if tags.is_empty() {
        return Err(Malformed);
    }
    Ok(EntityTags::Listed(tags))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entity_tags_are_read_as_the_rfc_has_them() {
        assert_eq!(parse("*"), Ok(EntityTags::Any));
        for (value, versions) in [
            (r#""5""#, Some(&[Some(5)][..])),
            (
                r#""5", W/"6" ,"a,b", "07", "+8""#,
                Some(&[Some(5), Some(6), None, None, None]),
            ),
            ("", None),
            ("5", None),
            (r#""5"#, None),
            (r#""5" "6""#, None),
            ("W/", None),
            (r#"*, "5""#, None),
            (r#""a b""#, None),
        ] {
            let version = |tag: &EntityTag| tag.version().map(|version| version.0);
            let read: Option<Vec<_>> = match parse(value) {
                Ok(EntityTags::Listed(tags)) => Some(tags.iter().map(version).collect()),
                Ok(EntityTags::Any) => Some(Vec::new()),
                Err(Malformed) => None,
            };
            assert_eq!(read.as_deref(), versions, "{value}");
        }
    }
}
