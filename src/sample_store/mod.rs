//! Sample store: pets with pictures and a few orders, for people who try the service. It is added to a store without pets only.

mod pets;

use sha2::{Digest, Sha256};

use self::pets::{HEIGHT, PETS, SamplePet, WIDTH};
use crate::{
    blob_store::{self, BlobStore},
    db::{
        self, Connection, Database,
        images::Content,
        orders::{Owner, Placement, PlacementOutcome},
        pets::Addition,
    },
    domain::{
        change::Initiator,
        id::PetId,
        image::{Facts, ImageId, ImageType},
        order::{self, NewOrder, OrderDetails, Quantity},
        pet::{NewPet, PhotoUrl},
    },
};

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

/// Stores the pictures of the pets. The sweep of orphaned blobs deletes those that no pet gets.
pub async fn store_pictures<E>(database: &Database, blobs: &BlobStore) -> Result<Vec<Content>, E>
where
    E: From<db::Error> + From<blob_store::Error>,
{
    let mut pictures = Vec::new();
    for pet in &PETS {
        let mut upload = blobs.upload().await?;
        upload.write(pet.picture.into()).await?;
        pictures.push(Content {
            sha256: Sha256::digest(pet.picture).into(),
            size: upload.size(),
            key: upload.finish().await?,
            facts: Facts {
                kind: ImageType::Png,
                width: WIDTH,
                height: HEIGHT,
            },
        });
    }
    let name = async { Ok::<_, E>(database.run(db::images::begin_sweep).await?.database) };
    blobs.mark(name).await?;
    Ok(pictures)
}

/// Adds the pets, each with its picture, and their orders, in a transaction. Returns `None` if there are pets.
pub async fn add(
    transaction: &mut Connection,
    pictures: &[Content],
    origin: &Origin,
) -> Result<Option<Counts>, db::Error> {
    let mut added = Counts::default();
    db::sample_store::lock(transaction).await?;
    if !db::sample_store::is_empty(transaction).await? {
        return Ok(None);
    }
    for (picture, pet) in pictures.iter().zip(&PETS) {
        let id = add_pet(transaction, pet, picture, origin).await?;
        added.pets += 1;
        if let Some(status) = pet.order {
            place_order(transaction, id, status, origin).await?;
            added.orders += 1;
        }
    }
    Ok(Some(added))
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
        PlacementOutcome::Placed(_) => Ok(()),
        refused => Err(db::Error::Corrupt(format!("a sample order: {refused:?}"))),
    }
}
