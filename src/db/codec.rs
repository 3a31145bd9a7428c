//! Converts between rows and domain values.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::{
    Decode, FromRow, Postgres, Row as _, Type, ValueRef as _,
    error::BoxDynError,
    postgres::{PgRow, PgTypeInfo, PgValueRef},
};

use crate::domain::{
    Invalid, Text,
    caller::{CallerId, CallerName, Scope, Scopes},
    change::Position,
    id::{CredentialId, OrderId, PetId, WebhookId},
    image::{ImageId, ImageType},
    order::{self, Quantity, ShipDate},
    pet::{self, Category, Pet, PetDetails, PetName, PhotoUrl, Tag, Version},
    plan::Plan,
    user::{UserId, Username},
    webhook::{Receiver, WebhookSecret},
};

/// SHA-256 of a secret. The secret itself is never stored.
pub type SecretHash = [u8; 32];

/// Columns of a pet that follow from what the client sets, each after a prefix: the fields of [`PetRow`].
macro_rules! client_columns {
    ($prefix:literal) => {
        concat!(
            $prefix,
            "status, ",
            $prefix,
            "name, ",
            $prefix,
            "category, ",
            $prefix,
            "photo_urls, ",
            $prefix,
            "tags, ",
            $prefix,
            "folded_name"
        )
    };
}

/// Columns from which a [`Pet`] is decoded.
macro_rules! pet_columns {
    () => {
        "id, version, status, name, category, photo_urls, tags"
    };
}

/// Columns of an order of `$table`, with the name of its caller if the condition holds.
macro_rules! order_columns {
    ($table:literal, $has_caller:literal) => {
        concat!(
            "id, pet_id, quantity, ship_date, ",
            $table,
            ".status, complete, created_at,
            (select name from callers where callers.id = owner and ",
            $has_caller,
            ") as caller"
        )
    };
}

pub(super) use {client_columns, order_columns, pet_columns};

/// Row of a pet, in the JSON that `jsonb_populate_recordset` reads: one parameter for the rows of a batch.
#[derive(Serialize)]
pub(super) struct PetRow<'a> {
    pub id: Option<i64>,
    pub status: pet::Status,
    pub name: &'a PetName,
    pub category: Option<&'a Category>,
    pub photo_urls: &'a [PhotoUrl],
    pub tags: &'a [Tag],
    pub folded_name: String,
}

impl<'a> PetRow<'a> {
    /// Creates the row of a pet. Without an identifier, the statement assigns one.
    pub fn new(id: Option<PetId>, pet: &'a PetDetails) -> Self {
        Self {
            id: id.map(PetId::get),
            status: pet.status,
            name: &pet.name,
            category: pet.category.as_ref(),
            photo_urls: &pet.photo_urls,
            tags: &pet.tags,
            folded_name: pet::fold_name(pet.name.as_str()),
        }
    }
}

/// Decodes without a type check, since the migrations determine the types. Statements with many pets decode them row by row:
/// collecting the rows first would copy every pet.
impl FromRow<'_, PgRow> for Pet {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        let id: i64 = row.try_get_unchecked("id")?;
        let corrupt = |field: &str| sqlx::Error::Decode(format!("pets.{field} of pet {id}").into());
        let status: &str = row.try_get_unchecked("status")?;
        let photo_urls: Vec<String> = row.try_get_unchecked("photo_urls")?;
        Ok(Self {
            id: PetId::new(id).map_err(|_| corrupt("id"))?,
            version: Version(row.try_get_unchecked("version")?),
            details: PetDetails {
                name: PetName::from_stored(row.try_get_unchecked("name")?),
                category: jsonb(row, "category")?,
                photo_urls: photo_urls.into_iter().map(PhotoUrl::from_stored).collect(),
                tags: jsonb(row, "tags")?.unwrap_or_default(),
                status: status.parse().map_err(|_| corrupt("status"))?,
            },
        })
    }
}

/// Decodes a `jsonb` value: a format number, then text. UTF-8 is validated once for the text, not for each string.
fn jsonb<'r, T: Deserialize<'r>>(row: &'r PgRow, column: &str) -> Result<Option<T>, sqlx::Error> {
    let value = row.try_get_raw(column)?;
    if value.is_null() {
        return Ok(None);
    }
    parse_jsonb(&value).map(Some).map_err(sqlx::Error::Decode)
}

fn parse_jsonb<'r, T: Deserialize<'r>>(value: &PgValueRef<'r>) -> Result<T, BoxDynError> {
    const FORMAT: u8 = 1;
    let json = value.as_bytes()?;
    let json = json.strip_prefix(&[FORMAT]).ok_or("unknown jsonb format")?;
    Ok(serde_json::from_str(str::from_utf8(json)?)?)
}

/// Implements decoding: for each domain type, the type of its columns, and the conversion of a stored value.
macro_rules! decode {
    ($($domain:ty, $column:ty, $convert:expr;)*) => {$(
        impl Type<Postgres> for $domain {
            fn type_info() -> PgTypeInfo {
                <$column as Type<Postgres>>::type_info()
            }
        }

        impl Decode<'_, Postgres> for $domain {
            fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
                let convert: fn(&$column) -> Result<Self, Invalid> = $convert;
                let stored = <$column as Decode<'_, Postgres>>::decode(value)?;
                convert(&stored).map_err(|reason| format!("{stored:?} {reason}").into())
            }
        }
    )*};
}

decode! {
    CallerId, i64, |id| Ok(Self(*id));
    CallerName, String, |name| Ok(Self::from_stored(name.clone()));
    CredentialId, i64, |id| Self::new(*id);
    ImageId, [u8; 16], |bytes| Ok(Self(*bytes));
    ImageType, String, |name| name.parse();
    OrderId, i64, |id| Self::new(*id);
    PetId, i64, |id| Self::new(*id);
    Position, i64, |position| Ok(Self(*position));
    Plan, String, |name| name.parse();
    Quantity, i32, |quantity| Self::new((*quantity).into());
    // Unknown scopes are ignored.
    Scopes, Vec<String>, |names| Ok(names.iter().filter_map(|name| name.parse::<Scope>().ok()).collect());
    ShipDate, DateTime<Utc>, |instant| Ok(Self::nearest(*instant));
    Text, String, |text| Ok(Self::from_stored(text.clone()));
    UserId, i64, |id| Ok(Self(*id));
    Username, String, |name| Ok(Self::from_stored(name.clone()));
    Version, i64, |version| Ok(Self(*version));
    WebhookId, i64, |id| Self::new(*id);
    WebhookSecret, [u8; 32], |key| Ok(Self(*key));
    order::Status, String, |name| name.parse();
    pet::Status, String, |name| name.parse();
}

/// Reads the effective scopes of a credential: `own_scopes`, if it has any, limited to the `scopes` of its caller.
impl FromRow<'_, PgRow> for Scopes {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        let granted: Self = row.try_get("scopes")?;
        let own: Option<Self> = row.try_get("own_scopes")?;
        Ok(own.map_or(granted, |own| granted.intersection(own)))
    }
}

/// Returns the names of scopes, as stored in a text array.
pub(super) fn scope_names(scopes: Scopes) -> Vec<&'static str> {
    scopes.iter().map(Scope::as_str).collect()
}

impl FromRow<'_, PgRow> for Receiver {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.try_get("id")?,
            url: row.try_get("url")?,
            secret: row.try_get("secret")?,
            old_secret: row.try_get("old_secret")?,
        })
    }
}
