//! `export`: writes all pets to a file that `import` reads.

use std::{
    fs::File,
    io::{self, BufWriter, IsTerminal, Write},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use futures_util::TryStreamExt;
use indicatif::{ProgressBar, ProgressStyle};

use super::{
    output::{Error, say},
    pet_file::Format,
    session::{connect_without_timeout, with_database},
};
use crate::{config::Config, db};

#[derive(Debug, Args)]
pub struct ExportPets {
    /// File to create, which must not exist; default: stdout
    file: Option<PathBuf>,
    /// Format; default: by the file's extension, .ndjson, .jsonl or .csv
    #[arg(long, value_enum)]
    format: Option<Format>,
}

impl ExportPets {
    pub async fn run(self, config: &Config) -> Result<(), Error> {
        let format = Format::of(self.format, self.file.as_deref())?;
        let mut out: Box<dyn Write> = match &self.file {
            Some(file) => Box::new(
                File::create_new(file).map_err(|error| format!("{}: {error}", file.display()))?,
            ),
            None => Box::new(io::stdout().lock()),
        };
        let bytes = with_database(config, async |database| {
            let mut connection = connect_without_timeout(database).await?;
            let progress = progress();
            let mut pieces =
                std::pin::pin!(db::exports::copy(&mut connection, format.into()).await?);
            let mut buffered = BufWriter::with_capacity(1 << 20, &mut out);
            while let Some(piece) = pieces.try_next().await? {
                buffered.write_all(piece.as_ref())?;
                progress.inc(piece.as_ref().len() as u64);
            }
            buffered.flush()?;
            drop(buffered);
            progress.finish_and_clear();
            Ok(progress.position())
        })
        .await?;
        if let Some(file) = &self.file {
            say(format_args!("wrote {bytes} bytes to {}", file.display()))?;
        }
        Ok(())
    }
}

fn progress() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {binary_bytes} {binary_bytes_per_sec}");
    let bar = ProgressBar::no_length();
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
