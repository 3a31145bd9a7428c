//! Bytes on their way in.

use std::{fs::File, io::Write, os::unix::fs::FileExt, sync::Arc};

use bytes::Bytes;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload};
use tokio::runtime::Handle;

use super::{Bucket, Error, observed, path};

/// The least that S3 takes as a part that is not the last.
const PART: u64 = 5 << 20;

/// An upload; dropped before it is finished, it leaves nothing.
pub struct Upload {
    store: Arc<dyn ObjectStore>,
    key: String,
    size: u64,
    to: To,
}

enum To {
    /// Under a temporary name beside its own, which is removed when this is dropped.
    Folder(Box<dyn MultipartUpload>),
    /// In a file without a name, until all of it is there.
    Spool(Arc<File>, Bucket),
}

impl Upload {
    pub(super) async fn to_folder(store: Arc<dyn ObjectStore>, key: String) -> Result<Self, Error> {
        // It makes the folder and the file, and syncs the folder, on the thread that asks.
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

    /// Bytes so far.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Writes the next bytes; how fast it takes them is how fast they are to be sent.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Unavailable`]; then the upload is lost.
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

    /// Makes the bytes be under their key, for good, and gives it.
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

/// Sends a file to the bucket: in one piece, or, when it is larger than a part, in parts, one by one.
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
        // Parts of nothing cost room, too. Should this fail, a rule of the bucket's has to remove them.
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
