//! Statements on the row of one pet, within a transaction or on their own.

use crate::{
    db::{codec::PetColumns, connect::Connection, deadline::with_timeout, error::Error},
    domain::{
        id::PetId,
        pet::{Pet, PetDetails, Version},
    },
};

/// Versions of a pet that a change may be made to; `None` for any version.
pub type ExpectedVersions<'a> = Option<&'a [Version]>;

/// Returns the pet and locks its row until the transaction ends, so that no other change comes between.
pub async fn find_for_update(
    transaction: &mut Connection,
    id: PetId,
) -> Result<Option<Pet>, Error> {
    let query = sqlx::query_as(
        "select id, version, status, name, category, photo_urls, tags from pets where id = $1
         for update",
    );
    with_timeout(query.bind(id.get()).fetch_optional(transaction)).await
}

/// Returns true if the pet exists.
pub async fn exists(connection: &mut Connection, id: PetId) -> Result<bool, Error> {
    let query = sqlx::query_scalar("select exists (select from pets where id = $1)");
    with_timeout(query.bind(id.get()).fetch_one(connection)).await
}

/// Returns those pets that an open order holds. The transaction must have locked the rows of `pets`, so that no order is
/// placed meanwhile; the statement is one of its own, and so sees the orders that were committed before the lock.
pub(super) async fn held(
    transaction: &mut Connection,
    pets: &[PetId],
) -> Result<Vec<PetId>, Error> {
    let pets: Vec<i64> = pets.iter().map(|id| id.get()).collect();
    let query = sqlx::query_scalar("select held_pet from orders where held_pet = any ($1)");
    with_timeout(query.bind(pets).fetch_all(transaction)).await
}

/// Replaces a pet. Returns `None` if there is no such pet.
pub async fn replace(
    connection: &mut Connection,
    id: PetId,
    details: PetDetails,
) -> Result<Option<Pet>, Error> {
    replace_if(connection, id, details, None, true).await
}

/// Replaces a pet if it has an expected version and, unless `in_any_status`, is available. Returns `None` otherwise.
pub(super) async fn replace_if(
    connection: &mut Connection,
    id: PetId,
    details: PetDetails,
    expected: ExpectedVersions<'_>,
    in_any_status: bool,
) -> Result<Option<Pet>, Error> {
    let columns = PetColumns::from(&details);
    let query = sqlx::query_scalar(
        "update pets
         set version = nextval('pet_versions'),
             status = $2, name = $3, category = $4, photo_urls = $5, tags = $6
         where id = $1 and ($7::bigint[] is null or version = any ($7))
           and ($8 or status = 'available')
         returning version",
    )
    .bind(id.get())
    .bind(columns.status)
    .bind(columns.name)
    .bind(columns.category)
    .bind(columns.photo_urls)
    .bind(columns.tags)
    .bind(version_column(expected))
    .bind(in_any_status);
    let version = with_timeout(query.fetch_optional(connection)).await?;
    Ok(version.map(|version| Pet {
        id,
        version,
        details,
    }))
}

/// Deletes a pet. Returns false if there is no such pet with an expected version.
pub(super) async fn delete(
    connection: &mut Connection,
    id: PetId,
    expected: ExpectedVersions<'_>,
) -> Result<bool, Error> {
    let query = sqlx::query(
        "delete from pets where id = $1 and ($2::bigint[] is null or version = any ($2))",
    );
    let query = query.bind(id.get()).bind(version_column(expected));
    let deleted = with_timeout(query.execute(connection)).await?;
    Ok(deleted.rows_affected() == 1)
}

fn version_column(expected: ExpectedVersions<'_>) -> Option<Vec<i64>> {
    expected.map(|versions| versions.iter().map(|version| version.0).collect())
}
