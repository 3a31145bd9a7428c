//! Writes an upload to the image store.

use std::{
    fs::{self, File, Permissions},
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt};
use tokio::{runtime::Handle, sync::Semaphore};

use super::{
    error::Error,
    key::path,
    operation::{blocking, counted, observed, read_range},
};

/// Minimum size of an S3 part, except for the last, in bytes.
const PART: u64 = 5 << 20;

/// Upload in progress. Dropped before it is finished, it leaves nothing.
pub struct Upload {
    store: Arc<dyn ObjectStore>,
    key: String,
    size: u64,
    to: Destination,
}

/// S3 parts have at least 5 MiB and are held in memory while they are sent. So an upload is first written to an unnamed
/// file, and few are sent on at once.
#[derive(Debug, Clone)]
pub(super) struct Spool {
    pub(super) directory: PathBuf,
    pub(super) transfers: Arc<Semaphore>,
}

/// Place that an upload is written to first.
pub(super) enum Target<'a> {
    /// Root directory of the store.
    Folder(&'a Path),
    /// Temporary file.
    Spool(&'a Spool),
}

enum Destination {
    /// File under a temporary name next to its key, and its final path. Dropping it removes the file.
    Folder(Box<dyn MultipartUpload>, PathBuf),
    /// Unnamed temporary file, sent to the store once it is complete.
    Spool(Arc<File>, Spool),
}

impl Upload {
    /// Starts an upload under `key`.
    pub(super) async fn start(
        store: Arc<dyn ObjectStore>,
        key: String,
        target: Target<'_>,
    ) -> Result<Self, Error> {
        let to = match target {
            Target::Spool(spool) => {
                let directory = spool.directory.clone();
                let file = blocking(move || tempfile::tempfile_in(directory)).await?;
                Destination::Spool(Arc::new(file), spool.clone())
            }
            Target::Folder(root) => {
                let (runtime, opening) = (Handle::current(), Arc::clone(&store));
                let (path, file) = (path(&key)?, root.join(&key));
                let directory = file.parent().map(Path::to_owned);
                let parts = blocking(move || {
                    // This creates the directory and the file, and syncs the directory, on the calling thread.
                    let parts = runtime.block_on(opening.put_multipart(&path));
                    if let Some(directory) = directory {
                        restrict(&directory, 0o700);
                    }
                    parts
                });
                Destination::Folder(parts.await?, file)
            }
        };
        Ok(Self {
            store,
            key,
            size: 0,
            to,
        })
    }

    /// Returns the number of bytes written.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Writes the next bytes; after a failure, the upload is lost. Applies backpressure: returns once the store has
    /// taken the bytes.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        self.size += bytes.len() as u64;
        let written = match &mut self.to {
            Destination::Folder(parts, _) => {
                parts.put_part(bytes.into()).await.map_err(Error::from)
            }
            Destination::Spool(file, _) => {
                let file = Arc::clone(file);
                blocking(move || (&*file).write_all(&bytes)).await
            }
        };
        counted("write", written)
    }

    /// Removes what has been written. Dropping the upload does so too, but later, in the background.
    pub async fn abort(self) -> Result<(), Error> {
        match self.to {
            Destination::Folder(mut parts, _) => counted("delete", parts.abort().await),
            Destination::Spool(..) => Ok(()),
        }
    }

    /// Makes the bytes durable under their key, and returns the key.
    pub async fn finish(self) -> Result<String, Error> {
        let (store, key, size, to) = (self.store, self.key, self.size, self.to);
        let write = async {
            match to {
                Destination::Folder(mut parts, file) => {
                    parts.complete().await?;
                    restrict(&file, 0o600);
                }
                Destination::Spool(file, spool) => {
                    let _permit = spool.transfers.acquire().await;
                    transfer(&*store, &key, &file, size).await?;
                }
            }
            Ok(())
        };
        observed("write", write).await?;
        Ok(key)
    }
}

/// Sets the mode of a file or directory. Failures are ignored: some network file systems have no modes.
pub(super) fn restrict(path: &Path, mode: u32) {
    let _ = fs::set_permissions(path, Permissions::from_mode(mode));
}

/// Sends a file to the bucket: in one request, or part by part if it is larger than a part.
async fn transfer(
    store: &dyn ObjectStore,
    key: &str,
    file: &Arc<File>,
    size: u64,
) -> Result<(), Error> {
    let path = path(key)?;
    if size <= PART {
        let bytes = read_range(file, 0..size).await?;
        store.put(&path, bytes.into()).await?;
        return Ok(());
    }
    let mut parts = store.put_multipart(&path).await?;
    let send = async {
        let mut from = 0;
        while from < size {
            let end = size.min(from + PART);
            let part = read_range(file, from..end).await?;
            parts.put_part(part.into()).await?;
            from = end;
        }
        parts.complete().await?;
        Ok(())
    };
    let result: Result<(), Error> = send.await;
    if result.is_err() {
        // Abandoned parts cost storage. If this fails, a lifecycle rule of the bucket has to remove them.
        let _ = parts.abort().await;
    }
    result
}
