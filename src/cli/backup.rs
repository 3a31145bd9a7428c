//! `backup`: writes the database and the images to an archive, as one consistent snapshot.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    os::fd::AsFd as _,
    path::PathBuf,
    pin::pin,
    time::Duration,
};

use chrono::{DateTime, Utc};
use clap::Args;
use futures_util::TryStreamExt as _;
use indicatif::{ProgressBar, ProgressBarIter};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::json;

use super::{
    archive::{self, FORMAT, Header, Manifest},
    output::{Error, Named, counted, print, progress},
    partial_file::{PartialFile, remove_interrupted},
    session::Session,
    stored_images::{self, Fault},
};
use crate::{
    blob_store::BlobStore,
    config::Config,
    db::{
        self, Database,
        backups::{self, StoredImage, Table},
    },
    telemetry::build::BUILD,
};

/// Maximum time for which a pipe takes nothing. Meanwhile, the snapshot holds back vacuum in the whole
/// database, and the deletion of bytes of images.
const STALL: Duration = Duration::from_mins(5);
/// Permissions of the file: an archive has credentials and personal data.
const OWNER_ONLY: u32 = 0o600;
/// Size of the pieces that are written to a pipe, in bytes. A pipe that is ready for writing has room for this (POSIX).
const PIPE_BUF: usize = 4_096;

type Writer = archive::Writer<BufWriter<ProgressBarIter<Box<dyn Write>>>>;

#[derive(Debug, Args)]
pub struct Backup {
    /// File to create, which must not exist; - is stdout
    file: PathBuf,
    /// Leave out the images that are missing or damaged in the image store, and list them, in place of a failure
    #[arg(long)]
    without_missing_images: bool,
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
        let (manifest, left_out, bytes) = result?;
        for fault in &left_out {
            eprintln!("left out: {}", fault.text);
        }
        let summary = format!(
            "{bytes} bytes with {} and {}",
            counted(manifest.rows["pets"], "pet"),
            counted(manifest.images, "image")
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
            "imagesLeftOut": left_out.len(),
        });
        let text = format_args!("wrote {summary} to {}", self.file.display());
        print(json, text, &value)
    }

    fn is_stdout(&self) -> bool {
        self.file.as_os_str() == "-"
    }

    /// Returns the content of the archive, the images that it leaves out, and its size in bytes.
    async fn write_file(
        &self,
        config: &Config,
        session: &Session,
    ) -> Result<(Manifest, Vec<Fault>, u64), Error> {
        let file = (!self.is_stdout()).then(|| {
            for removed in remove_interrupted(&self.file, archive::BEGINNING) {
                eprintln!(
                    "removed {}, which an interrupted backup had left",
                    removed.display()
                );
            }
            PartialFile::create(&self.file, OWNER_ONLY)
        });
        let file = file.transpose()?;
        let out: Box<dyn Write> = match &file {
            Some(file) => Box::new(file.open()?),
            None => Box::new(Named::new(
                "stdout",
                Pipe {
                    file: io::stdout().as_fd().try_clone_to_owned()?.into(),
                    stall: STALL,
                    has_failed: false,
                },
            )),
        };
        let bar = ProgressBar::no_length();
        let bar = progress(bar, "{spinner} {binary_bytes} {binary_bytes_per_sec} {msg}")?;
        bar.enable_steady_tick(Duration::from_millis(100));
        let database = Database::new(session.options.clone(), &config.database);
        let written = self.write(config, session, &database, out, &bar).await;
        bar.finish_and_clear();
        let (created_at, manifest, left_out) = written?;
        if let Some(file) = file {
            file.finish()?;
        }
        let stored =
            database.run(async |connection| backups::set_last(connection, created_at).await);
        if let Err(error) = stored.await {
            eprintln!("the time of this backup is not in the metrics: {error}");
        }
        Ok((manifest, left_out, bar.position()))
    }

    /// Writes the archive. Returns the time of its snapshot, its content, and the images that it leaves out.
    async fn write(
        &self,
        config: &Config,
        session: &Session,
        database: &Database,
        out: Box<dyn Write>,
        bar: &ProgressBar,
    ) -> Result<(DateTime<Utc>, Manifest, Vec<Fault>), Error> {
        const OLDER: &str = "the schema is older than this program: back up with the program of its version, or upgrade it \
            with: pet-inventory migrate";
        let pending = db::migrations::pending(&session.options, config.database.pooler).await?;
        if !pending.is_empty() {
            return Err(OLDER.into());
        }
        let mut backup = backups::Backup::begin(database.connect_without_timeout().await?).await?;
        let blobs = BlobStore::new(config)?;
        let out = BufWriter::with_capacity(1 << 20, bar.wrap_write(out));
        let mut writer = Writer::new(out, backup.created_at);
        let header = Header {
            format: FORMAT,
            // A schema of the next release has its tables and columns, too.
            schema: db::schema::latest(),
            program: BUILD.clone(),
            created_at: backup.created_at,
            tables: backup.tables.clone(),
        };
        writer.write_json("header", &header)?;
        let left_out = if self.without_missing_images {
            let found = stored_images::find_faults(&mut backup, &blobs, bar);
            found.await?.1
        } else {
            Vec::new()
        };
        backup.left_out = left_out.iter().map(|fault| fault.sha256.clone()).collect();
        let mut manifest = Manifest::default();
        for table in header.tables {
            bar.set_message(table.name.clone());
            let number = write_rows(&mut writer, &mut backup, &table).await?;
            manifest.rows.insert(table.name, number);
        }
        bar.set_message("images");
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
        Ok((header.created_at, manifest, left_out))
    }
}

/// Pipe, or another stdout, that must take something within a time. After a failure, it takes nothing more: the archive ends itself
/// when it is dropped.
struct Pipe {
    file: File,
    stall: Duration,
    has_failed: bool,
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut pipe = [PollFd::new(self.file.as_fd(), PollFlags::POLLOUT)];
        let timeout = PollTimeout::try_from(self.stall).unwrap_or(PollTimeout::MAX);
        if self.has_failed || poll(&mut pipe, timeout)? == 0 {
            self.has_failed = true;
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the reader of the archive has taken nothing for 5 minutes",
            ));
        }
        self.file.write(&bytes[..bytes.len().min(PIPE_BUF)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the rows of a table, and returns their number.
async fn write_rows(
    writer: &mut Writer,
    backup: &mut backups::Backup,
    table: &Table,
) -> Result<u64, Error> {
    let kind = format!("tables/{}", table.name);
    if kind.len() > archive::MAX_KIND {
        return Err(format!(
            "the name of the table {} is too long for an archive: rename it, or move it to another schema",
            table.name
        )
        .into());
    }
    let (mut number, mut content) = (0, Vec::new());
    let mut chunks = pin!(backup.rows(table).await?);
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
    let bytes = stored_images::read(blobs, image).await?.map_err(|fault| {
        format!(
            "{}; check images.url, list all such images with: pet-inventory check --images, then copy their files back or \
             delete the images, or leave them out: --without-missing-images",
            fault.text
        )
    })?;
    writer.write("images", &bytes)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn pipe_takes_all_or_ends_after_the_time() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let out = File::from(std::os::fd::OwnedFd::from(writer));
        let written = vec![7; 1 << 20];
        let pipe = |stall| Pipe {
            file: out.try_clone().expect("a copy"),
            stall,
            has_failed: false,
        };
        let mut unread = pipe(Duration::from_millis(50));
        let error = unread.write_all(&written).expect_err("no reader");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        unread.stall = STALL;
        assert!(unread.write_all(&written).is_err(), "at once");
        let reads = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).map(|_| bytes.len())
        });
        pipe(STALL).write_all(&written).expect("a reader");
        drop((unread, out));
        let read = reads.join().expect("its end").expect("bytes");
        assert!(read > written.len(), "{read}");
    }
}
