//! `import`: adds the pets of a file, all of them or none.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    process,
    time::Duration,
};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tokio::signal;

use super::{
    output::{Error, counted, print, progress, report},
    pet_file::{self, Format},
    session::{connect_without_timeout, with_database},
};
use crate::{config::Config, db::imports::Import};

/// Maximum number of records in a statement: 16 MB of the largest pets.
const CHUNK: usize = 1_000;
/// Exit code that shells report for a program ended by SIGINT.
const INTERRUPTED_CODE: i32 = 128 + 2;
/// Maximum number of problems in an error.
const MAX_PROBLEMS: usize = 100;

#[derive(Debug, Args)]
pub struct ImportPets {
    /// File to read; - is stdin
    file: PathBuf,
    /// Format; default: by the file's extension, .ndjson, .jsonl or .csv
    #[arg(long, value_enum)]
    format: Option<Format>,
}

impl ImportPets {
    pub async fn run(self, config: &Config, json: bool) -> Result<(), Error> {
        let format = Format::of(self.format, Some(&self.file))?;
        let (file, bar) = open(&self.file)?;
        let count = with_database(config, async |database| {
            let connection = connect_without_timeout(config, database).await?;
            let import = Import::begin(connection).await?;
            self.import(import, file, &bar, (format, json)).await
        });
        let count = count.await;
        bar.finish_and_clear();
        let count = count?;
        print(
            json,
            format_args!("added {}", counted(count, "pet")),
            &json!({"added": count}),
        )
    }

    /// Returns the number of added pets.
    async fn import(
        &self,
        mut import: Import,
        file: Box<dyn Read>,
        bar: &ProgressBar,
        (format, json): (Format, bool),
    ) -> Result<u64, Error> {
        let interrupted = tokio::spawn(end_if_interrupted(json));
        // By line.
        let mut problems = BTreeMap::new();
        let mut chunk = Vec::with_capacity(CHUNK);
        for record in pet_file::records(bar.wrap_read(file), format)? {
            match record? {
                Ok(record) => chunk.push(record),
                Err((line, problem)) => _ = problems.insert(line, problem),
            }
            if problems.len() == MAX_PROBLEMS {
                break;
            }
            if chunk.len() == CHUNK {
                import.add(&chunk).await?;
                chunk.clear();
            }
        }
        import.add(&chunk).await?;
        // The file is read; how long the rest takes is not known.
        bar.set_style(ProgressStyle::with_template("{spinner} {msg} {elapsed}")?);
        bar.set_message("adding pets");
        bar.enable_steady_tick(Duration::from_millis(200));
        // Also beside invalid records, so that all problems are known at once.
        for conflict in import.find_conflicts(MAX_PROBLEMS).await? {
            let holder = if conflict.is_stored {
                "a stored pet"
            } else {
                "an earlier line"
            };
            let problem = format!("id {} is already used by {holder}", conflict.id);
            problems.insert(conflict.line, problem);
        }
        if !problems.is_empty() {
            return Err(self.failed(&problems));
        }
        // From here on, an interrupt would not tell if the pets were added.
        interrupted.abort();
        let added = import.finish().await?;
        added.ok_or_else(|| {
            "no pets were added: a client has just used an id of the file; run the command again".into()
        })
    }

    fn failed(&self, problems: &BTreeMap<u64, String>) -> Error {
        let more = if problems.len() >= MAX_PROBLEMS {
            format!(" (first {MAX_PROBLEMS} problems)")
        } else {
            String::new()
        };
        let lines: Vec<_> = problems
            .iter()
            .take(MAX_PROBLEMS)
            .map(|(line, problem)| format!("line {line}: {problem}"))
            .collect();
        format!(
            "no pets were added; fix these lines of {} and run the command again{more}:\n{}",
            self.file.display(),
            lines.join("\n")
        )
        .into()
    }
}

/// Ends the program at Ctrl-C, also while it waits for a terminal, and says what that means.
#[expect(
    clippy::disallowed_methods,
    reason = "a read from a terminal does not end; an embedded PostgreSQL is stopped as after a kill"
)]
async fn end_if_interrupted(json: bool) {
    if signal::ctrl_c().await.is_ok() {
        report("interrupted: no pets were added", json);
        process::exit(INTERRUPTED_CODE);
    }
}

/// Opens a file, or stdin, with a progress bar. The size of a pipe is not known.
fn open(path: &Path) -> Result<(Box<dyn Read>, ProgressBar), Error> {
    let unreadable = |error: io::Error| format!("{}: {error}", path.display());
    let (file, size): (Box<dyn Read>, _) = if path == Path::new("-") {
        (Box::new(io::stdin()), 0)
    } else {
        let file = File::open(path).map_err(unreadable)?;
        let size = file.metadata().map_err(unreadable)?.len();
        (Box::new(file), size)
    };
    let bar = match size {
        0 => progress(
            ProgressBar::no_length(),
            "{spinner} {binary_bytes} {binary_bytes_per_sec}",
        ),
        size => progress(
            ProgressBar::new(size),
            "{wide_bar} {percent}% {binary_bytes_per_sec} {eta}",
        ),
    };
    Ok((file, bar?))
}
