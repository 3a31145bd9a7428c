//! Reader of pet files: NDJSON, or CSV with a heading.
//!
//! Invariant: a record is valid exactly if `POST /pet` accepts it.

use std::{
    ffi::OsStr,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use clap::ValueEnum;
use serde_json::Value;

use super::output::Error;
use crate::{
    api::{self, error::Error as ApiError, extract::without_byte_order_mark},
    db::{exports, imports::Record},
};

/// Format of a pet file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One JSON object per line, as in responses of the API
    Ndjson,
    /// Columns id, name, status, category, photoUrls, tags; the last three hold JSON
    Csv,
}

impl Format {
    /// Returns the given format, or else that of the file's extension.
    pub fn of(format: Option<Self>, file: Option<&Path>) -> Result<Self, Error> {
        let extension = file.and_then(Path::extension).and_then(OsStr::to_str);
        match (format, extension.map(str::to_ascii_lowercase).as_deref()) {
            (Some(format), _) => Ok(format),
            (None, Some("ndjson" | "jsonl")) => Ok(Self::Ndjson),
            (None, Some("csv")) => Ok(Self::Csv),
            (None, _) => Err("unknown file format; pass --format ndjson or --format csv".into()),
        }
    }
}

impl From<Format> for exports::Format {
    fn from(format: Format) -> Self {
        match format {
            Format::Ndjson => Self::NDJSON,
            Format::Csv => Self::CSV,
        }
    }
}

/// Records, or the line and the problem of each that is invalid. After an I/O error the rest is not to be used.
pub type Records = Box<dyn Iterator<Item = io::Result<Result<Record, String>>>>;

/// Returns the records of a file except the first `skip`. Fails if the file cannot be read, or its heading has an unknown
/// column.
pub fn records(file: impl Read + 'static, format: Format, skip: u64) -> Result<Records, Error> {
    let reader = BufReader::with_capacity(1 << 20, file);
    let skip = usize::try_from(skip)?;
    Ok(match format {
        Format::Ndjson => Box::new(lines(reader).skip(skip).map(|line| {
            let (line, text) = line?;
            let json = serde_json::from_slice(&text).map_err(|error| error.to_string());
            Ok(record(line, json))
        })),
        Format::Csv => {
            let mut reader = csv::Reader::from_reader(reader);
            let columns = columns(reader.byte_headers()?)?;
            let records = reader.into_byte_records().skip(skip);
            Box::new(records.map(move |cells| match cells {
                Ok(cells) => {
                    let line = cells.position().map_or(0, csv::Position::line);
                    Ok(record(line, object(&columns, &cells)))
                }
                Err(error) => match error.position().map(csv::Position::line) {
                    Some(line) if !error.is_io_error() => Ok(Err(format!(
                        "line {line}: must have as many fields as the heading"
                    ))),
                    _ => Err(io::Error::other(error)),
                },
            }))
        }
    })
}

/// Returns the lines that are not blank, with their numbers from 1.
fn lines(reader: impl BufRead) -> impl Iterator<Item = io::Result<(u64, Vec<u8>)>> {
    (1..)
        .zip(reader.split(b'\n'))
        .map(|(number, line)| match number {
            1 => Ok((number, without_byte_order_mark(&line?).to_vec())),
            _ => Ok((number, line?)),
        })
        .filter(|line| !matches!(line, Ok((_, text)) if text.trim_ascii().is_empty()))
}

fn record(line: u64, json: Result<Value, String>) -> Result<Record, String> {
    let pet = json.and_then(|json| api::pets::read_new_pet(json).map_err(describe));
    pet.map(|pet| Record { line, pet })
        .map_err(|problem| format!("line {line}: {problem}"))
}

fn describe(error: ApiError) -> String {
    match error {
        ApiError::Invalid(violations) => violations
            .iter()
            .map(|violation| format!("{} {}", violation.field, violation.reason))
            .collect::<Vec<_>>()
            .join("; "),
        other => other.to_string(),
    }
}

/// Columns of a CSV file. Those after `status` hold JSON.
const COLUMNS: [&str; 6] = ["id", "name", "status", "category", "photoUrls", "tags"];

fn columns(heading: &csv::ByteRecord) -> Result<Vec<&'static str>, Error> {
    const REMEDY: &str = "use id, name, status, category, photoUrls and tags";
    let columns = heading.iter().map(|name| {
        let mut columns = COLUMNS.into_iter();
        let found = columns.find(|column| column.as_bytes() == name);
        found.ok_or_else(|| {
            let name = String::from_utf8_lossy(name);
            format!("line 1: unknown column {name:?}; {REMEDY}").into()
        })
    });
    columns.collect()
}

/// Converts a CSV record to JSON; an empty cell is an absent field.
fn object(columns: &[&str], record: &csv::ByteRecord) -> Result<Value, String> {
    let cells = columns.iter().zip(record);
    let present = cells.filter(|(_, cell)| !cell.is_empty());
    let members = present.map(|(name, cell)| {
        let text = str::from_utf8(cell).map_err(|_| format!("{name} is not UTF-8"));
        let value = match *name {
            "id" => text?
                .parse::<i64>()
                .map(Value::from)
                .map_err(|_| format!("{name} must be an integer"))?,
            "name" | "status" => text?.into(),
            _ => serde_json::from_slice(cell).map_err(|_| format!("{name} must be JSON"))?,
        };
        Ok((name.to_string(), value))
    });
    members.collect()
}
