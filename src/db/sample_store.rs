//! Queries on sample pets and orders.

use super::{
    connect::Connection,
    deadline::with_timeout,
    error::Error,
    record::{self, Record},
};
use crate::domain::{
    caller::CallerId,
    change::{Action, Initiator, Kind},
    id::{OrderId, PetId},
};

/// Returns the numbers of the sample pets that exist.
pub async fn numbers(connection: &mut Connection) -> Result<Vec<i16>, Error> {
    let query = sqlx::query_scalar("select number from sample_pets");
    with_timeout(query.fetch_all(connection)).await
}

/// Returns true if there is no pet.
pub async fn is_empty(connection: &mut Connection) -> Result<bool, Error> {
    let query = sqlx::query_scalar("select not exists (select from pets)");
    with_timeout(query.fetch_one(connection)).await
}

/// Excludes other transactions that add or remove sample pets.
pub async fn lock(transaction: &mut Connection) -> Result<(), Error> {
    let query = sqlx::query("lock table sample_pets in share update exclusive mode");
    with_timeout(query.execute(transaction)).await.map(drop)
}

/// Records the number of a sample pet.
pub async fn insert_pet(
    transaction: &mut Connection,
    number: i16,
    pet: PetId,
) -> Result<(), Error> {
    let query = sqlx::query("insert into sample_pets (number, pet_id) values ($1, $2)");
    let query = query.bind(number).bind(pet.get());
    with_timeout(query.execute(transaction)).await.map(drop)
}

/// Records a sample order.
pub async fn insert_order(transaction: &mut Connection, order: OrderId) -> Result<(), Error> {
    let query = sqlx::query("insert into sample_orders (id) values ($1)").bind(order.get());
    with_timeout(query.execute(transaction)).await.map(drop)
}

/// Locks the sample pets that exist, and returns them in the order of their identifiers.
pub async fn lock_pets(transaction: &mut Connection) -> Result<Vec<PetId>, Error> {
    let query = sqlx::query_scalar(
        "select id from pets where id = any (array(select pet_id from sample_pets)) order by id for update",
    );
    with_timeout(query.fetch_all(transaction)).await
}

/// Deletes the open orders of locked pets, and the sample orders. Returns their number.
pub async fn delete_orders(
    transaction: &mut Connection,
    pets: &[PetId],
    initiator: &Initiator,
) -> Result<usize, Error> {
    let pets: Vec<i64> = pets.iter().map(|pet| pet.get()).collect();
    let query = sqlx::query_as(
        "delete from orders
         where id = any (array(select id from orders where held_pet = any ($1) union select id from sample_orders))
         returning id, owner, pet_id",
    );
    let query = query.bind(pets).fetch_all(&mut *transaction);
    let orders: Vec<(OrderId, i64, PetId)> = with_timeout(query).await?;
    let records = orders.iter().map(|(id, owner, pet)| {
        let owner = (*owner != 0).then_some(CallerId(*owner));
        let record = Record::new(Kind::Order, id, Action::Deleted, initiator);
        record.owned_by(owner).of_pet(*pet)
    });
    record::write(transaction, &records.collect::<Vec<_>>()).await?;
    Ok(orders.len())
}
