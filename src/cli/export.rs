//! `export`: writes all pets to a file that `import` reads.

use std::{
    io::{self, BufWriter, Write},
    path::PathBuf,
    pin::pin,
    time::Duration,
};

use clap::Args;
use futures_util::TryStreamExt;
use indicatif::ProgressBar;
use serde_json::json;

use super::{
    output::{Error, Named, print, progress},
    partial_file::PartialFile,
    pet_file::Format,
    session::{connect_without_timeout, with_database},
};
use crate::{config::Config, db::exports, domain::pet::MAX_SIZE};

/// Permissions of the file: those of any new one.
const ANYONE: u32 = 0o666;

#[derive(Debug, Args)]
pub struct ExportPets {
    /// File to create, which must not exist; - or none: stdout
    file: Option<PathBuf>,
    /// Format; default: by the file's extension, .ndjson, .jsonl or .csv; to stdout, ndjson
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Put an apostrophe before texts that a spreadsheet would execute as formulas; for CSV. Import reads the
    /// apostrophes as part of the texts
    #[arg(long)]
    spreadsheet_safe: bool,
}

impl ExportPets {
    pub async fn run(self, config: &Config, json: bool) -> Result<(), Error> {
        let path = self.file.filter(|file| file.as_os_str() != "-");
        let format = match Format::of(self.format, path.as_deref())? {
            Format::Csv if self.spreadsheet_safe => exports::Format::SPREADSHEET_CSV,
            Format::Ndjson if self.spreadsheet_safe => {
                return Err("--spreadsheet-safe is for CSV; add --format csv".into());
            }
            format => format.into(),
        };
        if json && path.is_none() {
            return Err("--json prints a summary, but stdout is for the pets; add a file".into());
        }
        let file = path.as_deref();
        let file = file.map(|file| PartialFile::create(file, ANYONE));
        let file = file.transpose()?;
        let out: Box<dyn Write> = match &file {
            Some(file) => Box::new(file.open()?),
            None => Box::new(Named::new("stdout", io::stdout().lock())),
        };
        let bar = ProgressBar::no_length();
        let bar = progress(bar, "{spinner} {binary_bytes} {binary_bytes_per_sec}")?;
        let exported = with_database(config, async |database| {
            let mut connection = connect_without_timeout(config, database).await?;
            bar.enable_steady_tick(Duration::from_millis(100));
            let mut out = BufWriter::with_capacity(1 << 20, out);
            {
                let mut pieces = pin!(exports::copy(&mut connection, format).await?);
                while let Some(piece) = pieces.try_next().await? {
                    out.write_all(piece.as_ref())?;
                    bar.inc(piece.as_ref().len() as u64);
                }
            }
            out.flush()?;
            Ok(exports::count_too_large(&mut connection).await?)
        });
        let too_large = exported.await?;
        bar.finish_and_clear();
        if let Some(file) = file {
            file.finish()?;
        }
        if too_large > 0 {
            eprintln!(
                "{too_large} of the pets have more than {MAX_SIZE} bytes: an import refuses them; make them smaller, or \
                 use backup and restore"
            );
        }
        match path {
            Some(path) => {
                let (bytes, path) = (bar.position(), path.display());
                let value = json!({"file": path.to_string(), "bytes": bytes});
                print(json, format_args!("wrote {bytes} bytes to {path}"), &value)
            }
            None => Ok(()),
        }
    }
}
