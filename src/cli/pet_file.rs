//! Reader of pet files: NDJSON, or CSV with a heading.
//!
//! Invariant: a record is valid exactly if `POST /pet` accepts it.

use std::{
    ffi::OsStr,
    io::{self, BufRead, BufReader, Read},
    iter,
    path::Path,
};

use clap::ValueEnum;
use csv_core::ReadRecordResult;
use serde::de::IgnoredAny;
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
    /// Returns the given format, or else that of the file's extension; NDJSON without a file.
    pub fn of(format: Option<Self>, file: Option<&Path>) -> Result<Self, Error> {
        let extension = file.and_then(Path::extension).and_then(OsStr::to_str);
        match (format, extension.map(str::to_ascii_lowercase).as_deref()) {
            (Some(format), _) => Ok(format),
            (None, _) if file.is_none() => Ok(Self::Ndjson),
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
pub type Records = Box<dyn Iterator<Item = io::Result<Result<Record, Problem>>>>;

/// Line at which an invalid record begins, from 1, and the reason.
pub type Problem = (u64, String);

/// Returns the records of a file. Fails if the file cannot be read, or the heading of a CSV file is invalid.
pub fn records(mut file: impl Read + 'static, format: Format) -> Result<Records, Error> {
    let mut head = Vec::new();
    (&mut file).take(3).read_to_end(&mut head)?;
    let head = without_byte_order_mark(&head).to_vec();
    let reader = BufReader::with_capacity(1 << 20, io::Cursor::new(head).chain(file));
    Ok(match format {
        Format::Ndjson => {
            let records = lines(reader).map(|line| line.map(|(line, text)| record(line, &text)));
            Box::new(records)
        }
        Format::Csv => {
            let mut records = CsvRecords::new(reader);
            let heading = records.next().transpose()?;
            let columns = columns(&heading.ok_or("line 1: the heading is missing")?)?;
            Box::new(records.map(move |cells| {
                cells.map(|cells| match object(&columns, &cells) {
                    Ok(json) => record(cells.line, &json),
                    Err(problem) => Err((cells.line, problem)),
                })
            }))
        }
    })
}

/// Returns the lines that are not blank, with their numbers from 1.
fn lines(reader: impl BufRead) -> impl Iterator<Item = io::Result<(u64, Vec<u8>)>> {
    (1..)
        .zip(reader.split(b'\n'))
        .map(|(number, line)| Ok((number, line?)))
        .filter(|line| !matches!(line, Ok((_, text)) if text.trim_ascii().is_empty()))
}

/// Reads a record as `POST /pet` reads its body.
fn record(line: u64, json: &[u8]) -> Result<Record, Problem> {
    match api::pets::read_new_pet(json) {
        Ok(pet) => Ok(Record { line, pet }),
        Err(error) => Err((line, describe(error))),
    }
}

fn describe(error: ApiError) -> String {
    let ApiError::Invalid(violations) = error else {
        return error.to_string();
    };
    let reasons: Vec<_> = violations
        .iter()
        .map(|violation| match &*violation.field {
            // The record is one line, and its number is before the reason.
            "body" => violation.reason.replace("(line 1 column ", "(column "),
            field => format!("{field} {}", violation.reason),
        })
        .collect();
    reasons.join("; ")
}

/// Columns of a CSV file.
const COLUMNS: [&str; 6] = ["id", "name", "status", "category", "photoUrls", "tags"];

fn columns(heading: &Cells) -> Result<Vec<&'static str>, Error> {
    const REMEDY: &str = "use id, name, status, category, photoUrls and tags";
    let (line, mut columns) = (heading.line, Vec::new());
    (heading.check_quotes()).map_err(|reason| format!("line {line}: the heading {reason}"))?;
    for name in heading.iter() {
        let known = COLUMNS.into_iter().find(|column| column.as_bytes() == name);
        let shown = String::from_utf8_lossy(name);
        match known {
            Some(column) if !columns.contains(&column) => columns.push(column),
            Some(_) => return Err(format!("line {line}: column {shown:?} is given twice").into()),
            None => return Err(format!("line {line}: unknown column {shown:?}; {REMEDY}").into()),
        }
    }
    Ok(columns)
}

/// Converts a CSV record to a JSON object; an empty cell is an absent field. Name and status are text, the other cells hold JSON.
fn object(columns: &[&str], cells: &Cells) -> Result<Vec<u8>, String> {
    cells.check_quotes()?;
    if cells.ends.len() != columns.len() {
        return Err("must have as many fields as the heading".into());
    }
    let mut json = b"{".to_vec();
    for (name, cell) in columns.iter().zip(cells.iter()) {
        if cell.is_empty() {
            continue;
        }
        let separator = if json.len() > 1 { "," } else { "" };
        json.extend_from_slice(format!("{separator}\"{name}\":").as_bytes());
        if matches!(*name, "name" | "status") {
            let text = str::from_utf8(cell).map_err(|_| format!("{name} must be UTF-8"))?;
            json.extend_from_slice(Value::from(text).to_string().as_bytes());
        } else {
            if *name == "id" {
                check_id(cell)?;
            }
            // One value, so that a cell cannot add members.
            let value = serde_json::from_slice::<IgnoredAny>(cell);
            value.map_err(|_| format!("{name} must be JSON"))?;
            json.extend_from_slice(cell);
        }
    }
    json.push(b'}');
    Ok(json)
}

/// Refuses what is not an integer, and tells what Excel does to long ones.
fn check_id(cell: &[u8]) -> Result<(), String> {
    let digits = cell.strip_prefix(b"-").unwrap_or(cell);
    if digits.iter().all(u8::is_ascii_digit) {
        return Ok(());
    }
    let is_number = serde_json::from_slice::<f64>(cell).is_ok();
    if is_number && cell.iter().any(|byte| matches!(byte, b'e' | b'E')) {
        return Err(
            "id must be an integer: Excel wrote a long one in scientific notation, which loses digits; format the column as a \
             number without decimals, or export the pets again"
                .to_owned(),
        );
    }
    Err("id must be an integer".to_owned())
}

/// Place in the quotes of a record, which `csv_core` does not report.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Quotes {
    /// At the beginning of a cell.
    #[default]
    Begin,
    /// In a cell without quotes.
    Without,
    /// Between quotes.
    Open,
    /// Behind a quote between quotes: the closing one, or the first of two that stand for one.
    Closed,
    /// Behind text that follows a closing quote.
    Misplaced,
}

impl Quotes {
    const fn after(self, byte: u8) -> Self {
        match (self, byte) {
            (Self::Misplaced, _) => Self::Misplaced,
            (Self::Begin | Self::Closed, b'"') => Self::Open,
            (Self::Open, b'"') => Self::Closed,
            (Self::Open, _) => Self::Open,
            (_, b',' | b'\r' | b'\n') => Self::Begin,
            (Self::Closed, _) => Self::Misplaced,
            (Self::Begin | Self::Without, _) => Self::Without,
        }
    }
}

/// Records of a CSV file (RFC 4180), with the lines at which they begin, which the crate `csv` miscounts after CRLF, CR and blank
/// lines.
struct CsvRecords<R> {
    reader: R,
    parser: csv_core::Reader,
    /// Number of the current line.
    line: u64,
    /// True after a CR, which ends a line together with an LF behind it.
    is_after_cr: bool,
}

/// Cells of a CSV record.
#[derive(Debug, Default)]
struct Cells {
    /// Line at which the record begins.
    line: u64,
    bytes: Vec<u8>,
    /// Ends of the cells in `bytes`.
    ends: Vec<usize>,
    /// Place behind the record: [`Quotes::Open`] if the file ends there, [`Quotes::Misplaced`], or others.
    quotes: Quotes,
}

impl Cells {
    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(&self.ends);
        ranges.map(|(start, end)| &self.bytes[start..*end])
    }

    fn check_quotes(&self) -> Result<(), &'static str> {
        match self.quotes {
            Quotes::Open => Err("has a quote (\") that is not closed before the end of the file"),
            Quotes::Misplaced => Err("has text behind a closing quote (\")"),
            Quotes::Begin | Quotes::Without | Quotes::Closed => Ok(()),
        }
    }
}

impl<R: BufRead> CsvRecords<R> {
    fn new(reader: R) -> Self {
        Self {
            reader,
            parser: csv_core::Reader::new(),
            line: 1,
            is_after_cr: false,
        }
    }

    /// Reads the next record, if there is one.
    fn read(&mut self) -> io::Result<Option<Cells>> {
        let mut cells = Cells::default();
        let (mut length, mut number) = (0, 0);
        loop {
            // The parser needs room to go on.
            cells.bytes.resize(2 * length + 1_024, 0);
            cells.ends.resize(2 * number + 8, 0);
            let input = self.reader.fill_buf()?;
            let (bytes, ends) = (&mut cells.bytes[length..], &mut cells.ends[number..]);
            let (result, read, written, ended) = self.parser.read_record(input, bytes, ends);
            for byte in &input[..read] {
                cells.quotes = cells.quotes.after(*byte);
                let is_break = matches!(byte, b'\r' | b'\n');
                if is_break && !(*byte == b'\n' && self.is_after_cr) {
                    self.line += 1;
                } else if !is_break && cells.line == 0 {
                    cells.line = self.line;
                }
                self.is_after_cr = *byte == b'\r';
            }
            self.reader.consume(read);
            (length, number) = (length + written, number + ended);
            match result {
                ReadRecordResult::Record => break,
                ReadRecordResult::End => return Ok(None),
                ReadRecordResult::InputEmpty
                | ReadRecordResult::OutputFull
                | ReadRecordResult::OutputEndsFull => {}
            }
        }
        cells.bytes.truncate(length);
        cells.ends.truncate(number);
        Ok(Some(cells))
    }
}

impl<R: BufRead> Iterator for CsvRecords<R> {
    type Item = io::Result<Cells>;

    fn next(&mut self) -> Option<io::Result<Cells>> {
        self.read().transpose()
    }
}
