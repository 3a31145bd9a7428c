//! Writes an upload to the image store.

use std::{fs::File, io::Write, os::unix::fs::FileExt, path::PathBuf, sync::Arc};

use bytes::Bytes;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload};
use tokio::{runtime::Handle, sync::Semaphore};

use super::{error::Error, key::path, operation::observed};

/// Minimum size of an S3 part, except for the last, in bytes.
const PART: u64 = 5 << 20;

/// Upload in progress. Dropped before it is finished, it leaves nothing.
pub struct Upload {
    store: Arc<dyn ObjectStore>,
    key: String,
    size: u64,
    to: To,
}

/// S3 parts have at least 5 MiB and are held in memory while they are sent. So an upload is first written to an unnamed
/// file, and few are sent on at once.
#[derive(Debug, Clone)]
pub(super) struct Bucket {
    pub(super) spool: PathBuf,
    pub(super) transfers: Arc<Semaphore>,
}

enum To {
    /// File under a temporary name next to its key. Dropping it removes the file.
    Folder(Box<dyn MultipartUpload>),
    /// Unnamed file that holds the upload until it is complete.
    Spool(Arc<File>, Bucket),
}

impl Upload {
    pub(super) async fn to_folder(store: Arc<dyn ObjectStore>, key: String) -> Result<Self, Error> {
        // This creates the directory and the file, and syncs the directory, on the calling thread.
        let (runtime, opening) = (Handle::current(), Arc::clone(&store));
        let path = path(&key)?;
        let open = move || runtime.block_on(opening.put_multipart(&path));
        let to = To::Folder(tokio::task::spawn_blocking(open).await??);
        Ok(Self {
            store,
            key,
            size: 0,
            to,
        })
    }

    pub(super) async fn to_bucket(
        store: Arc<dyn ObjectStore>,
        key: String,
        bucket: Bucket,
    ) -> Result<Self, Error> {
        let spool = bucket.spool.clone();
        let file = tokio::task::spawn_blocking(move || tempfile::tempfile_in(spool)).await??;
        Ok(Self {
            store,
            key,
            size: 0,
            to: To::Spool(Arc::new(file), bucket),
        })
    }

    /// Returns the number of bytes written.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Writes the next bytes. Awaiting it slows the sender down to the speed of the store.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Unavailable`]; the upload is lost then.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        self.size += bytes.len() as u64;
        match &mut self.to {
            To::Folder(parts) => parts.put_part(bytes.into()).await?,
            To::Spool(file, _) => {
                let file = Arc::clone(file);
                let write = move || (&*file).write_all(&bytes);
                tokio::task::spawn_blocking(write).await??;
            }
        }
        Ok(())
    }

    /// Makes the bytes durable under their key, and returns the key.
    ///
    /// # Errors
    /// As [`Upload::write`].
    pub async fn finish(self) -> Result<String, Error> {
        let Self {
            store,
            key,
            size,
            to,
        } = self;
        let written = observed("write", async {
            match to {
                To::Folder(mut parts) => {
                    parts.complete().await?;
                }
                To::Spool(file, bucket) => {
                    let _turn = bucket.transfers.acquire().await;
                    transfer(&*store, &key, &file, size).await?;
                }
            }
            Ok(())
        });
        written.await?;
        Ok(key)
    }
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
        store.put(&path, part(file, 0, size).await?).await?;
        return Ok(());
    }
    let mut parts = store.put_multipart(&path).await?;
    let sent = async {
        let mut from = 0;
        while from < size {
            let length = PART.min(size - from);
            parts.put_part(part(file, from, length).await?).await?;
            from += length;
        }
        parts.complete().await?;
        Ok(())
    };
    let sent: Result<(), Error> = sent.await;
    if sent.is_err() {
        // Abandoned parts cost storage. If this fails, a lifecycle rule of the bucket has to remove them.
        let _ = parts.abort().await;
    }
    sent
}

async fn part(file: &Arc<File>, from: u64, length: u64) -> Result<PutPayload, Error> {
    let file = Arc::clone(file);
    let read = move || {
        let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
        file.read_exact_at(&mut bytes, from)?;
        Ok::<_, std::io::Error>(bytes)
    };
    let bytes = tokio::task::spawn_blocking(read).await??;
    Ok(bytes.into())
}
