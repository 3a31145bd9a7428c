//! Store orders, and what they do to the pet that they are for.
//!
//! An order is *open* until it is delivered or complete. An open order *holds* its pet: at most one order
//! holds a pet, whatever anybody writes in the pet's status meanwhile, so that two callers never both get
//! the last one. The whole machine:
//!
//! ```text
//!              open order                 (by hand)
//! available ───────────────▶ pending ──────────────────▶ anything
//!     ▲                         │
//!     └── its order is deleted ─┘
//! available ── delivered or complete order ──▶ sold
//! ```
//!
//! - Only an available pet that no order holds can be ordered. One that is pending without an order was put
//!   aside by hand, and whoever did so makes it available again.
//! - The status that is written by hand stands: the operator knows the shop. It takes no order away and adds
//!   none; a pet that an order holds is not for sale although it says available.
//! - Deleting the order that holds a pet gives it back: pending becomes available. What was sold, or made
//!   available, by hand stays so. Deleting an order that is not open changes no pet.
//! - Deleting a pet leaves its orders as they are, but holding nothing: also not another pet that comes under
//!   the same identifier.

use std::{fmt, str::FromStr};

use chrono::{DateTime, Datelike, SecondsFormat, Utc};

use super::{
    Invalid, check_text,
    id::{OrderId, PetId},
    pet,
};

/// How far an order has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Status {
    /// Made; what an order is unless it says otherwise.
    #[default]
    Placed,
    /// Accepted by the shop.
    Approved,
    /// The pet is at its new home.
    Delivered,
}

impl Status {
    /// Every status.
    pub const ALL: [Self; 3] = [Self::Placed, Self::Approved, Self::Delivered];

    /// The status as JSON and the database have it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Placed => "placed",
            Self::Approved => "approved",
            Self::Delivered => "delivered",
        }
    }
}

impl FromStr for Status {
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        Self::ALL
            .into_iter()
            .find(|status| status.as_str() == name)
            .ok_or(Invalid::because("must be placed, approved or delivered"))
    }
}

/// How many are ordered: 1…2^31−1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantity(i32);

impl Quantity {
    /// Checks the bounds.
    ///
    /// # Errors
    /// [`Invalid`] outside of them.
    pub fn new(quantity: i64) -> Result<Self, Invalid> {
        i32::try_from(quantity)
            .ok()
            .filter(|quantity| *quantity >= 1)
            .map(Self)
            .ok_or(Invalid::because("must be an integer from 1 to 2147483647"))
    }

    /// The plain number.
    #[must_use]
    pub const fn get(self) -> i32 {
        self.0
    }
}

impl Default for Quantity {
    fn default() -> Self {
        Self(1)
    }
}

/// When an order is to be shipped: an instant, to the microsecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShipDate(DateTime<Utc>);

impl ShipDate {
    /// An instant; what is finer than a microsecond is cut off.
    ///
    /// # Errors
    /// [`Invalid`] outside the years 0 to 9999, which are all that RFC 3339 can write.
    pub fn new(instant: DateTime<Utc>) -> Result<Self, Invalid> {
        DateTime::from_timestamp_micros(instant.timestamp_micros())
            .filter(|instant| (0..=9999).contains(&instant.year()))
            .map(Self)
            .ok_or(NOT_RFC_3339)
    }

    /// The instant.
    #[must_use]
    pub const fn get(self) -> DateTime<Utc> {
        self.0
    }
}

/// How many characters a date has at most.
pub const MAX_DATE: usize = 64;
const NOT_RFC_3339: Invalid =
    Invalid::because("must be a date and time of RFC 3339, as in 2026-01-31T12:00:00Z");

/// RFC 3339, in UTC.
impl fmt::Display for ShipDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.to_rfc3339_opts(SecondsFormat::AutoSi, true))
    }
}

impl FromStr for ShipDate {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        // RFC 3339 puts no end to the digits of a second.
        check_text(text, MAX_DATE)?;
        let instant = DateTime::parse_from_rfc3339(text).map_err(|_| NOT_RFC_3339)?;
        Self::new(instant.to_utc())
    }
}

/// All that a client says of an order, but its identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderDetails {
    /// The pet.
    pub pet_id: PetId,
    /// How many.
    pub quantity: Quantity,
    /// When it is to be shipped.
    pub ship_date: Option<ShipDate>,
    /// How far it has come.
    pub status: Status,
    /// Whether nothing is left to do.
    pub complete: bool,
}

impl OrderDetails {
    /// Whether something is left to do, so that the pet is still in the shop.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.complete && self.status != Status::Delivered
    }
}

/// An order that a client asks for: without an identifier the server gives one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewOrder {
    /// The identifier that the client chose, if it did.
    pub id: Option<OrderId>,
    /// The rest.
    pub details: OrderDetails,
}

/// An order as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// Identifier.
    pub id: OrderId,
    /// The rest.
    pub details: OrderDetails,
}

/// Why a pet cannot be ordered, in words that go after its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is gone.
    #[error("is sold")]
    Sold,
    /// It is put aside.
    #[error("is pending")]
    Pending,
    /// Another open order holds it, whatever its status says.
    #[error("is ordered already")]
    Held,
}

/// How a pet stands towards orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Its status.
    pub status: pet::Status,
    /// Whether an open order holds it.
    pub held: bool,
}

impl Standing {
    /// The same pet, after such an order.
    ///
    /// # Errors
    /// [`Refusal`] when it is not for sale.
    pub fn ordered(self, order: &OrderDetails) -> Result<Self, Refusal> {
        match self {
            Self {
                status: pet::Status::Sold,
                ..
            } => Err(Refusal::Sold),
            Self { held: true, .. } => Err(Refusal::Held),
            Self {
                status: pet::Status::Pending,
                ..
            } => Err(Refusal::Pending),
            Self {
                status: pet::Status::Available,
                ..
            } if order.is_open() => Ok(Self {
                status: pet::Status::Pending,
                held: true,
            }),
            Self { .. } => Ok(Self {
                status: pet::Status::Sold,
                held: false,
            }),
        }
    }

    /// The same pet, after the order that holds it is deleted.
    #[must_use]
    pub const fn given_back(self) -> Self {
        Self {
            status: match self.status {
                pet::Status::Pending => pet::Status::Available,
                by_hand @ (pet::Status::Available | pet::Status::Sold) => by_hand,
            },
            held: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, sample::select};

    use super::*;

    #[derive(Debug, Clone)]
    enum Event {
        Order(Status, bool),
        /// Of the orders that there are, counted round.
        Delete(usize),
        ByHand(pet::Status),
    }

    fn event() -> impl Strategy<Value = Event> {
        let status = select(Status::ALL.to_vec());
        prop_oneof![
            4 => (status, any::<bool>()).prop_map(|(status, complete)| Event::Order(status, complete)),
            3 => any::<usize>().prop_map(Event::Delete),
            2 => select(pet::Status::ALL.to_vec()).prop_map(Event::ByHand),
        ]
    }

    fn details(status: Status, complete: bool) -> OrderDetails {
        OrderDetails {
            pet_id: PetId::new(1).expect("an id"),
            quantity: Quantity::default(),
            ship_date: None,
            status,
            complete,
        }
    }

    proptest! {
        /// Whatever happens to a pet: one open order at most, nobody gets what is not for sale, and
        /// nothing but a deleted order or a hand makes it available.
        #[test]
        fn a_pet_goes_to_one_order_at_a_time(events in prop::collection::vec(event(), 0..60)) {
            let mut pet = Standing { status: pet::Status::Available, held: false };
            let mut orders: Vec<OrderDetails> = Vec::new();
            for event in events {
                let before = pet;
                match event {
                    Event::Order(status, complete) => {
                        let order = details(status, complete);
                        match before.ordered(&order) {
                            Ok(after) => {
                                prop_assert_eq!(before.status, pet::Status::Available);
                                prop_assert!(!orders.iter().any(OrderDetails::is_open));
                                prop_assert_eq!(after.held, order.is_open());
                                let gone = after.status == pet::Status::Sold;
                                prop_assert_eq!(gone, !order.is_open());
                                prop_assert_ne!(after.status, pet::Status::Available);
                                orders.push(order);
                                pet = after;
                            }
                            Err(_) => {
                                let for_sale = before.status == pet::Status::Available && !before.held;
                                prop_assert!(!for_sale, "a pet for sale is refused");
                            }
                        }
                    }
                    Event::Delete(which) if !orders.is_empty() => {
                        let order = orders.remove(which % orders.len());
                        if order.is_open() {
                            pet = before.given_back();
                            prop_assert_ne!(pet.status, pet::Status::Pending);
                            let sold = before.status == pet::Status::Sold;
                            prop_assert_eq!(pet.status == pet::Status::Sold, sold);
                        }
                    }
                    Event::Delete(_) => {}
                    Event::ByHand(status) => pet.status = status,
                }
                let open = orders.iter().filter(|order| order.is_open()).count();
                prop_assert_eq!(open, usize::from(pet.held));
            }
        }

        #[test]
        fn a_ship_date_is_the_same_instant(micros in -62_167_219_200_000_000_i64..253_402_300_800_000_000, hours in -14_i32..=14) {
            let instant = DateTime::from_timestamp_micros(micros).expect("an instant");
            let zone = chrono::FixedOffset::east_opt(hours * 3_600).expect("an offset");
            let text = instant.with_timezone(&zone).to_rfc3339();
            // Some offsets lead out of the four digits of a year.
            if let Ok(read) = text.parse::<ShipDate>() {
                prop_assert_eq!(read.get(), instant);
            } else {
                prop_assert!(text.starts_with(['+', '-']), "{}", text);
            }
        }
    }

    #[test]
    fn what_is_no_date_or_quantity_is_refused() {
        for bad in [
            "",
            "2026-01-31",
            "2026-01-31T12:00:00",
            "2026-02-30T12:00:00Z",
            "1",
            "now",
        ] {
            assert!(bad.parse::<ShipDate>().is_err(), "{bad}");
        }
        for bad in [0, -1, 1 << 31, i64::MIN, i64::MAX] {
            assert!(Quantity::new(bad).is_err(), "{bad}");
        }
        assert!(Quantity::new((1 << 31) - 1).is_ok());
    }
}
