//! JSON representation of orders and of the inventory.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::{
    api::{
        error::Error,
        fields::{ChosenId, Field, Object, Violations},
    },
    domain::{
        id::{OrderId, PetId},
        order::{NewOrder, OrderDetails, OrderPatch, Quantity, ShipDate, Status},
    },
};

/// Order to place. Unknown fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OrderInput, example = json!({"petId": 1, "quantity": 1, "shipDate": "2026-01-31T12:00:00Z"}))]
pub struct NewOrderBody {
    /// Identifier; if absent or 0, the server assigns one.
    #[schema(value_type = i64, required = false, nullable, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    id: Field<ChosenId<OrderId>>,
    /// Identifier of the pet, which must be for sale.
    #[schema(value_type = i64, required = true, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pet_id: Field<PetId>,
    /// Number of pets; 1 if absent.
    #[schema(value_type = i32, required = false, nullable, minimum = 1, maximum = 2_147_483_647)]
    quantity: Field<Quantity>,
    /// Shipping date (RFC 3339; the seconds may be absent), stored to the microsecond and returned in UTC.
    #[schema(value_type = String, required = false, nullable, format = "date-time", max_length = 64)]
    ship_date: Field<ShipDate>,
    /// Status of the order; `placed` if absent. Only administrators may set it to another one.
    #[schema(value_type = Status, required = false, nullable)]
    status: Field<Status>,
    /// True if nothing is left to do; false if absent. Only administrators may set it.
    #[schema(value_type = bool, required = false, nullable)]
    complete: Field<bool>,
}

impl Object for NewOrderBody {}

impl NewOrderBody {
    /// Checks the order.
    pub fn into_new_order(self) -> Result<NewOrder, Error> {
        let mut violations = Violations::default();
        let id = violations.optional("id", self.id);
        let pet_id = violations.required("petId", self.pet_id);
        let quantity = violations.optional("quantity", self.quantity);
        let ship_date = violations.optional("shipDate", self.ship_date);
        let status = violations.optional("status", self.status);
        let complete = violations.optional("complete", self.complete);
        violations.finish(pet_id.map(|pet_id| NewOrder {
            id: id.and_then(|ChosenId(id)| id),
            details: OrderDetails {
                pet_id,
                quantity: quantity.unwrap_or_default(),
                ship_date,
                status: status.unwrap_or_default(),
                complete: complete.unwrap_or_default(),
            },
        }))
    }
}

/// Changes to an order, as a JSON Merge Patch: `null` removes the date, and sets other fields to their defaults. Other
/// fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OrderPatch, example = json!({"status": "delivered"}))]
pub struct PatchBody {
    /// Shipping date (RFC 3339; the seconds may be absent), stored to the microsecond and returned in UTC.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = "date-time", max_length = 64)]
    ship_date: Field<ShipDate>,
    /// Status of the order, which moves forward only.
    #[serde(default)]
    #[schema(value_type = Option<Status>)]
    status: Field<Status>,
    /// True if nothing is left to do. It stays true.
    #[serde(default)]
    #[schema(value_type = Option<bool>)]
    complete: Field<bool>,
}

impl Object for PatchBody {}

impl PatchBody {
    /// Checks the body of `PATCH /store/order/{orderId}`.
    pub fn into_patch(self) -> Result<OrderPatch, Error> {
        let mut violations = Violations::default();
        let ship_date = violations.removable("shipDate", self.ship_date);
        let status = violations.removable("status", self.status);
        let complete = violations.removable("complete", self.complete);
        violations.finish(Some(OrderPatch {
            status: status.map(Option::unwrap_or_default),
            complete: complete.map(Option::unwrap_or_default),
            ship_date,
        }))
    }
}
