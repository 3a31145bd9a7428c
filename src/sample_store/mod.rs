//! Sample store: pets with pictures and a few orders, for people who try the service.
//!
//! Invariants:
//! - Each pet is added once, until it is deleted: its number is in the database.
//! - Removal deletes the pets that were added, with their images and open orders, and the orders that were added, even if they were
//!   changed; nothing else.

mod pets;

use sha2::{Digest, Sha256};

use self::pets::{HEIGHT, PETS, SamplePet, WIDTH};
use crate::{
    blob_store::{self, BlobStore},
    db::{
        self, Connection, Database,
        images::Content,
        orders::{Owner, Placement, PlacementOutcome},
        pets::{Addition, ChangeRequest},
    },
    domain::{
        change::Initiator,
        condition::Conditions,
        id::PetId,
        image::{Facts, ImageId, ImageType},
        order::{self, NewOrder, OrderDetails, Quantity},
        pet::{Change, NewPet, PhotoUrl},
    },
};

/// Picture in the image store, with the number of its pet.
pub type Picture = (i16, Content);

/// Numbers of pets and orders.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of pets.
    pub pets: usize,
    /// Number of orders.
    pub orders: usize,
}

/// Origin of the changes that add the sample store.
#[derive(Debug, Clone)]
pub struct Origin {
    /// URL of the API, which those of the pictures begin with.
    pub base: String,
    /// Owner of the orders.
    pub owner: Owner,
    /// Initiator of the changes.
    pub initiator: Initiator,
}

/// Stores the pictures of the pets that are missing. The sweep of orphaned blobs deletes those that no pet gets.
pub async fn store_pictures<E>(database: &Database, blobs: &BlobStore) -> Result<Vec<Picture>, E>
where
    E: From<db::Error> + From<blob_store::Error>,
{
    let present = database
        .run(async |connection| db::sample_store::numbers(connection).await)
        .await?;
    let mut pictures = Vec::new();
    for (number, pet) in (0..).zip(&PETS) {
        if present.contains(&number) {
            continue;
        }
        let mut upload = blobs.upload().await?;
        upload.write(pet.picture.into()).await?;
        let content = Content {
            sha256: Sha256::digest(pet.picture).into(),
            size: upload.size(),
            key: upload.finish().await?,
            facts: Facts {
                kind: ImageType::Png,
                width: WIDTH,
                height: HEIGHT,
            },
        };
        pictures.push((number, content));
    }
    let name = async { Ok::<_, E>(database.run(db::images::begin_sweep).await?.database) };
    blobs.mark(name).await?;
    Ok(pictures)
}

/// Adds the pets of `pictures` with their orders, in a transaction, except those that another one has added since.
pub async fn add(
    transaction: &mut Connection,
    pictures: &[Picture],
    origin: &Origin,
) -> Result<Counts, db::Error> {
    let mut added = Counts::default();
    db::sample_store::lock(transaction).await?;
    let present = db::sample_store::numbers(transaction).await?;
    for ((number, content), pet) in pictures.iter().filter_map(with_pet) {
        if present.contains(number) {
            continue;
        }
        let id = add_pet(transaction, pet, content, origin).await?;
        db::sample_store::insert_pet(transaction, *number, id).await?;
        added.pets += 1;
        if let Some(status) = pet.order {
            place_order(transaction, id, status, origin).await?;
            added.orders += 1;
        }
    }
    Ok(added)
}

fn with_pet(picture: &Picture) -> Option<(&Picture, &'static SamplePet)> {
    let pet = PETS.get(usize::try_from(picture.0).ok()?)?;
    Some((picture, pet))
}

async fn add_pet(
    transaction: &mut Connection,
    pet: &SamplePet,
    content: &Content,
    origin: &Origin,
) -> Result<PetId, db::Error> {
    let Origin {
        base, initiator, ..
    } = origin;
    let corrupt = |error: &dyn ToString| db::Error::Corrupt(error.to_string());
    let details = pet.details().map_err(|error| corrupt(&error))?;
    let addition = Addition {
        pet: NewPet { id: None, details },
        initiator: initiator.clone(),
    };
    let added = db::pets::insert(transaction, addition).await?;
    let id = added.ok_or_else(|| corrupt(&"a pet has no id"))?.id;
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| corrupt(&error))?;
    let image = ImageId(random);
    let url = format!("{base}/pet/{id}/images/{image}").parse::<PhotoUrl>();
    let url = url.map_err(|error| corrupt(&error))?;
    db::images::insert(transaction, id, image, content, initiator).await?;
    db::pets::replace_photo_urls(transaction, id, vec![url], initiator.clone()).await?;
    Ok(id)
}

async fn place_order(
    transaction: &mut Connection,
    pet: PetId,
    status: order::Status,
    origin: &Origin,
) -> Result<(), db::Error> {
    let details = OrderDetails {
        pet_id: pet,
        quantity: Quantity::default(),
        ship_date: None,
        status,
        complete: status == order::Status::Delivered,
    };
    let placement = Placement {
        owner: origin.owner,
        order: NewOrder { id: None, details },
        initiator: origin.initiator.clone(),
    };
    match db::orders::place_in(transaction, placement).await? {
        PlacementOutcome::Placed(order) => {
            db::sample_store::insert_order(transaction, order.id).await
        }
        refused => Err(db::Error::Corrupt(format!("a sample order: {refused:?}"))),
    }
}

/// Deletes the pets that are left, with their images and open orders, and the orders that were added, in a transaction.
pub async fn remove(
    transaction: &mut Connection,
    initiator: &Initiator,
) -> Result<Counts, db::Error> {
    db::sample_store::lock(transaction).await?;
    let pets = db::sample_store::lock_pets(transaction).await?;
    let orders = db::sample_store::delete_orders(transaction, &pets, initiator).await?;
    for id in &pets {
        let request = ChangeRequest {
            id: *id,
            conditions: Conditions::NONE,
            change: Change::Delete,
            initiator: initiator.clone(),
        };
        db::pets::change_in(transaction, &request).await?;
    }
    Ok(Counts {
        pets: pets.len(),
        orders,
    })
}
