//! Reads the images of a store and compares them with their rows.

use std::pin::pin;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use indicatif::ProgressBar;
use sha2::{Digest as _, Sha256};

use super::{archive::hexadecimal, output::Error};
use crate::{
    blob_store::{self, BlobStore},
    db::backups::{Backup, StoredImage},
};

/// Fault of an image.
pub struct Fault {
    /// SHA-256 of its row, in hexadecimal.
    pub sha256: String,
    /// Pet, key and kind of the fault.
    pub text: String,
}

impl Fault {
    fn new(image: &StoredImage, kind: &str) -> Self {
        let StoredImage {
            sha256,
            key,
            pet_id,
            ..
        } = image;
        let pet = pet_id.unwrap_or_default();
        Self {
            sha256: sha256.clone(),
            text: format!("an image of pet {pet} is {kind} ({key})"),
        }
    }
}

/// Returns the bytes of an image, or its fault. Fails if the store does.
pub async fn read(
    blobs: &BlobStore,
    image: &StoredImage,
) -> Result<Result<Vec<u8>, Fault>, blob_store::Error> {
    let pieces = match blobs.read(&image.key, 0..image.size).await {
        Err(blob_store::Error::Missing(_)) => return Ok(Err(Fault::new(image, "missing"))),
        Err(blob_store::Error::Damaged(_)) => return Ok(Err(Fault::new(image, "damaged"))),
        pieces => pieces?,
    };
    let pieces: Vec<Bytes> = pieces.try_collect().await?;
    let bytes = pieces.concat();
    if hexadecimal(Sha256::new().chain_update(&bytes)) == image.sha256 {
        Ok(Ok(bytes))
    } else {
        Ok(Err(Fault::new(image, "damaged")))
    }
}

/// Reads all images of a snapshot, during which none is deleted. Returns their number, and the faults.
pub async fn find_faults(
    snapshot: &mut Backup,
    blobs: &BlobStore,
    bar: &ProgressBar,
) -> Result<(u64, Vec<Fault>), Error> {
    let (mut number, mut faults) = (0, Vec::new());
    let mut images = pin!(snapshot.images());
    while let Some(image) = images.try_next().await? {
        number += 1;
        bar.set_message(format!(
            "{number} images read, {} missing or damaged",
            faults.len()
        ));
        faults.extend(read(blobs, &image).await?.err());
    }
    Ok((number, faults))
}
