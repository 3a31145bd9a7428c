//! `restore`: restores a backup into an empty database and an empty image store.
//!
//! Invariants:
//! - Until the commit, the database is empty. After a failure, neither the database nor the image store has anything of the
//!   archive.
//! - The bytes of images are stored before their rows are committed, under new keys: the database that the backup was made
//!   of has none of them, and keeps its own image store.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, BufReader, Read},
    path::PathBuf,
};

use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;

use super::{
    archive::{self, Entry, FORMAT, Header, Manifest},
    output::{Error, counted, print, progress},
    session::Session,
};
use crate::{
    blob_store::BlobStore,
    config::{Config, DemoKeys},
    db::{
        self, Database, backups,
        schema::{EXPORT, is_known},
    },
    maintenance::orphaned_blobs,
};

const NOT_EMPTY: &str =
    "the database is not empty; restore into a new one, before a service or a command has used it";
const STORE_NOT_EMPTY: &str =
    "the image store is not empty; set images.url to a new folder or prefix";
const STORE_OF_ANOTHER: &str =
    "the image store belongs to another database; set images.url to a new folder or prefix";
const OTHER_CONTENT: &str =
    "the archive is damaged: it has other content than its manifest and tables say";
const NOTE: &str = "keys, clients, callers, users and passwords are as they were at that time. Repeat later changes before \
    clients can reach the service: keys revoke, clients revoke, callers disable, set-scopes and set-plan. Users log in \
    again, and clients get new access tokens";
const NOTE_OF_DEMO_KEYS: &str = "The next start adds the public demo keys, with which every user of this machine can read all \
    of it: set PET_INVENTORY__LOCAL_POSTGRES__DEMO_KEYS=never";

type Entries<'a> = tar::Entries<'a, Box<dyn Read>>;

#[derive(Debug, Args)]
pub struct Restore {
    /// Archive that backup has written; - is stdin
    file: PathBuf,
}

impl Restore {
    pub async fn run(self, config: &Config, json: bool) -> Result<(), Error> {
        let (length, file): (_, Box<dyn Read>) = if self.file.as_os_str() == "-" {
            (None, Box::new(io::stdin().lock()))
        } else {
            let file = File::open(&self.file);
            let file = file.map_err(|error| format!("{}: {error}", self.file.display()))?;
            (Some(file.metadata()?.len()), Box::new(file))
        };
        let bar = ProgressBar::no_length();
        if let Some(length) = length {
            bar.set_length(length);
        }
        let bar = progress(
            bar,
            "{wide_bar} {binary_bytes} {binary_bytes_per_sec} {eta} {msg}",
        )?;
        let file: Box<dyn Read> = Box::new(BufReader::with_capacity(1 << 20, bar.wrap_read(file)));
        let mut archive = tar::Archive::new(file);
        let mut entries = archive.entries()?.raw(true);
        let header = read_header(&mut entries).await?;
        let created_at = header.created_at;
        let session = Session::open(config).await?;
        let result = restore(config, &session, &header, &mut entries, &bar).await;
        session.close().await?;
        bar.finish_and_clear();
        let (manifest, disabled) = result?;
        let (pets, images) = (manifest.rows.get("pets"), manifest.images);
        let pets = pets.copied().unwrap_or_default();
        let is_embedded = config.database.url.is_none();
        let mut note = if is_embedded && config.local_postgres.demo_keys != DemoKeys::Never {
            format!("{NOTE}. {NOTE_OF_DEMO_KEYS}")
        } else {
            NOTE.to_owned()
        };
        if disabled > 0 {
            let disabled = format!(
                ". Disabled {}, since the receivers may follow the other store; to enable one: pet-inventory webhooks enable",
                counted(disabled, "webhook")
            );
            note.push_str(&disabled);
        }
        let text = format_args!(
            "restored {} and {}, as of {created_at}\n{note}",
            counted(pets, "pet"),
            counted(images, "image")
        );
        let value = json!({"pets": pets, "images": images, "createdAt": created_at, "note": note});
        print(json, text, &value)
    }
}

/// Reads the header. Fails if this program cannot restore the archive.
async fn read_header(entries: &mut Entries<'_>) -> Result<Header, Error> {
    let mut entry = Entry::next(entries)?;
    if entry.kind != "header" {
        return Err(archive::UNKNOWN.into());
    }
    let header: Header = entry.read_json().await?;
    if !header.is_valid() {
        return Err(archive::UNKNOWN.into());
    }
    let latest = db::schema::latest();
    if header.format != FORMAT || !is_known(header.schema) {
        let Header {
            program, schema, ..
        } = header;
        let next = if schema > latest {
            "restore it with that program, or a later one".to_owned()
        } else {
            format!("restore it with that program into another database, then {EXPORT}")
        };
        return Err(format!(
            "the archive is of pet-inventory {program} with schema {schema:04}, and this program has schema {latest:04}: {next}"
        )
        .into());
    }
    Ok(header)
}

async fn restore(
    config: &Config,
    session: &Session,
    header: &Header,
    entries: &mut Entries<'_>,
    bar: &ProgressBar,
) -> Result<(Manifest, u64), Error> {
    let database = Database::new(session.options.clone(), &config.database);
    let blobs = BlobStore::new(config)?;
    blobs.refuse_root()?;
    let pooler = config.database.pooler;
    let mut connection = database.connect_without_timeout().await?;
    let is_current = db::migrations::pending(&session.options, pooler)
        .await?
        .is_empty();
    if !is_current && backups::has_tables(&mut connection).await? {
        return Err(NOT_EMPTY.into());
    }
    Box::pin(db::migrations::apply(&session.options, pooler)).await?;
    let mut restore = backups::Restore::begin(connection)
        .await?
        .ok_or(NOT_EMPTY)?;
    if let Some(missing) = restore.lacks(&header.tables) {
        return Err(format!(
            "the archive has {missing}, which the schema of this program lacks: if it was added by hand, prepare an empty \
             database with: pet-inventory migrate, add it there, and restore the archive then"
        )
        .into());
    }
    check_owner(&database, &blobs).await?;
    if !blobs.is_empty().await? {
        return Err(STORE_NOT_EMPTY.into());
    }
    let mut keys = Vec::new();
    let result = async {
        let manifest = read(header, entries, &mut restore, &blobs, &mut keys, bar).await?;
        let name = async { Ok::<_, Error>(database.run(db::images::begin_sweep).await?.database) };
        blobs.mark(name).await?;
        // Another database may have marked the store meanwhile.
        check_owner(&database, &blobs).await?;
        restore.record(header.created_at).await?;
        Ok((manifest, restore.disable_webhooks().await?))
    };
    let result: Result<(Manifest, u64), Error> = result.await;
    match result {
        Ok(restored) => {
            let committed = restore.commit().await;
            committed.map_err(|error| {
                format!("failed to commit, so the database may be empty; then empty the image store too: {error}")
            })?;
            Ok(restored)
        }
        Err(error) => {
            blobs.delete(&keys).await.map_err(|failed| {
                format!("{error}; and failed to delete the restored images: {failed}")
            })?;
            Err(error)
        }
    }
}

/// Fails if the image store belongs to another database.
async fn check_owner(database: &Database, blobs: &BlobStore) -> Result<(), Error> {
    match orphaned_blobs::find_owner(database, blobs).await? {
        Some((marker, owner)) if !owner.matches(&marker.owner) => Err(STORE_OF_ANOTHER.into()),
        _ => Ok(()),
    }
}

/// Adds the content of the archive to the database and the image store. Appends the keys of the images to `keys`.
async fn read(
    header: &Header,
    entries: &mut Entries<'_>,
    restore: &mut backups::Restore,
    blobs: &BlobStore,
    keys: &mut Vec<String>,
    bar: &ProgressBar,
) -> Result<Manifest, Error> {
    let (mut found, mut sha256s) = (Manifest::default(), HashSet::new());
    for table in &header.tables {
        found.rows.insert(table.name.clone(), 0);
    }
    loop {
        let mut entry = Entry::next(entries)?;
        let name = entry.kind.strip_prefix("tables/");
        let mut tables = header.tables.iter();
        if let Some(table) = tables.find(|table| name == Some(&*table.name)) {
            bar.set_message(table.name.clone());
            let mut rows = restore.rows(table).await?;
            entry.read(async |piece| Ok(rows.add(piece).await?)).await?;
            *found.rows.entry(table.name.clone()).or_default() += rows.finish().await?;
        } else if entry.kind == "images" {
            bar.set_message("images");
            if !sha256s.insert(entry.sha256.clone()) {
                return Err(OTHER_CONTENT.into());
            }
            read_image(&mut entry, restore, blobs, keys).await?;
            found.images += 1;
        } else if entry.kind == "manifest" {
            let manifest: Manifest = entry.read_json().await?;
            found.sequences.clone_from(&manifest.sequences);
            let is_last = entries.next().is_none();
            if !is_last
                || found != manifest
                || !restore.has_rows(&manifest.rows).await?
                || !restore.has_newest_position().await?
                || !restore.has_keys(keys).await?
                || !restore.set_sequences(manifest.sequences).await?
            {
                return Err(OTHER_CONTENT.into());
            }
            return Ok(found);
        } else {
            return Err(archive::UNKNOWN.into());
        }
    }
}

/// Stores an image under a new key. Fails if the database has no image with this SHA-256 and size.
async fn read_image(
    entry: &mut Entry<'_, Box<dyn Read>>,
    restore: &mut backups::Restore,
    blobs: &BlobStore,
    keys: &mut Vec<String>,
) -> Result<(), Error> {
    let size = restore.image_size(&entry.sha256).await?;
    if size.and_then(|size| size.try_into().ok()) != Some(entry.size()) {
        return Err(OTHER_CONTENT.into());
    }
    let mut upload = blobs.upload().await?;
    let written = entry.read(async |piece| Ok(upload.write(piece.into()).await?));
    if let Err(error) = written.await {
        // The program may end before a dropped upload is removed.
        let _ = upload.abort().await;
        return Err(error);
    }
    let key = upload.finish().await?;
    keys.push(key.clone());
    Ok(restore.set_key(&entry.sha256, &key).await?)
}
