//! Reads the parameters of lists: `limit`, `cursor`, `sort`, and lists of names.

use std::{fmt::Display, str::FromStr};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};

use super::{error::Error, extract::Parameters, fields::Violations};
use crate::domain::{Invalid, parse_digits};

/// Maximum value of `limit`.
const MAX_LIMIT: usize = 1_000;
/// Maximum number of names in a list parameter.
pub const MAX_NAMES: usize = 100;

/// Returns the names in a list parameter, or none if it is absent. Empty names and more than 100 names are violations.
pub fn names(
    violations: &mut Violations,
    query: &Parameters,
    parameter: &'static str,
) -> Vec<String> {
    checked(violations, parameter, query.list(parameter))
}

/// Parses the words in a list parameter and removes duplicates. Invalid words are violations and left out.
pub fn parse_distinct<T: FromStr<Err = Invalid> + PartialEq>(
    violations: &mut Violations,
    query: &Parameters,
    parameter: &'static str,
) -> Vec<T> {
    let mut read: Vec<T> = Vec::new();
    for word in checked(violations, parameter, query.words(parameter)) {
        match word.parse() {
            Ok(value) if read.contains(&value) => {}
            Ok(value) => read.push(value),
            Err(reason) => violations.add(parameter, reason),
        }
    }
    read
}

fn checked(
    violations: &mut Violations,
    parameter: &'static str,
    names: Vec<String>,
) -> Vec<String> {
    let reason = match names.len() {
        0 => return names,
        _ if names.iter().any(String::is_empty) => "must not contain an empty name",
        1..=MAX_NAMES => return names,
        _ => "must be at most 100 names",
    };
    violations.add(parameter, reason);
    Vec::new()
}

/// Order of a list, as the document has it; the parameter is read as text.
#[derive(utoipa::ToSchema)]
#[schema(as = ListOrder)]
pub enum SortParameter {
    /// By identifier.
    #[schema(rename = "id")]
    Ascending,
    /// The largest identifier first.
    #[schema(rename = "-id")]
    Descending,
}

/// Reads the order of a list: true if the largest identifier comes first.
pub fn read_sort(violations: &mut Violations, query: &Parameters) -> Option<bool> {
    query.optional(violations, "sort", |sort| match sort {
        "id" => Ok(false),
        "-id" => Ok(true),
        _ => Err(Invalid::because("must be id or -id")),
    })
}

/// Parses the maximum number of matches of a page.
pub fn parse_limit(text: &str) -> Result<usize, Invalid> {
    parse_digits(text)
        .filter(|limit| (1..=MAX_LIMIT).contains(limit))
        .ok_or(Invalid::because("must be an integer from 1 to 1000"))
}

/// Range of the matches that a request selects.
pub struct Window<Id> {
    /// Maximum number of matches; all of them if `None`.
    pub limit: Option<usize>,
    /// Identifier that the matches follow.
    pub after: Option<Id>,
}

impl<Id: FromStr> Window<Id> {
    /// Reads `limit` and `cursor`, then reports all violations of the query.
    pub fn read(mut violations: Violations, query: &Parameters) -> Result<Self, Error> {
        let limit = query.optional(&mut violations, "limit", parse_limit);
        let after = query.optional(&mut violations, "cursor", read_cursor);
        violations.finish(Some(Self { limit, after }))
    }

    /// Sets the maximum number of matches of a request without `limit`.
    pub fn or_limit(self, limit: usize) -> Self {
        Self {
            limit: self.limit.or(Some(limit)),
            ..self
        }
    }
}

/// Returns the cursor of the matches after `id`. Opaque to clients, so that the format can change.
pub fn cursor(id: impl Display) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(id.to_string())
}

/// Reads a cursor.
pub fn read_cursor<Id: FromStr>(cursor: &str) -> Result<Id, Invalid> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(cursor).ok();
    bytes
        .and_then(|bytes| String::from_utf8(bytes).ok()?.parse().ok())
        .ok_or(Invalid::because("must be a cursor from a Link header"))
}
