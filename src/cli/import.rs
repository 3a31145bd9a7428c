//! `import`: the pets of a file, all of them or none.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal},
    path::{Path, PathBuf},
};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};

use super::{
    Error,
    pet_file::{self, Bad, Format},
    say,
    session::{unhurried, with_database},
};
use crate::{
    config::Config,
    db::{
        SecretHash,
        imports::{Import, Outcome, Taken},
    },
};

/// How many records are gathered at once: some megabytes.
const CHUNK: usize = 10_000;
/// How many bad records are told of.
const TOLD: usize = 100;

/// Add the pets of a file, all of them or none.
///
/// Each record must be as POST /pet takes it; without an id it is given one. Bad records are named by
/// their lines, and then nothing is added. Interrupted, the same command goes on where it was.
#[derive(Debug, Args)]
pub struct ImportPets {
    /// The file.
    file: PathBuf,
    /// How it is written; without it, its name says so: .ndjson, .jsonl or .csv.
    #[arg(long, value_enum)]
    format: Option<Format>,
}

impl ImportPets {
    /// Runs the command.
    pub async fn run(self, config: &Config) -> Result<(), Error> {
        let format = Format::of(self.format, Some(&self.file))?;
        let digest =
            sha256(&self.file).map_err(|error| format!("{}: {error}", self.file.display()))?;
        let said = with_database(config, async |database| {
            let import = Import::open(unhurried(database).await?, &digest).await?;
            let import = import.ok_or("another import is running: wait until it has ended")?;
            self.import(import, format).await
        })
        .await?;
        say(said)?;
        Ok(())
    }

    async fn import(&self, mut import: Import, format: Format) -> Result<String, Error> {
        if import.gathered() > 0 {
            eprintln!("going on after {} records read before", import.gathered());
        }
        let progress = progress(self.file.metadata()?.len());
        let bar = progress.clone();
        let wrap = move |file| bar.wrap_read(file);
        let mut bad = Vec::new();
        let mut chunk = Vec::with_capacity(CHUNK);
        for record in pet_file::records(&self.file, format, import.gathered(), wrap)? {
            match record? {
                Ok(record) => chunk.push(record),
                Err(record) => bad.push(record),
            }
            if bad.len() == TOLD {
                break;
            }
            // With a bad record nothing will be added: the rest is read to find more of them.
            if chunk.len() == CHUNK {
                if bad.is_empty() {
                    import.gather(&chunk).await?;
                }
                chunk.clear();
            }
        }
        if !bad.is_empty() {
            progress.finish_and_clear();
            return Err(self.mend(&bad).into());
        }
        import.gather(&chunk).await?;
        progress.set_message("adding them");
        let outcome = import.finish().await?;
        progress.finish_and_clear();
        match outcome {
            Outcome::Added(count) => Ok(format!("added {count} pets")),
            Outcome::Taken(taken) => Err(self.mend(&taken).into()),
            Outcome::Raced => {
                Err("a client added a pet with an id of the file meanwhile; nothing was added: try again".into())
            }
        }
    }

    fn mend(&self, reasons: &[impl ToString]) -> String {
        let reasons: Vec<_> = reasons.iter().map(ToString::to_string).collect();
        let more = if reasons.len() >= TOLD {
            ", and maybe more"
        } else {
            ""
        };
        format!(
            "nothing was added; mend these lines of {} and try again{more}:\n{}",
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

impl std::fmt::Display for Taken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { line, id, by_a_pet } = self;
        let who = if *by_a_pet {
            "a pet has it"
        } else {
            "an earlier line has it"
        };
        write!(f, "line {line}: id {id} is in use: {who}")
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

/// A bar of so many bytes on the terminal, if stderr is one.
fn progress(length: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{wide_bar} {percent}% {binary_bytes_per_sec} {eta} {msg}");
    ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
