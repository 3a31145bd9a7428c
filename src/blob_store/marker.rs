//! The marker: an object that names the owner of the image store.

use std::{
    fs::File,
    io::{self, Seek, Write},
    path::Path,
};

use object_store::{GetResult, UpdateVersion};

use super::error::Error;

/// Name of the object.
pub(super) const NAME: &str = ".database";

/// Content of the marker when it was read.
#[derive(Debug)]
pub struct Marker {
    /// Owner of the store.
    pub owner: String,
    pub(super) version: UpdateVersion,
}

impl Marker {
    pub(super) async fn read(found: GetResult) -> Result<Self, Error> {
        let version = UpdateVersion {
            e_tag: found.meta.e_tag.clone(),
            version: found.meta.version.clone(),
        };
        let bytes = found.bytes().await?;
        let owner = String::from_utf8_lossy(&bytes).trim().to_owned();
        Ok(Self { owner, version })
    }
}

/// Replaces the content of a file if it is `old`. Returns false if it is not. The file is locked meanwhile, and is written
/// in place, which needs no space on a full disk.
pub(super) fn replace(path: &Path, old: &str, new: &str) -> io::Result<bool> {
    let mut file = File::options().read(true).write(true).open(path)?;
    // Closing the file releases the lock.
    file.lock()?;
    if io::read_to_string(&file)?.trim() != old {
        return Ok(false);
    }
    file.rewind()?;
    file.write_all(new.as_bytes())?;
    file.set_len(new.len() as u64)?;
    file.sync_all()?;
    Ok(true)
}
