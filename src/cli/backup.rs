//! `backup`: writes the database and the images to an archive, as one consistent snapshot.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    pin::pin,
    time::Duration,
};

use clap::Args;
use futures_util::TryStreamExt as _;
use indicatif::{ProgressBar, ProgressBarIter};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{
    archive::{self, FORMAT, Header, Manifest},
    output::{Error, print, progress},
    session::Session,
};
use crate::{
    blob_store::BlobStore,
    config::Config,
    db::{
        self, Database,
        backups::{self, StoredImage, TABLES},
    },
};

type Writer = archive::Writer<BufWriter<ProgressBarIter<Box<dyn Write>>>>;

#[derive(Debug, Args)]
pub struct Backup {
    /// File to create, which must not exist; - is stdout
    file: PathBuf,
}

impl Backup {
    pub async fn run(self, config: &Config, json: bool) -> Result<(), Error> {
        if json && self.is_stdout() {
            return Err(
                "--json prints a summary, but stdout is for the archive; add a file".into(),
            );
        }
        let session = Session::open(config).await?;
        let result = self.write_file(config, &session).await;
        session.close().await?;
        let (manifest, bytes) = result?;
        let summary = format!(
            "{bytes} bytes with {} pets and {} images",
            manifest.rows["pets"], manifest.images
        );
        if self.is_stdout() {
            eprintln!("wrote {summary}");
            return Ok(());
        }
        let value = json!({
            "file": self.file.display().to_string(),
            "bytes": bytes,
            "pets": manifest.rows["pets"],
            "images": manifest.images,
        });
        let text = format_args!("wrote {summary} to {}", self.file.display());
        print(json, text, &value)
    }

    fn is_stdout(&self) -> bool {
        self.file.as_os_str() == "-"
    }

    /// Returns the content of the archive, and its size in bytes. Removes the file after a failure.
    async fn write_file(
        &self,
        config: &Config,
        session: &Session,
    ) -> Result<(Manifest, u64), Error> {
        // Credentials and personal data: for the user of this process only.
        let file = (!self.is_stdout()).then(|| {
            let mut options = File::options();
            options.write(true).create_new(true).mode(0o600);
            let named = |error| format!("{}: {error}", self.file.display());
            options.open(&self.file).map_err(named)
        });
        let file = file.transpose()?;
        let out: Box<dyn Write> = match &file {
            Some(file) => Box::new(file.try_clone()?),
            None => Box::new(io::stdout().lock()),
        };
        let bar = ProgressBar::no_length();
        let bar = progress(bar, "{spinner} {binary_bytes} {binary_bytes_per_sec} {msg}")?;
        bar.enable_steady_tick(Duration::from_millis(100));
        let result = async {
            let manifest = write(config, session, out, &bar).await?;
            if let Some(file) = &file {
                file.sync_all()?;
            }
            Ok(manifest)
        };
        let result: Result<Manifest, Error> = result.await;
        bar.finish_and_clear();
        if result.is_err() && file.is_some() {
            fs::remove_file(&self.file)?;
        }
        Ok((result?, bar.position()))
    }
}

/// Writes the archive.
async fn write(
    config: &Config,
    session: &Session,
    out: Box<dyn Write>,
    bar: &ProgressBar,
) -> Result<Manifest, Error> {
    const OLDER: &str = "the schema is older than this program: back up with the program of its version, or upgrade it \
        with: pet-inventory migrate";
    const NEWER: &str =
        "the schema is newer than this program: back up with the program of its version";
    let pending = db::migrations::pending(&session.options, config.database.pooler).await?;
    if !pending.is_empty() {
        return Err(OLDER.into());
    }
    let database = Database::new(session.options.clone(), &config.database);
    let mut backup = backups::Backup::begin(database.connect_without_timeout().await?).await?;
    if backup.schema > db::migrations::latest() {
        return Err(NEWER.into());
    }
    let out = BufWriter::with_capacity(1 << 20, bar.wrap_write(out));
    let mut writer = Writer::new(out, backup.created_at);
    let header = Header {
        format: FORMAT,
        schema: backup.schema,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        created_at: backup.created_at,
    };
    writer.write_json("header", &header)?;
    let mut manifest = Manifest::default();
    for (table, rows) in TABLES {
        bar.set_message(table);
        let number = write_rows(&mut writer, &mut backup, table, rows).await?;
        manifest.rows.insert(table.to_owned(), number);
    }
    bar.set_message("images");
    let blobs = BlobStore::new(config)?;
    {
        let mut images = pin!(backup.images());
        while let Some(image) = images.try_next().await? {
            write_image(&mut writer, &blobs, &image).await?;
            manifest.images += 1;
        }
    }
    manifest.sequences = backup.sequences().await?;
    writer.write_json("manifest", &manifest)?;
    writer.finish()?;
    Ok(manifest)
}

/// Writes the rows of a table, and returns their number.
async fn write_rows(
    writer: &mut Writer,
    backup: &mut backups::Backup,
    table: &str,
    rows: &str,
) -> Result<u64, Error> {
    let kind = format!("tables/{table}");
    let (mut number, mut content) = (0, Vec::new());
    let mut chunks = pin!(backup.rows(rows).await?);
    while let Some(chunk) = chunks.try_next().await? {
        let chunk = chunk.as_ref();
        number += memchr::memchr_iter(b'\n', chunk).count() as u64;
        content.extend_from_slice(chunk);
        if content.len() >= archive::ROWS {
            writer.write(&kind, &content)?;
            content.clear();
        }
    }
    if !content.is_empty() {
        writer.write(&kind, &content)?;
    }
    Ok(number)
}

async fn write_image(
    writer: &mut Writer,
    blobs: &BlobStore,
    image: &StoredImage,
) -> Result<(), Error> {
    let failed = |reason: String| {
        let pet = image.pet_id.unwrap_or_default();
        let key = &image.key;
        format!(
            "the image store has no intact bytes of an image of pet {pet} ({key}): {reason}; check images.url, or delete \
             the image, and back up again"
        )
    };
    writer.begin(&format!("images/{}", image.sha256), image.size)?;
    let bytes = blobs.read(&image.key, 0..image.size).await;
    let mut bytes = pin!(bytes.map_err(|error| failed(error.to_string()))?);
    let mut digest = Sha256::new();
    while let Some(piece) = bytes.try_next().await? {
        digest.update(&piece);
        writer.content().write_all(&piece)?;
    }
    if archive::hexadecimal(digest) != image.sha256 {
        return Err(failed("their SHA-256 is another one".to_owned()).into());
    }
    Ok(writer.end(image.size)?)
}
