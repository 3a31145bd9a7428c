//! Reader of pet files: NDJSON, or CSV with a heading.
//!
//! Invariant: a record is valid exactly if `POST /pet` accepts it.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use clap::ValueEnum;
use serde_json::{Map, Value};

use super::output::Error;
use crate::{
    api::{self, error::Error as ApiError},
    db::{exports, imports::Record},
    domain::pet::NewPet,
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
        let name = || file?.extension()?.to_str();
        match (format, name().map(str::to_ascii_lowercase).as_deref()) {
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
            Format::Ndjson => Self::Ndjson,
            Format::Csv => Self::Csv,
        }
    }
}

/// Invalid record.
#[derive(Debug)]
pub struct Bad {
    /// First line of the record, from 1.
    pub line: u64,
    /// Problem.
    pub reason: String,
}

/// Records of a file. After an I/O error the rest is not to be used.
pub type Records = Box<dyn Iterator<Item = io::Result<Result<Record, Bad>>>>;

/// Returns the records of a file except the first `skip`. `wrap` wraps the file, to report progress.
///
/// # Errors
/// When the file cannot be read, or its heading has an unknown column.
pub fn records<R: Read + 'static>(
    file: &Path,
    format: Format,
    skip: u64,
    wrap: impl FnOnce(File) -> R,
) -> Result<Records, Error> {
    let reader = BufReader::with_capacity(1 << 20, wrap(File::open(file)?));
    let skip = usize::try_from(skip)?;
    Ok(match format {
        Format::Ndjson => Box::new(lines(reader).skip(skip).map(|line| {
            let (line, text) = line?;
            let json = serde_json::from_slice(&text).map_err(|error| error.to_string());
            Ok(read(line, json))
        })),
        Format::Csv => {
            let mut reader = csv::ReaderBuilder::new().from_reader(reader);
            let columns = columns(reader.byte_headers()?)?;
            Box::new(reader.into_byte_records().skip(skip).map(move |record| {
                let record = match record {
                    Ok(record) => record,
                    Err(error) => match error.position().map(csv::Position::line) {
                        Some(line) if !error.is_io_error() => {
                            let reason = "must have as many fields as the heading".to_owned();
                            return Ok(Err(Bad { line, reason }));
                        }
                        _ => return Err(io::Error::other(error)),
                    },
                };
                let line = record.position().map_or(0, csv::Position::line);
                Ok(read(line, object(&columns, &record)))
            }))
        }
    })
}

/// Returns the lines that are not blank, with their numbers from 1.
fn lines(mut reader: impl BufRead) -> impl Iterator<Item = io::Result<(u64, Vec<u8>)>> {
    let mut number = 0;
    std::iter::from_fn(move || {
        loop {
            let mut line = Vec::new();
            match reader.read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(_) => number += 1,
                Err(error) => return Some(Err(error)),
            }
            if !line.trim_ascii().is_empty() {
                return Some(Ok((number, line)));
            }
        }
    })
}

fn read(line: u64, json: Result<Value, String>) -> Result<Record, Bad> {
    let pet = json.and_then(pet);
    pet.map(|pet| Record { line, pet })
        .map_err(|reason| Bad { line, reason })
}

fn pet(json: Value) -> Result<NewPet, String> {
    api::pets::read_new_pet(json).map_err(|error| match error {
        ApiError::Invalid(violations) => violations
            .iter()
            .map(|violation| format!("{} {}", violation.field, violation.reason))
            .collect::<Vec<_>>()
            .join("; "),
        other => other.to_string(),
    })
}

#[derive(Debug, Clone, Copy)]
enum Column {
    Id,
    Text(&'static str),
    Json(&'static str),
}

fn columns(heading: &csv::ByteRecord) -> Result<Vec<Column>, Error> {
    heading
        .iter()
        .map(|name| match name {
            b"id" => Ok(Column::Id),
            b"name" => Ok(Column::Text("name")),
            b"status" => Ok(Column::Text("status")),
            b"category" => Ok(Column::Json("category")),
            b"photoUrls" => Ok(Column::Json("photoUrls")),
            b"tags" => Ok(Column::Json("tags")),
            other => Err(format!(
                "line 1: unknown column {:?}; use id, name, status, category, photoUrls and tags",
                String::from_utf8_lossy(other)
            )
            .into()),
        })
        .collect()
}

/// Converts a CSV record to JSON; an empty cell is an absent field.
fn object(columns: &[Column], record: &csv::ByteRecord) -> Result<Value, String> {
    let mut object = Map::new();
    for (column, cell) in columns.iter().zip(record) {
        if cell.is_empty() {
            continue;
        }
        let text = || std::str::from_utf8(cell).map_err(|_| "is not UTF-8");
        let (name, value) = match column {
            Column::Id => (
                "id",
                text().and_then(|text| {
                    text.parse::<i64>()
                        .map(Value::from)
                        .map_err(|_| "must be an integer")
                }),
            ),
            Column::Text(name) => (*name, text().map(Value::from)),
            Column::Json(name) => (
                *name,
                serde_json::from_slice(cell).map_err(|_| "must be JSON"),
            ),
        };
        object.insert(
            name.to_owned(),
            value.map_err(|reason| format!("{name} {reason}"))?,
        );
    }
    Ok(Value::Object(object))
}
