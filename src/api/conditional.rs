//! Conditional requests on pets and images (RFC 9110 §13): entity tags, `If-Match`, `If-None-Match`, `If-Range`.
//!
//! The types of `headers` 0.4 do not suffice: its `IfMatch` accepts malformed tags, which get 400 here, and does not
//! list the tags, which the statement of a change compares.
//!
//! Invariant: both conditions are evaluated by one function, [`condition::Conditions::check`], for every method.

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts},
};

use super::{error::Error, fields::Violations};
use crate::domain::{
    condition::{self, Tags, Unmet},
    pet::Version,
};

/// Returns the strong entity tag of a version.
pub fn etag(version: Version) -> HeaderValue {
    let mut digits = itoa::Buffer::new();
    let tag = ["\"", digits.format(version.0), "\""].concat();
    // Digits in quotes are always a valid header value.
    HeaderValue::try_from(tag).unwrap_or(HeaderValue::from_static("\"\""))
}

/// `If-Match` and `If-None-Match` of a request. Malformed ones are violations, except `If-None-Match` of a read, which is ignored, so
/// that the client gets the full response.
#[derive(Debug)]
pub struct Conditions(condition::Conditions<String>);

impl Conditions {
    /// Returns the conditions on the version of a pet, which a statement checks. Foreign tags are left out.
    pub fn into_versions(self) -> condition::Conditions<Version> {
        let versions = |tags: Option<Tags<String>>| Some(tags?.filter_map(|tag| version(tag)));
        condition::Conditions {
            any_of: versions(self.0.any_of),
            none_of: versions(self.0.none_of),
        }
    }

    /// Fails with [`Error::PreconditionFailed`] if the resource must not be changed. It has the entity tag `opaque`, given
    /// without its quotes.
    pub fn check(&self, opaque: &str) -> Result<(), Error> {
        let checked = self.0.check(Some(opaque));
        checked.map_err(|_| Error::PreconditionFailed)
    }

    /// Fails as [`check`](Self::check) does for the version of a pet.
    pub fn check_version(&self, version: Version) -> Result<(), Error> {
        self.check(itoa::Buffer::new().format(version.0))
    }

    /// Returns true if the client that reads the resource has its content, and gets a 304. Fails with
    /// [`Error::PreconditionFailed`] if it wants another one.
    pub fn is_known(&self, opaque: &str) -> Result<bool, Error> {
        match self.0.check(Some(opaque)) {
            Ok(()) => Ok(false),
            Err(Unmet::NoneOf) => Ok(true),
            Err(Unmet::AnyOf) => Err(Error::PreconditionFailed),
        }
    }

    /// Returns the same as [`is_known`](Self::is_known) for the version of a pet.
    pub fn is_version_known(&self, version: Version) -> Result<bool, Error> {
        self.is_known(itoa::Buffer::new().format(version.0))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Conditions {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let mut violations = Violations::default();
        let any_of = read_condition(parts, &mut violations, "If-Match", &header::IF_MATCH);
        let none_of = read_condition(
            parts,
            &mut violations,
            "If-None-Match",
            &header::IF_NONE_MATCH,
        );
        // Strong comparison, in which weak tags match nothing, and weak comparison (§8.8.3.2).
        let strong = |tag: &EntityTag| (!tag.weak).then(|| tag.opaque.clone());
        let conditions = condition::Conditions {
            any_of: any_of.map(|tags| tags.filter_map(strong)),
            none_of: none_of.map(|tags| tags.filter_map(|tag| Some(tag.opaque.clone()))),
        };
        violations.finish(Some(Self(conditions)))
    }
}

/// Returns the entity tags of a condition, or `None` if it is absent or malformed.
fn read_condition(
    parts: &Parts,
    violations: &mut Violations,
    field: &str,
    name: &HeaderName,
) -> Option<Tags<EntityTag>> {
    entity_tags(&parts.headers, name).unwrap_or_else(|Malformed| {
        if name == header::IF_MATCH || !parts.method.is_safe() {
            violations.add(field, "must be * or a list of entity tags in double quotes");
        }
        None
    })
}

/// Returns true if `If-Range` is absent or is the strong entity tag `opaque` (§13.1.5). A date never matches: there is
/// no `Last-Modified`.
pub fn admits_range(headers: &HeaderMap, opaque: &str) -> bool {
    match entity_tags(headers, &header::IF_RANGE) {
        Ok(None) => true,
        Ok(Some(Tags::Listed(tags))) => {
            matches!(&tags[..], [tag] if !tag.weak && tag.opaque == opaque)
        }
        Ok(Some(Tags::Any)) | Err(Malformed) => false,
    }
}

#[derive(Debug, PartialEq, Eq)]
struct EntityTag {
    weak: bool,
    /// Text between the quotes.
    opaque: String,
}

/// Returns the version, or `None` for a tag that [`etag`] does not create.
fn version(opaque: &str) -> Option<Version> {
    let version: i64 = opaque.parse().ok()?;
    (itoa::Buffer::new().format(version) == opaque).then_some(Version(version))
}

#[derive(Debug, PartialEq, Eq)]
struct Malformed;

/// Returns the entity tags of all fields with this name, or `None` if there is no such field. Several fields mean the
/// same as one with all of their values (§5.3).
fn entity_tags(
    headers: &HeaderMap,
    name: &HeaderName,
) -> Result<Option<Tags<EntityTag>>, Malformed> {
    let values = headers.get_all(name).iter().map(HeaderValue::to_str);
    let values: Vec<_> = values.collect::<Result<_, _>>().map_err(|_| Malformed)?;
    if values.is_empty() {
        return Ok(None);
    }
    parse(&values.join(",")).map(Some)
}

/// Parses `"*" / #entity-tag`. An opaque tag may contain commas, so the value cannot be split at them.
fn parse(value: &str) -> Result<Tags<EntityTag>, Malformed> {
    let mut rest = value.trim_matches([' ', '\t']);
    if rest == "*" {
        return Ok(Tags::Any);
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
    Ok(Tags::Listed(tags))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entity_tags_are_read_as_the_rfc_has_them() {
        assert_eq!(parse("*"), Ok(Tags::Any));
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
            let version = |tag: &EntityTag| version(&tag.opaque).map(|version| version.0);
            let read: Option<Vec<_>> = match parse(value) {
                Ok(Tags::Listed(tags)) => Some(tags.iter().map(version).collect()),
                Ok(Tags::Any) => Some(Vec::new()),
                Err(Malformed) => None,
            };
            assert_eq!(read.as_deref(), versions, "{value}");
        }
    }
}
