//! Rows to nouns and back: how domain values look in PostgreSQL.

use serde::{Deserialize, Serialize};
use sqlx::{FromRow, types::Json};

use super::Error;
use crate::domain::{
    caller::{Scope, Scopes},
    id::PetId,
    pet::{Label, Pet, PetDetails, PetName, PhotoUrl, Version},
    plan::Plan,
};

/// A category or a tag, as it stands in `jsonb`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LabelColumn {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

impl From<&Label> for LabelColumn {
    fn from(label: &Label) -> Self {
        Self {
            id: label.id(),
            name: label.name().map(str::to_owned),
        }
    }
}

impl From<LabelColumn> for Label {
    fn from(column: LabelColumn) -> Self {
        Self::from_stored(column.id, column.name)
    }
}

/// The columns of a pet that a client decides, ready to be bound.
pub(super) struct PetColumns<'a> {
    pub name: &'a str,
    pub category: Option<Json<LabelColumn>>,
    pub photo_urls: Vec<&'a str>,
    pub tags: Json<Vec<LabelColumn>>,
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

/// A row of `pets`.
#[derive(FromRow)]
pub(super) struct PetRow {
    id: i64,
    version: i64,
    status: String,
    name: String,
    category: Option<Json<LabelColumn>>,
    photo_urls: Vec<String>,
    tags: Json<Vec<LabelColumn>>,
}

impl TryFrom<PetRow> for Pet {
    type Error = Error;

    fn try_from(row: PetRow) -> Result<Self, Error> {
        let corrupt = |field: &str| Error::Corrupt(format!("pets.{field} of pet {}", row.id));
        Ok(Self {
            id: PetId::new(row.id).map_err(|_| corrupt("id"))?,
            version: Version(row.version),
            details: PetDetails::from_stored(
                PetName::from_stored(row.name),
                row.category.map(|Json(category)| category.into()),
                row.photo_urls
                    .into_iter()
                    .map(PhotoUrl::from_stored)
                    .collect(),
                row.tags.0.into_iter().map(Label::from).collect(),
                row.status.parse().map_err(|_| corrupt("status"))?,
            ),
        })
    }
}

/// Scopes as the text array of their names.
pub(super) fn scope_names(scopes: Scopes) -> Vec<&'static str> {
    scopes.iter().map(Scope::as_str).collect()
}

/// Reads such an array. A name that this version does not know gives nothing.
pub(super) fn scopes(names: &[String]) -> Scopes {
    names
        .iter()
        .filter_map(|name| name.parse::<Scope>().ok())
        .collect()
}

/// What a credential may do: its own scopes, where it has any, within its caller's.
pub(super) fn narrowed(granted: &[String], own: Option<&[String]>) -> Scopes {
    let granted = scopes(granted);
    own.map_or(granted, |own| granted.intersection(scopes(own)))
}

/// Reads the name of a plan.
pub(super) fn plan(name: &str) -> Result<Plan, Error> {
    name.parse()
        .map_err(|_| Error::Corrupt(format!("callers.plan {name:?}")))
}
