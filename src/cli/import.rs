//! `import`: adds the pets of a file, all of them or none.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal},
    path::{Path, PathBuf},
};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};

use super::{
    output::{Error, say},
    pet_file::{self, Bad, Format},
    session::{connect_without_timeout, with_database},
};
use crate::{
    config::Config,
    db::{
        SecretHash,
        imports::{Conflict, Import, ImportOutcome},
    },
};

/// Number of records that are staged at once: some megabytes.
const CHUNK: usize = 10_000;
/// Maximum number of invalid records in an error.
const TOLD: usize = 100;

#[derive(Debug, Args)]
pub struct ImportPets {
    /// File to read
    file: PathBuf,
    /// Format; default: by the file's extension, .ndjson, .jsonl or .csv
    #[arg(long, value_enum)]
    format: Option<Format>,
}

impl ImportPets {
    pub async fn run(self, config: &Config) -> Result<(), Error> {
        let format = Format::of(self.format, Some(&self.file))?;
        let digest =
            sha256(&self.file).map_err(|error| format!("{}: {error}", self.file.display()))?;
        let summary = with_database(config, async |database| {
            let import = Import::open(connect_without_timeout(database).await?, &digest).await?;
            let import = import
                .ok_or("another import is in progress; run the command again when it has ended")?;
            self.import(import, format).await
        })
        .await?;
        say(summary)?;
        Ok(())
    }

    async fn import(&self, mut import: Import, format: Format) -> Result<String, Error> {
        if import.staged > 0 {
            eprintln!("resuming after {} records", import.staged);
        }
        let progress = progress(self.file.metadata()?.len());
        let bar = progress.clone();
        let wrap = move |file| bar.wrap_read(file);
        let mut bad = Vec::new();
        let mut chunk = Vec::with_capacity(CHUNK);
        for record in pet_file::records(&self.file, format, import.staged, wrap)? {
            match record? {
                Ok(record) => chunk.push(record),
                Err(record) => bad.push(record),
            }
            if bad.len() == TOLD {
                break;
            }
            // After an invalid record nothing is added; the rest is read only to report more of them.
            if chunk.len() == CHUNK {
                if bad.is_empty() {
                    import.stage(&chunk).await?;
                }
                chunk.clear();
            }
        }
        if !bad.is_empty() {
            progress.finish_and_clear();
            return Err(self.mend(&bad).into());
        }
        import.stage(&chunk).await?;
        progress.set_message("adding pets");
        let outcome = import.finish().await?;
        progress.finish_and_clear();
        match outcome {
            ImportOutcome::Added(count) => Ok(format!("added {count} pets")),
            ImportOutcome::Conflicts(conflicts) => Err(self.mend(&conflicts).into()),
            ImportOutcome::ConcurrentInsert => {
                Err("no pets were added: a client has just used an id of the file; run the command again".into())
            }
        }
    }

    fn mend(&self, reasons: &[impl ToString]) -> String {
        let reasons: Vec<_> = reasons.iter().map(ToString::to_string).collect();
        let more = if reasons.len() >= TOLD {
            format!(" (first {TOLD} problems)")
        } else {
            String::new()
        };
        format!(
            "no pets were added; fix these lines of {} and run the command again{more}:\n{}",
            self.file.display(),
            reasons.join("\n")
        )
    }
}

impl std::fmt::Display for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

impl std::fmt::Display for Conflict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            line,
            id,
            is_stored,
        } = self;
        let holder = if *is_stored {
            "a stored pet"
        } else {
            "an earlier line"
        };
        write!(f, "line {line}: id {id} is already used by {holder}")
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

/// Creates a progress bar of `length` bytes, hidden unless stderr is a terminal.
fn progress(length: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{wide_bar} {percent}% {binary_bytes_per_sec} {eta} {msg}");
    ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
