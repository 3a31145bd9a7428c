//! `import`: adds the pets of a file, all of them or none.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
};

use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{
    output::{Error, print, progress},
    pet_file::{self, Format},
    session::{connect_without_timeout, with_database},
};
use crate::{
    config::Config,
    db::{
        SecretHash,
        imports::{Import, ImportOutcome},
    },
};

/// Maximum number of records that are staged at once.
const CHUNK: usize = 10_000;
/// Number of bytes of the file after which they are staged, too: pets have up to a megabyte each.
const CHUNK_BYTES: u64 = 4 << 20;
/// Maximum number of invalid records in an error.
const MAX_PROBLEMS: usize = 100;

#[derive(Debug, Args)]
pub struct ImportPets {
    /// File to read
    file: PathBuf,
    /// Format; default: by the file's extension, .ndjson, .jsonl or .csv
    #[arg(long, value_enum)]
    format: Option<Format>,
}

impl ImportPets {
    pub async fn run(self, config: &Config, json: bool) -> Result<(), Error> {
        let format = Format::of(self.format, Some(&self.file))?;
        let digest =
            sha256(&self.file).map_err(|error| format!("{}: {error}", self.file.display()))?;
        let count = with_database(config, async |database| {
            let connection = connect_without_timeout(config, database).await?;
            let import = Import::open(connection, &digest).await?;
            let import = import
                .ok_or("another import is in progress; run the command again when it has ended")?;
            self.import(import, format).await
        })
        .await?;
        print(
            json,
            format_args!("added {count} pets"),
            &json!({"added": count}),
        )
    }

    /// Returns the number of added pets.
    async fn import(&self, mut import: Import, format: Format) -> Result<u64, Error> {
        if import.staged > 0 {
            eprintln!("resuming after {} records", import.staged);
        }
        let bar = ProgressBar::new(self.file.metadata()?.len());
        let bar = progress(
            bar,
            "{wide_bar} {percent}% {binary_bytes_per_sec} {eta} {msg}",
        )?;
        let reader = bar.wrap_read(File::open(&self.file)?);
        let mut invalid = Vec::new();
        let mut chunk = Vec::with_capacity(CHUNK);
        let mut chunk_begins = 0;
        for record in pet_file::records(reader, format, import.staged)? {
            match record? {
                Ok(record) => chunk.push(record),
                Err(problem) => invalid.push(problem),
            }
            if invalid.len() == MAX_PROBLEMS {
                break;
            }
            // After an invalid record nothing is added; the rest is read only to report more of them.
            if chunk.len() == CHUNK || bar.position() - chunk_begins >= CHUNK_BYTES {
                if invalid.is_empty() {
                    import.stage(&chunk).await?;
                }
                chunk.clear();
                chunk_begins = bar.position();
            }
        }
        if !invalid.is_empty() {
            bar.finish_and_clear();
            return Err(self.failed(&invalid));
        }
        import.stage(&chunk).await?;
        bar.set_message("adding pets");
        let outcome = import.finish().await?;
        bar.finish_and_clear();
        match outcome {
            ImportOutcome::Added(count) => Ok(count),
            ImportOutcome::Conflicts(conflicts) => {
                let problems = conflicts.iter().map(|it| {
                    let holder = if it.is_stored { "a stored pet" } else { "an earlier line" };
                    format!("line {}: id {} is already used by {holder}", it.line, it.id)
                });
                Err(self.failed(&problems.collect::<Vec<_>>()))
            }
            ImportOutcome::ConcurrentInsert => {
                Err("no pets were added: a client has just used an id of the file; run the command again".into())
            }
        }
    }

    fn failed(&self, problems: &[String]) -> Error {
        let more = if problems.len() >= MAX_PROBLEMS {
            format!(" (first {MAX_PROBLEMS} problems)")
        } else {
            String::new()
        };
        format!(
            "no pets were added; fix these lines of {} and run the command again{more}:\n{}",
            self.file.display(),
            problems.join("\n")
        )
        .into()
    }
}

fn sha256(file: &Path) -> io::Result<SecretHash> {
    let mut digest = Sha256::new();
    let mut reader = BufReader::with_capacity(1 << 20, File::open(file)?);
    loop {
        let piece = reader.fill_buf()?;
        if piece.is_empty() {
            return Ok(digest.finalize().into());
        }
        digest.update(piece);
        let length = piece.len();
        reader.consume(length);
    }
}
