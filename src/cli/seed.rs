//! `seed`: adds the sample store, or removes it.

use clap::Args;
use serde_json::json;

use super::{
    output::{Error, print},
    session::with_database,
};
use crate::{
    api::{operations::BASE, state::Links},
    blob_store::BlobStore,
    config::Config,
    db::Database,
    domain::change::Initiator,
    sample_store::{self, Counts, Origin},
};

#[derive(Debug, Args)]
pub struct Seed {
    /// Delete what is left of the sample store, with images and open orders, and nothing else
    #[arg(long)]
    remove: bool,
}

impl Seed {
    pub async fn run(self, config: &Config, json: bool) -> Result<(), Error> {
        let counts = with_database(config, async |database| {
            if self.remove {
                remove(database).await
            } else {
                add(config, database).await
            }
        })
        .await?;
        let Counts { pets, orders } = counts;
        let text = match (self.remove, pets) {
            (false, 0) => "the sample store is there already".to_owned(),
            (false, _) => format!(
                "added {pets} pets and {orders} orders; to delete them: pet-inventory seed --remove"
            ),
            (true, _) => format!("deleted {pets} pets and {orders} orders"),
        };
        print(json, text, &json!({"pets": pets, "orders": orders}))
    }
}

async fn add(config: &Config, database: &Database) -> Result<Counts, Error> {
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

async fn remove(database: &Database) -> Result<Counts, Error> {
    let removed = database.transact(async |transaction| {
        Ok(sample_store::remove(transaction, &Initiator::operator()).await?)
    });
    removed.await
}
