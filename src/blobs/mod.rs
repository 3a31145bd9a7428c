//! Where the bytes of images are: a folder, or a bucket of S3. The only room that knows `object_store`.
//!
//! Invariants: the bytes under a key are whole and on the disk once [`Upload::finish`] has given the key, and
//! never change; no key is given twice, so deleting one meets nobody else's bytes; an upload that is dropped
//! leaves nothing, and what a crash leaves of one is found again by its age.

mod bucket;
mod key;
mod upload;

use std::{
    error::Error as StdError, io, ops::Range, os::unix::fs::FileExt, path::PathBuf, sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{
    GetOptions, GetResultPayload, ObjectStore, ObjectStoreExt, PutMode, local::LocalFileSystem,
    path::Path,
};
use tokio::sync::{OnceCell, Semaphore};
use tracing::{Instrument, field::Empty};
use url::Url;

pub use self::upload::Upload;
use crate::{config::Config, trace};

/// The folder of images beside the data, where no other place is configured.
const FOLDER: &str = "images";
/// Says in the place which database it belongs to.
const MARKER: &str = ".database";
/// Bytes that are read in one piece.
const PIECE: u64 = 128 << 10;

/// A failure of this room.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no room left.
    #[error("no room is left for images: {0}")]
    Full(#[source] Box<dyn StdError + Send + Sync>),
    /// There are no bytes under this key.
    #[error("the bytes of an image are not where they were stored: {0}")]
    Missing(#[source] Box<dyn StdError + Send + Sync>),
    /// The place cannot be read or written right now.
    #[error("the place of images is unavailable: {0}")]
    Unavailable(#[source] Box<dyn StdError + Send + Sync>),
    /// The place cannot be used as it is configured.
    #[error("cannot keep images at {url} (images.url): {reason}")]
    Config {
        /// Where.
        url: String,
        /// Why not.
        reason: String,
    },
}

impl From<object_store::Error> for Error {
    fn from(error: object_store::Error) -> Self {
        match error {
            object_store::Error::NotFound { .. } => Self::Missing(error.into()),
            _ if has_no_room(&error) => Self::Full(error.into()),
            _ => Self::Unavailable(error.into()),
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        if has_no_room(&error) {
            Self::Full(error.into())
        } else {
            Self::Unavailable(error.into())
        }
    }
}

impl From<tokio::task::JoinError> for Error {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::Unavailable(error.into())
    }
}

/// Whether a full disk, or a full quota, is at the bottom of it.
fn has_no_room(error: &(dyn StdError + 'static)) -> bool {
    let mut error = Some(error);
    while let Some(cause) = error {
        if let Some(cause) = cause.downcast_ref::<io::Error>() {
            use io::ErrorKind as E;
            if matches!(cause.kind(), E::StorageFull | E::QuotaExceeded) {
                return true;
            }
        }
        error = cause.source();
    }
    false
}

/// The place. Clones share it.
#[derive(Debug, Clone)]
pub struct Blobs {
    place: Place,
    store: Arc<OnceCell<Arc<dyn ObjectStore>>>,
    /// Whether the place has its marker.
    marked: Arc<OnceCell<()>>,
}

#[derive(Debug, Clone)]
enum Place {
    /// Made when the first image comes: who stores none needs none.
    Folder(PathBuf),
    Bucket(Bucket),
}

/// S3 takes an object in parts of 5 MiB at least, each held in memory while it is sent. So an upload first
/// goes to a file without a name, and few are sent on at once.
#[derive(Debug, Clone)]
struct Bucket {
    spool: PathBuf,
    transfers: Arc<Semaphore>,
}

impl Blobs {
    /// The place that is configured.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn new(config: &Config) -> Result<Self, Error> {
        let folder = |path| Self {
            place: Place::Folder(path),
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
            place: Place::Bucket(Bucket {
                spool: spool.unwrap_or_else(|| "/tmp".into()),
                transfers: Arc::new(Semaphore::new(TRANSFERS)),
            }),
            store: Arc::new(OnceCell::new_with(Some(store))),
            marked: Arc::default(),
        })
    }

    async fn store(&self) -> Result<&Arc<dyn ObjectStore>, Error> {
        let open = async || {
            let Place::Folder(path) = &self.place else {
                return Err(Error::Unavailable("no bucket is open".into()));
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

    /// Begins an upload, under a key that was never given before.
    ///
    /// # Errors
    /// [`Error`] when there is no place for it.
    pub async fn upload(&self) -> Result<Upload, Error> {
        let key = key::new().map_err(|error| Error::Unavailable(error.into()))?;
        let store = Arc::clone(self.store().await?);
        match &self.place {
            Place::Folder(_) => Upload::to_folder(store, key).await,
            Place::Bucket(bucket) => Upload::to_bucket(store, key, bucket.clone()).await,
        }
    }

    /// The bytes of a range, as they are read. The first are read before this returns.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Unavailable`]; so does the stream.
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

    /// All bytes.
    ///
    /// # Errors
    /// As [`Blobs::read`].
    pub async fn read_all(&self, key: &str) -> Result<Bytes, Error> {
        observed("read", async {
            let found = self.store().await?.get(&path(key)?).await?;
            Ok(found.bytes().await?)
        })
        .await
    }

    /// Deletes the bytes under some keys, unless they are gone already.
    ///
    /// # Errors
    /// [`Error`] when some may still be there.
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

    /// Makes the place belong to a database, unless it belongs to one already. Asks only once.
    ///
    /// # Errors
    /// [`Error`], or what `database`, which gives its name, fails with.
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

    /// The name of the database that the place belongs to, if there is a place and it has been marked.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn owner(&self) -> Result<Option<String>, Error> {
        if let Place::Folder(folder) = &self.place {
            let folder = folder.clone();
            // Before the first image there is no folder, and none is made for this.
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

    /// Deletes what crashes left of uploads that began longer ago than `age`, and gives the keys that are as
    /// old, some at a time. What has not the name of a key is not ours, and is passed over. (The clock of S3
    /// is ours to some minutes, or it would refuse our signatures.)
    ///
    /// # Errors
    /// [`Error`], first or within the stream.
    #[expect(
        clippy::disallowed_methods,
        reason = "compared with the times that the same machine, or the bucket, wrote"
    )]
    pub async fn older_than(
        &self,
        age: Duration,
    ) -> Result<BoxStream<'static, Result<Vec<String>, Error>>, Error> {
        let before = std::time::SystemTime::now() - age;
        if let Place::Folder(folder) = &self.place {
            let folder = folder.clone();
            tokio::task::spawn_blocking(move || key::remove_staged(&folder, before)).await??;
        }
        let before = chrono::DateTime::<chrono::Utc>::from(before);
        let store = Arc::clone(self.store().await?);
        // Folder by folder: what lies beside them may be anything, and may not be ours to read.
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

/// Keys that [`Blobs::older_than`] gives at a time.
const KEYS: usize = 500;

/// Counts what fails of what is done in the place, and makes it a span where it is traced. That bytes are
/// missing is no failure of the place.
async fn observed<T>(
    operation: &'static str,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let span = tracing::debug_span!(
        target: trace::TARGET,
        "image bytes",
        otel.name = format_args!("{operation} image bytes"),
        otel.status_code = Empty,
    );
    let result = work.instrument(span.clone()).await;
    if let Err(Error::Full(_) | Error::Unavailable(_)) = &result {
        span.record("otel.status_code", "ERROR");
        metrics::counter!("images_store_failures_total", "operation" => operation).increment(1);
    }
    result
}

fn path(key: &str) -> Result<Path, object_store::Error> {
    Ok(Path::parse(key)?)
}

/// Reads a file piece by piece, off the async threads. An open file stays whole when it is deleted.
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
