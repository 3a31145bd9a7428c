//! Store orders, and their effect on the status of the pet.
//!
//! An order is *open* until it is delivered or complete. An open order *holds* its pet. At most one order holds a pet,
//! so that two callers cannot both order it. Transitions:
//!
//! ```text
//!              open order        delivered or complete order
//! available ───────────────▶ pending ──────────────────────▶ sold
//!     ▲                         │
//!     └── its order is deleted ─┘
//! available ── placed as delivered or complete ──▶ sold
//! ```
//!
//! - An order moves forward only: from placed to approved to delivered, and to complete. It may skip a state.
//! - Only an available pet that no order holds can be ordered. A pet that is pending without an order was reserved by
//!   hand, and is made available by hand.
//! - A pet that an order holds cannot be made available by hand ([`pet::Change::apply`]). It can be set to sold; its
//!   order stays open.
//! - Deleting the order that holds a pet releases it: pending becomes available; sold was set by hand and stays.
//!   Deleting an order that is not open changes no pet.
//! - Deleting a pet keeps its orders, which then hold no pet, not even a new one with the same identifier. Those that are open can be
//!   completed or deleted.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::{
    Invalid,
    caller::CallerName,
    change::{Values, changed},
    check_text,
    clock::serialize_time,
    id::{OrderId, PetId},
    pet,
    user::Username,
};

/// Status of an order.
// Later ones are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, ToSchema)]
#[schema(as = OrderStatus, rename_all = "lowercase", example = "placed")]
pub enum Status {
    /// Created; the default.
    #[default]
    Placed,
    /// Accepted by the shop.
    Approved,
    /// Delivered to the customer.
    Delivered,
}

impl_names!(
    Status,
    Placed = "placed",
    Approved = "approved",
    Delivered = "delivered",
);

/// Quantity of an order: 1…2^31−1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Quantity(i32);

impl Quantity {
    /// Validates a number.
    pub fn new(quantity: i64) -> Result<Self, Invalid> {
        match i32::try_from(quantity) {
            Ok(quantity @ 1..) => Ok(Self(quantity)),
            _ => Err(Invalid::because("must be an integer from 1 to 2147483647")),
        }
    }

    /// Returns the number.
    pub const fn get(self) -> i32 {
        self.0
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Self(1)
    }
}

/// Instant at which an order is to be shipped, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShipDate(DateTime<Utc>);

impl ShipDate {
    /// Microseconds from 1970 of the years 1 to 9999: RFC 3339 has four digits, and PostgreSQL no year 0.
    const RANGE: RangeInclusive<i64> = -62_135_596_800_000_000..=253_402_300_799_999_999;

    /// Cuts an instant to microseconds. Fails outside the years 1 to 9999.
    pub fn new(instant: DateTime<Utc>) -> Result<Self, Invalid> {
        let micros = instant.timestamp_micros();
        if Self::RANGE.contains(&micros) {
            Ok(Self::nearest(instant))
        } else {
            Err(NOT_RFC_3339)
        }
    }

    /// Returns the nearest date to a stored instant: builds before 0.1.0 rounded the end of the year 9999 up, and stored the
    /// year 0.
    pub fn nearest(instant: DateTime<Utc>) -> Self {
        let (start, end) = Self::RANGE.into_inner();
        let micros = instant.timestamp_micros().clamp(start, end);
        Self(DateTime::from_timestamp_micros(micros).unwrap_or_default())
    }

    /// Returns the instant.
    pub const fn get(self) -> DateTime<Utc> {
        self.0
    }
}

/// Maximum number of characters of a date.
pub const MAX_DATE: usize = 64;
const NOT_RFC_3339: Invalid =
    Invalid::because("must be a date and time of RFC 3339, as in 2026-01-31T12:00:00Z");

/// RFC 3339, in UTC.
impl fmt::Display for ShipDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.to_rfc3339_opts(SecondsFormat::AutoSi, true))
    }
}

impl Serialize for ShipDate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for ShipDate {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        // RFC 3339 does not limit the number of fractional digits.
        check_text(text, MAX_DATE)?;
        let parse = DateTime::parse_from_rfc3339;
        // ISO 8601 also has times without seconds, and offsets without a colon, as in +0000, which some clients send.
        let text = match text.split_at_checked("2026-01-31T12:00".len()) {
            Some((minutes, offset)) if offset.starts_with(['Z', 'z', '+', '-']) => {
                format!("{minutes}:00{offset}")
            }
            _ => text.to_owned(),
        };
        let instant = parse(&text).or_else(|error| {
            let minutes = text.len().saturating_sub(2);
            let (rest, minutes) = text.split_at_checked(minutes).ok_or(error)?;
            parse(&format!("{rest}:{minutes}"))
        });
        Self::new(instant.map_err(|_| NOT_RFC_3339)?.to_utc())
    }
}

/// Fields of an order, without its identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrderDetails {
    /// Identifier of the pet, which may have been deleted since.
    #[schema(value_type = i64, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub pet_id: PetId,
    /// Number of pets.
    #[schema(value_type = i32, minimum = 1, maximum = 2_147_483_647)]
    pub quantity: Quantity,
    /// Shipping date, in UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, format = "date-time", max_length = 64)]
    pub ship_date: Option<ShipDate>,
    /// Status of the order.
    pub status: Status,
    /// True if nothing is left to do.
    pub complete: bool,
}

impl OrderDetails {
    /// Returns true if the order is neither complete nor delivered, and so can hold its pet.
    pub fn is_open(&self) -> bool {
        !self.complete && self.status != Status::Delivered
    }

    /// Returns true if the order is in the first state. Only administrators may place it in another one.
    pub fn is_in_first_state(&self) -> bool {
        !self.complete && self.status == Status::Placed
    }
}

/// What is recorded of a new or changed order: its pet, and `[old, new]` of the fields that differ.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OrderValues {
    pet: PetId,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Values<Status>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    complete: Option<Values<bool>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ship_date: Option<Values<ShipDate>>,
}

impl OrderValues {
    /// Compares an order before a change, `None` if it is new, and after it.
    pub fn new(old: Option<&OrderDetails>, new: &OrderDetails) -> Self {
        Self {
            pet: new.pet_id,
            status: changed(old.map(|old| old.status), Some(new.status)),
            complete: changed(old.map(|old| old.complete), Some(new.complete)),
            ship_date: changed(old.and_then(|old| old.ship_date), new.ship_date),
        }
    }
}

/// Changes to some fields of an order, with the result of a JSON Merge Patch (RFC 7396). `None` leaves a field as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct OrderPatch {
    /// New status.
    pub status: Option<Status>,
    /// New value of `complete`.
    pub complete: Option<bool>,
    /// New ship date; `Some(None)` removes it.
    pub ship_date: Option<Option<ShipDate>>,
}

/// Reason why an order cannot be changed; the text follows its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PatchRefusal {
    /// The order would move backward.
    #[error("cannot move backward: it moves from placed to approved to delivered, and to complete")]
    MovesBackward,
    /// An open order without its pet would be approved or delivered.
    #[error(
        "is for a pet that is deleted: it cannot be approved or delivered, but completed or deleted"
    )]
    PetDeleted,
}

impl OrderPatch {
    /// Returns all fields of `current`, with the patch applied. An open order holds its pet, unless that was deleted.
    pub fn apply(
        self,
        current: OrderDetails,
        holds_pet: bool,
    ) -> Result<OrderDetails, PatchRefusal> {
        let patched = OrderDetails {
            status: self.status.unwrap_or(current.status),
            complete: self.complete.unwrap_or(current.complete),
            ship_date: self.ship_date.unwrap_or(current.ship_date),
            ..current
        };
        if patched.status < current.status || (current.complete && !patched.complete) {
            return Err(PatchRefusal::MovesBackward);
        }
        if current.is_open() && !holds_pet && patched.status != current.status {
            return Err(PatchRefusal::PetDeleted);
        }
        Ok(patched)
    }
}

/// Order to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewOrder {
    /// Identifier chosen by the client; `None` if the server assigns one.
    pub id: Option<OrderId>,
    /// Other fields.
    pub details: OrderDetails,
}

/// An order for a pet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "id": 1,
    "petId": 1,
    "quantity": 1,
    "shipDate": "2026-01-31T12:00:00Z",
    "status": "placed",
    "complete": false,
    "createdAt": "2026-01-24T12:00:00Z",
    "caller": "user:7",
    "username": "ada"
}))]
pub struct Order {
    /// Identifier.
    #[schema(value_type = i64, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub id: OrderId,
    /// Other fields.
    #[serde(flatten)]
    pub details: OrderDetails,
    /// Time at which it was placed.
    #[serde(serialize_with = "serialize_time")]
    #[schema(value_type = String, read_only, format = "date-time", max_length = 64)]
    pub created_at: DateTime<Utc>,
    /// Name of the caller that placed it, for callers with the scope `admin`. Absent if that caller was anonymous or is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, read_only, min_length = 1, max_length = 128, pattern = r"^[^\x00]*$")]
    pub caller: Option<CallerName>,
    /// Username of the account that placed it, for callers with the scope `admin`. Absent if no user did, or the account is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, read_only, min_length = 1, max_length = 64, pattern = r"^[^\x00]*$")]
    pub username: Option<Username>,
}

/// Reason why a pet cannot be ordered; the text follows its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The pet is sold.
    #[error("is sold")]
    Sold,
    /// The pet is pending without an order that holds it.
    #[error("is pending")]
    Pending,
    /// An open order holds the pet.
    #[error("has an open order")]
    Held,
}

/// State of a pet that decides if it can be ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Status of the pet.
    pub status: pet::Status,
    /// True if an open order holds the pet.
    pub held: bool,
}

impl Standing {
    /// State after the pet's order is delivered or complete.
    pub const SOLD: Self = Self {
        status: pet::Status::Sold,
        held: false,
    };

    /// Returns the state after an order for the pet.
    pub fn ordered(self, order: &OrderDetails) -> Result<Self, Refusal> {
        match (self.status, self.held) {
            (pet::Status::Sold, _) => Err(Refusal::Sold),
            (_, true) => Err(Refusal::Held),
            (pet::Status::Pending, false) => Err(Refusal::Pending),
            (pet::Status::Available, false) if order.is_open() => Ok(Self {
                status: pet::Status::Pending,
                held: true,
            }),
            (pet::Status::Available, false) => Ok(Self::SOLD),
        }
    }

    /// Returns the state after the order that holds the pet is deleted.
    pub const fn released(self) -> Self {
        Self {
            status: match self.status {
                pet::Status::Pending => pet::Status::Available,
                by_hand @ (pet::Status::Available | pet::Status::Sold) => by_hand,
            },
            held: false,
        }
    }
}
