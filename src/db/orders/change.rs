//! Moves an order forward, and sells its pet once the order is delivered or complete.

use crate::{
    db::{
        codec::order_columns,
        connect::Connection,
        deadline::with_timeout,
        error::Error,
        record::{self, Record},
    },
    domain::{
        caller::CallerId,
        change::{Action, Initiator, Kind},
        id::{OrderId, PetId},
        order::{Order, OrderPatch, OrderValues, PatchRefusal, ShipDate, Standing},
        pet::{self, Version},
    },
};

/// Outcome of a change.
#[derive(Debug)]
pub enum ChangeOutcome {
    /// The order was changed to this state.
    Changed(Order),
    /// There is no such order.
    NotFound,
    /// The order cannot be changed so.
    Refused(PatchRefusal),
}

/// Changes an order of any owner in a transaction.
pub async fn change_in(
    transaction: &mut Connection,
    id: OrderId,
    patch: OrderPatch,
    initiator: &Initiator,
) -> Result<ChangeOutcome, Error> {
    let query = sqlx::query_as(
        "select id, status from pets where id = (select held_pet from orders where id = $1) for update",
    );
    let query = query.bind(id.get()).fetch_optional(&mut *transaction);
    let pet: Option<(PetId, pet::Status)> = with_timeout(query).await?;
    // An order that holds another pet was placed since then: there was no order with its identifier in between.
    let query = sqlx::query_as(concat!(
        "select ",
        order_columns!("orders", "true"),
        " from orders where id = $1 and (held_pet is null or held_pet = $2) for update",
    ));
    let query = query.bind(id.get()).bind(pet.map(|(pet, _)| pet.get()));
    let order: Option<Order> = with_timeout(query.fetch_optional(&mut *transaction)).await?;
    let Some(order) = order else {
        return Ok(ChangeOutcome::NotFound);
    };
    let details = match patch.apply(order.details, pet.is_some()) {
        Ok(details) => details,
        Err(refusal) => return Ok(ChangeOutcome::Refused(refusal)),
    };
    if details == order.details {
        return Ok(ChangeOutcome::Changed(order));
    }
    let query = sqlx::query_scalar(
        "update orders
         set status = $2, complete = $3, ship_date = $4, held_pet = case when $5 then held_pet end
         where id = $1
         returning nullif(owner, 0)",
    )
    .bind(id.get())
    .bind(details.status.as_str())
    .bind(details.complete)
    .bind(details.ship_date.map(ShipDate::get))
    .bind(details.is_open());
    let owner: Option<CallerId> = with_timeout(query.fetch_one(&mut *transaction)).await?;
    let values = OrderValues::new(Some(&order.details), &details);
    let record = Record::new(Kind::Order, &id, Action::Changed, initiator);
    let mut records = vec![record.owned_by(owner).with_data(Some(values))];
    // If another request has closed the order since the first statement, the pet is no longer the order's.
    if let Some((pet, status)) = pet
        && order.details.is_open()
        && !details.is_open()
        && status != Standing::SOLD.status
    {
        let sold = Standing::SOLD.status;
        let query = sqlx::query_scalar(
            "update pets set version = nextval('pet_versions'), status = $2 where id = $1 returning version",
        );
        let query = query.bind(pet.get()).bind(sold.as_str());
        let version: Version = with_timeout(query.fetch_one(&mut *transaction)).await?;
        let record = Record::of_pet_status(pet, version, (status, sold), initiator);
        records.push(record);
    }
    record::write(transaction, &records).await?;
    Ok(ChangeOutcome::Changed(Order { details, ..order }))
}
