//! Archive of a backup: a tar file, written and read as a stream. Of the images, one at a time and the keys of all are held in
//! memory.
//!
//! | Entry, in this order | Content |
//! |---|---|
//! | `header/SHA256` | [`Header`] |
//! | `tables/NAME/SHA256` | rows of a table in the text format of `COPY`; any number per table |
//! | `images/SHA256` | bytes of an image |
//! | `manifest/SHA256` | [`Manifest`] |
//!
//! Invariants:
//! - Each name ends with the SHA-256 of the content, and the manifest counts the rows and images. So a reader finds damaged,
//!   incomplete and missing entries.
//! - Entries are regular files with names of up to 100 bytes: a reader refuses all extensions of tar.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

use super::output::Error;
use crate::db::backups::{Sequences, Table};

/// Version of the format.
pub const FORMAT: u32 = 3;
/// Entries of rows are ended at this size, in bytes, after the current row.
pub const ROWS: usize = 4 << 20;
/// First bytes of an archive: the path of the header.
pub const BEGINNING: &[u8] = b"header/";
/// Maximum size of the path of an entry without its SHA-256, in bytes.
pub const MAX_KIND: usize = 100 - "/".len() - 64;
/// Size of the pieces in which entries are read, in bytes.
const PIECE: u64 = 128 << 10;
/// Maximum size of a header or manifest, in bytes.
const MAX_JSON: u64 = 1 << 20;
const TRUNCATED: &str = "the archive is incomplete";
/// Error of an archive with content that the program does not write.
pub const DAMAGED: &str = "the archive is damaged";
/// Error of a file that is not an archive.
pub const UNKNOWN: &str = "this is not a backup that pet-inventory has written";

/// Origin of an archive.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// [`FORMAT`].
    pub format: u32,
    /// Version of the schema of the rows.
    pub schema: i64,
    /// Version and commit of the program that wrote the archive.
    pub program: String,
    /// Time of the snapshot.
    pub created_at: DateTime<Utc>,
    /// Tables, with the columns of their rows. Formats up to 2 had none.
    #[serde(default)]
    pub tables: Vec<Table>,
}

impl Header {
    /// Returns true if the version of the program and the names can be printed.
    pub fn is_valid(&self) -> bool {
        let columns = self.tables.iter().flat_map(|table| &table.columns);
        let mut names = self.tables.iter().map(|table| &table.name).chain(columns);
        (1..=64).contains(&self.program.len())
            && (self.program.bytes()).all(|it| matches!(it, b' '..=b'~'))
            && names.all(|name| !name.contains(char::is_control))
    }
}

/// Content of an archive.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Number of rows by table.
    pub rows: BTreeMap<String, u64>,
    /// Number of images.
    pub images: u64,
    /// Sequences of the database.
    pub sequences: Sequences,
}

/// Returns a SHA-256 in hexadecimal.
pub fn hexadecimal(digest: Sha256) -> String {
    format!("{:x}", Bytes::copy_from_slice(&digest.finalize()))
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && (text.bytes()).all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Writes an archive.
pub struct Writer<W: Write> {
    archive: tar::Builder<W>,
    created_at: DateTime<Utc>,
}

impl<W: Write> Writer<W> {
    /// Creates the writer of an archive with the given modification time.
    pub fn new(out: W, created_at: DateTime<Utc>) -> Self {
        Self {
            archive: tar::Builder::new(out),
            created_at,
        }
    }

    /// Writes an entry `kind/SHA256`. Returns the SHA-256 of the content, in hexadecimal.
    pub fn write(&mut self, kind: &str, content: &[u8]) -> io::Result<String> {
        let sha256 = hexadecimal(Sha256::new().chain_update(content));
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(self.created_at.timestamp()).unwrap_or_default());
        let path = format!("{kind}/{sha256}");
        self.archive.append_data(&mut header, path, content)?;
        Ok(sha256)
    }

    /// Writes a header or manifest, and passes on what is buffered: an interrupted archive is recognized by its [`BEGINNING`].
    pub fn write_json(&mut self, kind: &str, content: &impl Serialize) -> Result<(), Error> {
        self.write(kind, &serde_json::to_vec(content)?)?;
        Ok(self.archive.get_mut().flush()?)
    }

    /// Writes the end of the archive.
    pub fn finish(self) -> io::Result<()> {
        self.archive.into_inner()?.flush()
    }
}

/// Entry of an archive that is being read.
pub struct Entry<'a, R: Read> {
    /// Path without the SHA-256.
    pub kind: String,
    /// SHA-256 of the content, in hexadecimal.
    pub sha256: String,
    content: tar::Entry<'a, R>,
}

impl<'a, R: Read> Entry<'a, R> {
    /// Reads the head of the next entry, of [raw](tar::Entries::raw) ones. Fails at the end of the archive.
    pub fn next(entries: &mut tar::Entries<'a, R>) -> Result<Self, Error> {
        let entry = entries.next().ok_or(TRUNCATED)?;
        let content = entry.map_err(|error| format!("{DAMAGED}: {error}"))?;
        if !content.header().entry_type().is_file() {
            return Err(UNKNOWN.into());
        }
        let path = content.path()?;
        let (kind, sha256) = path
            .to_str()
            .and_then(|path| path.rsplit_once('/'))
            .filter(|(_, sha256)| is_sha256(sha256))
            .ok_or(UNKNOWN)?;
        Ok(Self {
            kind: kind.to_owned(),
            sha256: sha256.to_owned(),
            content,
        })
    }

    /// Returns the size of the content, in bytes.
    pub fn size(&self) -> u64 {
        self.content.size()
    }

    /// Passes on the content in pieces. Fails at its end if it is damaged or incomplete.
    pub async fn read(
        &mut self,
        mut write: impl AsyncFnMut(Vec<u8>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut digest = Sha256::new();
        loop {
            let mut piece = Vec::new();
            let content = &mut self.content;
            content.take(PIECE).read_to_end(&mut piece)?;
            if piece.is_empty() {
                break;
            }
            digest.update(&piece);
            write(piece).await?;
        }
        if hexadecimal(digest) != self.sha256 {
            return Err(format!("{DAMAGED} or incomplete: {}/{}", self.kind, self.sha256).into());
        }
        Ok(())
    }

    /// Reads a header or manifest.
    pub async fn read_json<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        if self.size() > MAX_JSON {
            return Err(DAMAGED.into());
        }
        let mut json = Vec::new();
        self.read(async |piece| {
            json.extend::<Vec<u8>>(piece);
            Ok(())
        })
        .await?;
        Ok(serde_json::from_slice(&json)?)
    }
}
