//! `claim-images`: makes the image store that of the database.

use serde_json::json;

use super::{
    output::{Error, print},
    session::with_database,
};
use crate::{blob_store::BlobStore, config::Config, maintenance::orphaned_blobs};

/// Writes the marker of the store.
pub async fn run(config: &Config, json: bool) -> Result<(), Error> {
    let blobs = BlobStore::new(config)?;
    blobs.refuse_root()?;
    with_database(config, async |database| {
        Ok(orphaned_blobs::take_over(database, &blobs).await?)
    })
    .await?;
    let place = match &config.images.url {
        Some(url) => url.to_string(),
        None => "local_postgres.directory".to_owned(),
    };
    let text = format!("the image store ({place}) is that of this database");
    print(json, text, &json!({ "images": place }))
}
