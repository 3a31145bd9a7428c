//! Converts between rows and domain values.

use chrono::{DateTime, Utc};
use sqlx::{
    Decode, FromRow, Postgres, Row as _, Type,
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
    pet::{self, PetDetails, StoredPet, Version},
    plan::Plan,
    user::{UserId, Username},
    webhook::{Receiver, WebhookSecret},
};

/// SHA-256 of a secret. The secret itself is never stored.
pub type SecretHash = [u8; 32];

/// Columns from which a [`StoredPet`] or its [`PetDetails`] are decoded by position: the first ones of a row, in this order.
macro_rules! pet_columns {
    () => {
        "id, version, status, details"
    };
}

/// Columns of an order of `$table`, with the name of its caller and the username of its account if the condition holds.
macro_rules! order_columns {
    ($table:literal, $has_caller:literal) => {
        concat!(
            "id, pet_id, quantity, ship_date, ",
            $table,
            ".status, complete, created_at,
            (select name from callers where callers.id = owner and ",
            $has_caller,
            ") as caller,
            (select username from users where caller_id = owner and ",
            $has_caller,
            ") as username"
        )
    };
}

pub(super) use {order_columns, pet_columns};

/// Rows of pets, as an array for each column: the parameters of a statement.
#[derive(Debug, Default)]
pub(super) struct PetRows {
    /// `None` where the statement assigns the identifier.
    pub ids: Vec<Option<i64>>,
    pub statuses: Vec<&'static str>,
    /// JSON.
    pub details: Vec<String>,
    pub folded_names: Vec<String>,
}

impl PetRows {
    /// Adds the row of a pet.
    pub fn push(&mut self, id: Option<PetId>, pet: &PetDetails) {
        self.ids.push(id.map(PetId::get));
        self.statuses.push(pet.status.as_str());
        self.details.push(pet.to_json());
        self.folded_names.push(pet::fold_name(pet.name.as_str()));
    }
}

/// Decodes without a type check, since the migrations determine the types. Statements with many pets decode them row by row:
/// collecting the rows first would copy every pet.
impl FromRow<'_, PgRow> for StoredPet {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        let (id, version, status, details) = pet_of(row)?;
        Ok(Self::new(id, version, status, details))
    }
}

/// Returns the values of [`pet_columns`]: identifier, version, status and details.
pub(super) fn pet_of(row: &PgRow) -> Result<(PetId, Version, pet::Status, &[u8]), sqlx::Error> {
    let id: i64 = row.try_get_unchecked(0)?;
    let corrupt = |field: &str| sqlx::Error::Decode(format!("pets.{field} of pet {id}").into());
    let status: &str = row.try_get_unchecked(2)?;
    Ok((
        PetId::new(id).map_err(|_| corrupt("id"))?,
        Version(row.try_get_unchecked(1)?),
        status.parse().map_err(|_| corrupt("status"))?,
        row.try_get_raw(3)?
            .as_bytes()
            .map_err(|_| corrupt("details"))?,
    ))
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
