//! `seed`: adds the sample store.

use serde_json::json;

use super::{
    output::{Error, print},
    session::with_database,
};
use crate::{
    api::{operations::BASE, state::Links},
    blob_store::BlobStore,
    config::Config,
    db::{self, Database},
    domain::change::Initiator,
    sample_store::{self, Counts, Origin},
};

/// Adds the sample store. Fails if there are pets.
pub async fn run(config: &Config, json: bool) -> Result<(), Error> {
    let added = with_database(config, async |database| add(config, database).await);
    let Some(Counts { pets, orders }) = added.await? else {
        return Err("the sample store can be added only to a store without pets; for another store, set another \
                    DATABASE_URL, or PET_INVENTORY__LOCAL_POSTGRES__DIRECTORY"
            .into());
    };
    let text = format!("added {pets} pets and {orders} orders");
    print(json, text, &json!({"pets": pets, "orders": orders}))
}

async fn add(config: &Config, database: &Database) -> Result<Option<Counts>, Error> {
    // Before the pictures are stored for nothing.
    if !database.run(db::sample_store::is_empty).await? {
        return Ok(None);
    }
    let blobs = BlobStore::new(config)?;
    blobs.refuse_root()?;
    let pictures = sample_store::store_pictures::<Error>(database, &blobs).await?;
    // Without a public URL, relative references: this command does not know the address that clients use.
    let links = Links::new(config.server.public_url.as_ref());
    let origin = Origin {
        base: links.url(BASE),
        owner: None,
        initiator: Initiator::operator(),
    };
    database
        .transact(async |transaction| Ok(sample_store::add(transaction, &pictures, &origin).await?))
        .await
}
