//! JSON representation of orders and of the inventory.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::{
    api::{
        error::Error,
        fields::{Field, FieldType, Member, Violations, present},
    },
    domain::{
        id::{OrderId, PetId},
        order::{NewOrder, OrderDetails, OrderPatch, Quantity, Status},
    },
};

/// Order to place. Unknown fields are ignored.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OrderInput, example = json!({"petId": 1, "quantity": 1, "shipDate": "2026-01-31T12:00:00Z"}))]
pub struct NewOrderBody {
    /// Identifier; if absent or 0, the server assigns one.
    #[schema(value_type = i64, required = false, nullable, minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    id: Field<i64>,
    /// Identifier of the pet, which must be for sale.
    #[schema(value_type = i64, required = true, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pet_id: Field<i64>,
    /// Number of pets; 1 if absent.
    #[schema(value_type = i32, required = false, nullable, minimum = 1, maximum = 2_147_483_647)]
    quantity: Field<i64>,
    /// Shipping date (RFC 3339; the seconds may be absent), stored to the microsecond and returned in UTC.
    #[schema(value_type = String, required = false, nullable, format = "date-time", max_length = 64)]
    ship_date: Field<String>,
    /// Status of the order; `placed` if absent. Only administrators may set it to another one.
    #[schema(value_type = Status, required = false, nullable)]
    status: Field<String>,
    /// True if nothing is left to do; false if absent. Only administrators may set it.
    #[schema(value_type = bool, required = false, nullable)]
    complete: Field<bool>,
}

impl FieldType for NewOrderBody {}

impl NewOrderBody {
    /// Checks the order.
    pub fn into_new_order(self) -> Result<NewOrder, Error> {
        let mut violations = Violations::default();
        // Petstore clients send 0 for no identifier.
        let id = match self.id {
            Field::Value(0) => None,
            id => violations.optional("id", id, OrderId::new),
        };
        let pet_id = violations.required("petId", self.pet_id, PetId::new);
        let quantity = violations.optional("quantity", self.quantity, Quantity::new);
        let ship_date = violations.optional("shipDate", self.ship_date, |date| date.parse());
        let status = violations.optional("status", self.status, |status| status.parse());
        let complete = violations.optional("complete", self.complete, Ok);
        violations.finish(pet_id.map(|pet_id| NewOrder {
            id,
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
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, format = "date-time", max_length = 64)]
    ship_date: Member<String>,
    /// Status of the order, which moves forward only.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<Status>)]
    status: Member<String>,
    /// True if nothing is left to do. It stays true.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<bool>)]
    complete: Member<bool>,
}

impl FieldType for PatchBody {}

impl PatchBody {
    /// Checks the body of `PATCH /store/order/{orderId}`.
    pub fn into_patch(self) -> Result<OrderPatch, Error> {
        let mut violations = Violations::default();
        let ship_date = self
            .ship_date
            .map(|date| violations.optional("shipDate", date, |date| date.parse()));
        let status = self.status.map(|status| {
            let status = violations.optional("status", status, |status| status.parse());
            status.unwrap_or_default()
        });
        let complete = self.complete.map(|complete| {
            let complete = violations.optional("complete", complete, Ok);
            complete.unwrap_or_default()
        });
        violations.finish(Some(OrderPatch {
            status,
            complete,
            ship_date,
        }))
    }
}
