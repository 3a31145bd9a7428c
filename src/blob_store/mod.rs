//! Stores the bytes of images, in a directory or an S3 bucket.
//!
//! Invariants:
//! - Only this module uses `object_store`.
//! - Once [`Upload::finish`] returns a key, the bytes under it are complete, on disk and immutable.
//! - A key is used only once, so deleting it never affects another image.
//! - Only the user of this process can read the files of a directory (modes 0700 and 0600).
//! - A dropped upload leaves nothing. What a crash leaves is found by its age.

mod bucket;
mod error;
mod key;
mod marker;
mod operation;
mod upload;

use std::{
    fs::{DirBuilder, File},
    future::ready,
    io,
    ops::Range,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path as FilePath, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    Stream, StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use nix::unistd::geteuid;
use object_store::{
    GetOptions, GetResultPayload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    local::LocalFileSystem, path::Path,
};
use tokio::sync::{Notify, OnceCell, Semaphore};

pub use self::{error::Error, marker::Marker, upload::Upload};
use self::{
    key::path,
    operation::{blocking, counted, observed, read_range},
    upload::{Spool, Target, restrict},
};
use crate::config::Config;

/// Default image directory, inside the data directory.
const FOLDER: &str = "images";
/// Size of one read from a file, in bytes.
const PIECE: u64 = 128 << 10;
/// Maximum number of keys in a chunk of [`BlobStore::older_than`].
const KEYS: usize = 500;
/// Maximum number of concurrent transfers to a bucket. Together they hold 20 MiB.
const TRANSFERS: usize = 4;

/// Image store. Clones share its state.
#[derive(Debug, Clone)]
pub struct BlobStore {
    backend: Backend,
    /// Set when the store has its marker.
    is_marked: Arc<AtomicBool>,
}

#[derive(Debug, Clone)]
enum Backend {
    /// Directory, which is created on first use, not at startup.
    Folder(PathBuf, Arc<OnceCell<Arc<dyn ObjectStore>>>),
    Bucket(Arc<dyn ObjectStore>, Spool),
}

impl BlobStore {
    /// Creates the configured store.
    pub fn new(config: &Config) -> Result<Self, Error> {
        let backend = match &config.images.url {
            None => Backend::Folder(config.local_postgres.directory.join(FOLDER), Arc::default()),
            Some(url) => match url.to_file_path() {
                Ok(path) if url.scheme() == "file" => Backend::Folder(path, Arc::default()),
                _ => {
                    let environment = &config.environment;
                    let store = bucket::open(url, &environment.aws);
                    let url = url.to_string();
                    let store = store.map_err(|reason| Error::Config { url, reason })?;
                    let directory = environment.temporary_directory.clone();
                    let spool = Spool {
                        directory: directory.unwrap_or_else(|| "/tmp".into()),
                        transfers: Arc::new(Semaphore::new(TRANSFERS)),
                    };
                    Backend::Bucket(store, spool)
                }
            },
        };
        let is_marked = Arc::default();
        Ok(Self { backend, is_marked })
    }

    async fn store(&self) -> Result<&Arc<dyn ObjectStore>, Error> {
        let (path, store) = match &self.backend {
            Backend::Folder(path, store) => (path, store),
            Backend::Bucket(store, _) => return Ok(store),
        };
        store
            .get_or_try_init(async || {
                let path = path.clone();
                blocking(move || -> Result<Arc<dyn ObjectStore>, Error> {
                    let created = DirBuilder::new().recursive(true).mode(0o700).create(&path);
                    created.map_err(|error| named(&path, &error))?;
                    let store = LocalFileSystem::new_with_prefix(&path)?.with_fsync(true);
                    Ok(Arc::new(store))
                })
                .await
            })
            .await
    }

    /// Fails if this process runs as root, and the directory belongs to another user.
    pub fn refuse_root(&self) -> Result<(), Error> {
        match &self.backend {
            Backend::Folder(path, _) if geteuid().is_root() => refuse_if_of_another_user(path),
            _ => Ok(()),
        }
    }

    /// Starts an upload under a new key.
    pub async fn upload(&self) -> Result<Upload, Error> {
        let key = key::new().map_err(|error| Error::Unavailable(error.into()))?;
        let start = async {
            let store = Arc::clone(self.store().await?);
            let target = match &self.backend {
                Backend::Folder(root, _) => Target::Folder(root),
                Backend::Bucket(_, spool) => Target::Spool(spool),
            };
            Upload::start(store, key, target).await
        };
        observed("write", start).await
    }

    /// Streams a range of an object. The first bytes are read before this returns. An object that ends before the range is damaged.
    pub async fn read(
        &self,
        key: &str,
        range: Range<u64>,
    ) -> Result<impl Stream<Item = Result<Bytes, Error>> + Send + use<>, Error> {
        // The range of a file is cut here, since `object_store` fails for one that begins behind the end: a truncated file is damaged, and
        // the store is well.
        let asked = matches!(self.backend, Backend::Bucket(..)).then(|| range.clone());
        let options = GetOptions::default().with_range(asked);
        let begin = async {
            let found = self.store().await?.get_opts(&path(key)?, options).await?;
            if found.meta.size < range.end {
                let reason = format!("{key} has only {} bytes", found.meta.size);
                return Err(Error::Damaged(reason.into()));
            }
            let mut bytes: BoxStream<'static, Result<Bytes, Error>> = match found.payload {
                GetResultPayload::File(file, _) => pieces(Arc::new(file), range).boxed(),
                GetResultPayload::Stream(bytes) => bytes.map_err(Error::from).boxed(),
            };
            let first = bytes.try_next().await?;
            let bytes = bytes.map(|piece| counted("read", piece));
            Ok(stream::iter(first.map(Ok)).chain(bytes))
        };
        observed("read", begin).await
    }

    /// Reads a whole object.
    pub async fn read_all(&self, key: &str) -> Result<Bytes, Error> {
        observed("read", async {
            let found = self.store().await?.get(&path(key)?).await?;
            Ok(found.bytes().await?)
        })
        .await
    }

    /// Deletes objects. Missing ones are not an error. After a failure, some may still exist.
    pub async fn delete(&self, keys: &[String]) -> Result<(), Error> {
        let delete = async {
            let store = self.store().await?;
            let paths: Vec<_> = keys.iter().map(|key| path(key)).collect();
            let mut deleted = store.delete_stream(stream::iter(paths).boxed());
            while let Some(outcome) = deleted.next().await {
                match outcome.map_err(Error::from) {
                    Ok(_) | Err(Error::Missing(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        };
        observed("delete", delete).await
    }

    /// Marks the store as that of the named `database`, unless it is marked already. Checks only once, until
    /// [`BlobStore::marker`] finds that the marker has been deleted.
    pub async fn mark<E: From<Error>>(
        &self,
        database: impl Future<Output = Result<String, E>>,
    ) -> Result<(), E> {
        if self.is_marked.load(Ordering::Relaxed) {
            return Ok(());
        }
        if self.marker().await?.is_none() {
            let name = database.await?;
            let (store, path) = (self.store().await?, Path::from(marker::NAME));
            let put = store.put_opts(&path, name.into(), PutMode::Create.into());
            let put = put.await;
            if let Backend::Folder(root, _) = &self.backend {
                restrict(&root.join(marker::NAME), 0o600);
            }
            match put {
                // Another replica was faster.
                Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => {}
                failed => drop(counted("write", failed)?),
            }
        }
        self.is_marked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the marker, if the store exists and is marked.
    pub async fn marker(&self) -> Result<Option<Marker>, Error> {
        if let Backend::Folder(folder, _) = &self.backend {
            let folder = folder.clone();
            // The directory does not exist before the first image, and this must not create it.
            let exists = move || (folder.try_exists()).map_err(|error| named(&folder, &error));
            if !blocking(exists).await? {
                return Ok(None);
            }
        }
        let read = async {
            let store = self.store().await?;
            Marker::read(store.get(&Path::from(marker::NAME)).await?).await
        };
        match observed("read", read).await {
            Ok(marker) => Ok(Some(marker)),
            Err(Error::Missing(_)) => {
                self.is_marked.store(false, Ordering::Relaxed);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Replaces the marker. Returns false if it has changed since it was read.
    pub async fn replace_marker(&self, marker: Marker, owner: String) -> Result<bool, Error> {
        let replace = async {
            match &self.backend {
                Backend::Folder(root, _) => {
                    let path = root.join(marker::NAME);
                    blocking(move || marker::replace(&path, &marker.owner, &owner)).await
                }
                Backend::Bucket(store, _) => {
                    let mode = PutMode::Update(marker.version);
                    let path = Path::from(marker::NAME);
                    match store.put_opts(&path, owner.into(), mode.into()).await {
                        Ok(_) => Ok(true),
                        Err(object_store::Error::Precondition { .. }) => Ok(false),
                        Err(error) => Err(error.into()),
                    }
                }
            }
        };
        observed("write", replace).await
    }

    /// Deletes temporary files older than `age`, which crashes left, and returns the keys of that age in chunks.
    /// Objects with other names are ignored. (The clock of S3 agrees to within minutes; otherwise it would reject our
    /// signatures.)
    #[expect(
        clippy::disallowed_methods,
        reason = "compared with the modification times of objects"
    )]
    pub async fn older_than(
        &self,
        age: Duration,
    ) -> Result<BoxStream<'static, Result<Vec<String>, Error>>, Error> {
        let before = std::time::SystemTime::now() - age;
        if let Backend::Folder(folder, _) = &self.backend {
            let folder = folder.clone();
            let removed = blocking(move || key::remove_staged(&folder, before)).await;
            counted("delete", removed)?;
        }
        let before = chrono::DateTime::<chrono::Utc>::from(before);
        let old = objects(counted("read", self.store().await)?).try_filter_map(move |found| {
            let is_old = found.last_modified < before;
            ready(Ok(is_old.then(|| found.location.to_string())))
        });
        let keys = old.map(|found| counted("read", found)).try_chunks(KEYS);
        Ok(keys.map_err(|stopped| stopped.1).boxed())
    }

    /// Returns true if the store has no blobs.
    pub async fn is_empty(&self) -> Result<bool, Error> {
        let mut objects = std::pin::pin!(objects(self.store().await?));
        Ok(objects.try_next().await?.is_none())
    }
}

/// Returns the error of a folder with its path.
fn named(folder: &FilePath, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", folder.display()))
}

/// Lists the objects that have names of keys, directory by directory: objects outside of them may be unreadable.
fn objects(
    store: &Arc<dyn ObjectStore>,
) -> impl Stream<Item = object_store::Result<ObjectMeta>> + Send + use<> {
    let store = Arc::clone(store);
    stream::iter(key::folders())
        .flat_map(move |folder| store.list(Some(&Path::from(folder))))
        .try_filter(|found| ready(key::is_one(found.location.as_ref())))
}

/// Reads a file in pieces, on blocking threads. An open file stays complete when it is deleted.
fn pieces(file: Arc<File>, range: Range<u64>) -> impl Stream<Item = Result<Bytes, Error>> + Send {
    stream::try_unfold((file, range), async |(file, range)| {
        if range.is_empty() {
            return Ok(None);
        }
        let end = range.end.min(range.start + PIECE);
        let piece = read_range(&file, range.start..end).await?;
        Ok(Some((piece, (file, end..range.end))))
    })
}

fn refuse_if_of_another_user(path: &FilePath) -> Result<(), Error> {
    // Of the directory, or of the nearest one that exists.
    let mut owners = path
        .ancestors()
        .filter_map(|it| Some(it.metadata().ok()?.uid()));
    match owners.next() {
        Some(owner) if owner != 0 => Err(Error::Config {
            url: path.display().to_string(),
            reason: format!(
                "the directory belongs to user {owner}, who could not read what root writes; run the command as this \
                 user, such as: runuser --user \"$(id --name --user {owner})\" -- pet-inventory"
            ),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_does_not_write_to_a_directory_of_another_user() {
        let folder = tempfile::tempdir().expect("a folder");
        if geteuid().is_root() {
            assert!(refuse_if_of_another_user(&folder.path().join("images")).is_ok());
            std::os::unix::fs::chown(folder.path(), Some(65_534), None).expect("root may do this");
        }
        let error = refuse_if_of_another_user(&folder.path().join("images"));
        let error = error.expect_err("another user").to_string();
        assert!(error.contains("runuser"), "{error}");
    }
}

/// Signal that there may be orphaned blobs, which a background task deletes.
#[derive(Debug, Clone, Default)]
pub struct OrphanedBlobs(Arc<Notify>);

impl OrphanedBlobs {
    /// Sends the signal.
    pub fn notify(&self) {
        self.0.notify_one();
    }

    /// Waits for the signal.
    pub async fn notified(&self) {
        self.0.notified().await;
    }
}
