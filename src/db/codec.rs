//! Converts between rows and domain values.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use sqlx::{FromRow, Row as _, ValueRef as _, postgres::PgRow, types::Json};

use super::error::Error;
use crate::domain::{
    caller::{Scope, Scopes},
    id::PetId,
    pet::{Label, NewPet, Pet, PetDetails, PetName, PhotoUrl, Version},
    plan::Plan,
};

/// SHA-256 of a secret. The secret itself is never stored.
pub type SecretHash = [u8; 32];

/// Category or tag, as stored in `jsonb`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LabelColumn<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<i64>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    name: Option<Cow<'a, str>>,
}

impl<'a> From<&'a Label> for LabelColumn<'a> {
    fn from(label: &'a Label) -> Self {
        Self {
            id: label.id(),
            name: label.name().map(Cow::Borrowed),
        }
    }
}

impl From<LabelColumn<'_>> for Label {
    fn from(column: LabelColumn<'_>) -> Self {
        Self::from_stored(column.id, column.name.map(Cow::into_owned))
    }
}

/// Columns of a pet that the client sets, ready to be bound.
pub(super) struct PetColumns<'a> {
    pub name: &'a str,
    pub category: Option<Json<LabelColumn<'a>>>,
    pub photo_urls: Vec<&'a str>,
    pub tags: Json<Vec<LabelColumn<'a>>>,
    pub status: &'static str,
}

impl<'a> From<&'a PetDetails> for PetColumns<'a> {
    fn from(pet: &'a PetDetails) -> Self {
        Self {
            name: pet.name().as_str(),
            category: pet.category().map(|category| Json(category.into())),
            photo_urls: pet.photo_urls().iter().map(PhotoUrl::as_str).collect(),
            tags: Json(pet.tags().iter().map(LabelColumn::from).collect()),
            status: pet.status().as_str(),
        }
    }
}

/// Columns of many pets, one array per column. PostgreSQL has no arrays of arrays of different lengths, so the photo
/// URLs of all pets form one array, in which each pet has those from `first_urls` to `last_urls`, counted from 1.
#[derive(Default)]
pub(super) struct PetArrays<'a> {
    pub ids: Vec<Option<i64>>,
    pub names: Vec<&'a str>,
    pub categories: Vec<Option<Json<LabelColumn<'a>>>>,
    pub urls: Vec<&'a str>,
    pub first_urls: Vec<i32>,
    pub last_urls: Vec<i32>,
    pub tags: Vec<Json<Vec<LabelColumn<'a>>>>,
    pub statuses: Vec<&'static str>,
}

impl<'a> FromIterator<&'a NewPet> for PetArrays<'a> {
    fn from_iter<I: IntoIterator<Item = &'a NewPet>>(pets: I) -> Self {
        let mut arrays = Self::default();
        let count = |urls: &[&str]| i32::try_from(urls.len()).unwrap_or(i32::MAX);
        for NewPet { id, details } in pets {
            let columns = PetColumns::from(details);
            arrays.ids.push(id.map(PetId::get));
            arrays.names.push(columns.name);
            arrays.categories.push(columns.category);
            arrays.first_urls.push(count(&arrays.urls) + 1);
            arrays.urls.extend(columns.photo_urls);
            arrays.last_urls.push(count(&arrays.urls));
            arrays.tags.push(columns.tags);
            arrays.statuses.push(columns.status);
        }
        arrays
    }
}

/// Row of `pets`, with the columns id, version, status, name, category, photo_urls, tags in this order. They are read
/// by position, which saves name lookups, and without a type check, since the migrations determine their types.
pub(super) struct PetRow(Pet);

impl FromRow<'_, PgRow> for PetRow {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        let id: i64 = row.try_get_unchecked(0)?;
        let corrupt = |field: &str| sqlx::Error::Decode(format!("pets.{field} of pet {id}").into());
        let status: &str = row.try_get_unchecked(2)?;
        let name: String = row.try_get_unchecked(3)?;
        let category: Option<LabelColumn<'_>> = jsonb(row, 4)?;
        let photo_urls: Vec<String> = row.try_get_unchecked(5)?;
        let tags: Vec<LabelColumn<'_>> = jsonb(row, 6)?.unwrap_or_default();
        Ok(Self(Pet {
            id: PetId::new(id).map_err(|_| corrupt("id"))?,
            version: Version(row.try_get_unchecked(1)?),
            details: PetDetails::from_stored(
                PetName::from_stored(name),
                category.map(Label::from),
                photo_urls.into_iter().map(PhotoUrl::from_stored).collect(),
                tags.into_iter().map(Label::from).collect(),
                status.parse().map_err(|_| corrupt("status"))?,
            ),
        }))
    }
}

/// Decodes a `jsonb` value: a format number, then text. UTF-8 is validated once for the text, not for each string.
fn jsonb<'r, T: Deserialize<'r>>(row: &'r PgRow, column: usize) -> Result<Option<T>, sqlx::Error> {
    const FORMAT: u8 = 1;
    let value = row.try_get_raw(column)?;
    if value.is_null() {
        return Ok(None);
    }
    let decode = || {
        let json = value.as_bytes()?;
        let json = json.strip_prefix(&[FORMAT]).ok_or("unknown jsonb format")?;
        Ok(serde_json::from_str(str::from_utf8(json)?)?)
    };
    decode().map(Some).map_err(sqlx::Error::Decode)
}

/// Decodes a [`PetRow`] into its pet.
pub(super) fn decode_pet(row: &PgRow) -> Result<Pet, sqlx::Error> {
    PetRow::from_row(row).map(Pet::from)
}

impl From<PetRow> for Pet {
    fn from(PetRow(pet): PetRow) -> Self {
        pet
    }
}

/// Returns the names of scopes, as stored in a text array.
pub(super) fn scope_names(scopes: Scopes) -> Vec<&'static str> {
    scopes.iter().map(Scope::as_str).collect()
}

/// Parses such an array. Unknown names are ignored.
pub(super) fn parse_scopes(names: &[String]) -> Scopes {
    names
        .iter()
        .filter_map(|name| name.parse::<Scope>().ok())
        .collect()
}

/// Returns the scopes of a credential: its own, if it has any, limited to those of its caller.
pub(super) fn effective_scopes(granted: &[String], own: Option<&[String]>) -> Scopes {
    let granted = parse_scopes(granted);
    own.map_or(granted, |own| granted.intersection(parse_scopes(own)))
}

/// Parses the name of a plan.
pub(super) fn parse_plan(name: &str) -> Result<Plan, Error> {
    name.parse()
        .map_err(|_| Error::Corrupt(format!("callers.plan {name:?}")))
}
