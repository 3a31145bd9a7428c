//! Stores the bytes of images, in a directory or an S3 bucket.
//!
//! Invariants:
//! - Only this module uses `object_store`.
//! - Once [`Upload::finish`] returns a key, the bytes under it are complete, on disk and immutable.
//! - A key is used only once, so deleting it never affects another image.
//! - A dropped upload leaves nothing. What a crash leaves is found by its age.

mod bucket;
mod error;
mod key;
mod operation;
mod upload;

use std::{io, ops::Range, os::unix::fs::FileExt, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{
    GetOptions, GetResultPayload, ObjectStore, ObjectStoreExt, PutMode, local::LocalFileSystem,
    path::Path,
};
use tokio::sync::{OnceCell, Semaphore};
use url::Url;

pub use self::{error::Error, upload::Upload};
use self::{key::path, operation::observed, upload::Bucket};
use crate::config::Config;

/// Default image directory, inside the data directory.
const FOLDER: &str = "images";
/// Object that names the database that the store belongs to.
const MARKER: &str = ".database";
/// Size of one read from a file, in bytes.
const PIECE: u64 = 128 << 10;

/// Image store. Clones share its state.
#[derive(Debug, Clone)]
pub struct BlobStore {
    backend: Backend,
    store: Arc<OnceCell<Arc<dyn ObjectStore>>>,
    /// Set once the store has its marker.
    marked: Arc<OnceCell<()>>,
}

#[derive(Debug, Clone)]
enum Backend {
    /// Created on first use, not at startup.
    Folder(PathBuf),
    Bucket(Bucket),
}

impl BlobStore {
    /// Creates the configured store.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn new(config: &Config) -> Result<Self, Error> {
        let folder = |path| Self {
            backend: Backend::Folder(path),
            store: Arc::default(),
            marked: Arc::default(),
        };
        match &config.images.url {
            None => Ok(folder(config.local_postgres.directory.join(FOLDER))),
            Some(url) => match url.to_file_path() {
                Ok(path) if url.scheme() == "file" => Ok(folder(path)),
                _ => Self::in_bucket(url, config),
            },
        }
    }

    fn in_bucket(url: &Url, config: &Config) -> Result<Self, Error> {
        /// Together they hold 20 MiB.
        const TRANSFERS: usize = 4;
        let environment = &config.environment;
        let store = bucket::open(url, &environment.aws).map_err(|reason| Error::Config {
            url: url.to_string(),
            reason,
        })?;
        let spool = environment.temporary_directory.clone();
        Ok(Self {
            backend: Backend::Bucket(Bucket {
                spool: spool.unwrap_or_else(|| "/tmp".into()),
                transfers: Arc::new(Semaphore::new(TRANSFERS)),
            }),
            store: Arc::new(OnceCell::new_with(Some(store))),
            marked: Arc::default(),
        })
    }

    async fn store(&self) -> Result<&Arc<dyn ObjectStore>, Error> {
        let open = async || {
            let Backend::Folder(path) = &self.backend else {
                return Err(Error::Unavailable("the bucket is not open".into()));
            };
            let path = path.clone();
            let open = move || -> Result<Arc<dyn ObjectStore>, Error> {
                std::fs::create_dir_all(&path)?;
                let store = LocalFileSystem::new_with_prefix(&path)?.with_fsync(true);
                Ok(Arc::new(store))
            };
            tokio::task::spawn_blocking(open).await?
        };
        self.store.get_or_try_init(open).await
    }

    /// Starts an upload under a new key.
    ///
    /// # Errors
    /// [`Error`] if the store does not accept it.
    pub async fn upload(&self) -> Result<Upload, Error> {
        let key = key::new().map_err(|error| Error::Unavailable(error.into()))?;
        let store = Arc::clone(self.store().await?);
        match &self.backend {
            Backend::Folder(_) => Upload::to_folder(store, key).await,
            Backend::Bucket(bucket) => Upload::to_bucket(store, key, bucket.clone()).await,
        }
    }

    /// Streams a range of an object. The first bytes are read before this returns.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Unavailable`], here or within the stream.
    pub async fn read(
        &self,
        key: &str,
        range: Range<u64>,
    ) -> Result<impl Stream<Item = Result<Bytes, Error>> + Send + use<>, Error> {
        let options = GetOptions::default().with_range(Some(range));
        let begin = async {
            let found = self.store().await?.get_opts(&path(key)?, options).await?;
            let mut stream: BoxStream<'static, Result<Bytes, Error>> = match found.payload {
                GetResultPayload::File(file, _) => pieces(Arc::new(file), found.range).boxed(),
                GetResultPayload::Stream(stream) => stream.map_err(Error::from).boxed(),
            };
            let first = stream.try_next().await?;
            Ok(futures_util::stream::iter(first.map(Ok)).chain(stream))
        };
        observed("read", begin).await
    }

    /// Reads a whole object.
    ///
    /// # Errors
    /// As [`BlobStore::read`].
    pub async fn read_all(&self, key: &str) -> Result<Bytes, Error> {
        observed("read", async {
            let found = self.store().await?.get(&path(key)?).await?;
            Ok(found.bytes().await?)
        })
        .await
    }

    /// Deletes objects. Missing ones are not an error.
    ///
    /// # Errors
    /// [`Error`] if some may still exist.
    pub async fn delete(&self, keys: &[String]) -> Result<(), Error> {
        let delete = async {
            let store = self.store().await?;
            let paths: Vec<_> = keys.iter().map(|key| path(key)).collect();
            let mut deleted = store.delete_stream(futures_util::stream::iter(paths).boxed());
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

    /// Marks the store as that of a database, unless it is marked already. Checks only once per process.
    ///
    /// # Errors
    /// [`Error`], or the error of `database`, which returns the database's name.
    pub async fn mark<E: From<Error>>(
        &self,
        database: impl Future<Output = Result<String, E>>,
    ) -> Result<(), E> {
        let mark = async || {
            if self.owner().await?.is_some() {
                return Ok(());
            }
            let name = database.await?;
            let store = self.store().await?;
            let marker = Path::from(MARKER);
            match store
                .put_opts(&marker, name.into(), PutMode::Create.into())
                .await
            {
                // Another replica was faster.
                Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => Ok(()),
                Err(error) => Err(Error::from(error).into()),
            }
        };
        self.marked.get_or_try_init(mark).await.copied()
    }

    /// Returns the name of the database that the store belongs to, if the store exists and is marked.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn owner(&self) -> Result<Option<String>, Error> {
        if let Backend::Folder(folder) = &self.backend {
            let folder = folder.clone();
            // The directory does not exist before the first image, and this must not create it.
            if !tokio::task::spawn_blocking(move || folder.try_exists()).await?? {
                return Ok(None);
            }
        }
        match self.read_all(MARKER).await {
            Ok(name) => Ok(Some(String::from_utf8_lossy(&name).trim().to_owned())),
            Err(Error::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes temporary files older than `age`, which crashes left, and returns the keys of that age in chunks.
    /// Objects with other names are ignored. (The clock of S3 agrees to within minutes; otherwise it would reject our
    /// signatures.)
    ///
    /// # Errors
    /// [`Error`], here or within the stream.
    #[expect(
        clippy::disallowed_methods,
        reason = "compared with the modification times of objects"
    )]
    pub async fn older_than(
        &self,
        age: Duration,
    ) -> Result<BoxStream<'static, Result<Vec<String>, Error>>, Error> {
        let before = std::time::SystemTime::now() - age;
        if let Backend::Folder(folder) = &self.backend {
            let folder = folder.clone();
            tokio::task::spawn_blocking(move || key::remove_staged(&folder, before)).await??;
        }
        let before = chrono::DateTime::<chrono::Utc>::from(before);
        let store = Arc::clone(self.store().await?);
        // Directory by directory: objects outside of them may be unreadable.
        let all = futures_util::stream::iter(key::folders())
            .flat_map(move |folder| store.list(Some(&Path::from(folder))));
        let old = all.try_filter_map(move |found| {
            let name = found.location.to_string();
            let is_meant = found.last_modified < before && key::is_one(&name);
            std::future::ready(Ok(is_meant.then_some(name)))
        });
        let keys = old.map_err(Error::from).try_chunks(KEYS);
        Ok(keys.map_err(|stopped| stopped.1).boxed())
    }
}

/// Maximum number of keys in a chunk of [`BlobStore::older_than`].
const KEYS: usize = 500;

/// Reads a file in pieces, on blocking threads. An open file stays complete when it is deleted.
fn pieces(
    file: Arc<std::fs::File>,
    range: Range<u64>,
) -> impl Stream<Item = Result<Bytes, Error>> + Send {
    futures_util::stream::try_unfold((file, range), |(file, range)| async move {
        if range.is_empty() {
            return Ok(None);
        }
        let end = range.end.min(range.start + PIECE);
        let reading = Arc::clone(&file);
        let read = move || {
            let length = usize::try_from(end - range.start).unwrap_or_default();
            let mut piece = vec![0; length];
            reading.read_exact_at(&mut piece, range.start)?;
            Ok::<_, io::Error>(piece)
        };
        let piece = tokio::task::spawn_blocking(read).await??;
        Ok(Some((Bytes::from(piece), (file, end..range.end))))
    })
}
