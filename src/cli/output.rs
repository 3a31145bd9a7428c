//! Results and errors of commands.

use std::{
    fmt::{Display, Write as _},
    io::{self, Write},
};

use clap::error::ErrorKind;
use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets::NOTHING};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Value, json};

use crate::db;

/// Width of a table that people can read without wide terminals.
const NARROW: u16 = 100;

/// Failure of a command, which is printed and ends the program.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Transactions of commands are retried like those of requests.
impl db::AsDatabaseError for Error {
    fn database_error(&self) -> Option<&db::Error> {
        self.downcast_ref()
    }
}

/// File or stdout, of which failures have the name.
pub struct Named<W> {
    name: String,
    out: W,
}

impl<W: Write> Named<W> {
    /// Names a file or stdout.
    pub fn new(name: impl Into<String>, out: W) -> Self {
        let name = name.into();
        Self { name, out }
    }

    fn named(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.name))
    }
}

impl<W: Write> Write for Named<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        written.map_err(|error| self.named(&error))
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.out.flush();
        flushed.map_err(|error| self.named(&error))
    }
}

/// Writes a line to stdout. Fails if stdout is closed, where `println!` would panic.
pub fn say(line: impl Display) -> Result<(), Error> {
    Ok(writeln!(Named::new("stdout", io::stdout()), "{line}")?)
}

/// Writes a line of JSON to stdout.
pub fn say_json(value: &impl Serialize) -> Result<(), Error> {
    say(with_escapes(&serde_json::to_string(value)?))
}

/// Escapes characters of JSON that [`escaped`] escapes, too: they are only in its strings.
fn with_escapes(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        if is_hidden(character) {
            let _ = write!(escaped, "\\u{:04x}", u32::from(character));
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// Returns a number with a noun, such as `1 pet` and `2 pets`.
pub fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Writes the result of a command to stdout: one line of JSON with `--json`, else a text for people, of which all but the ends of
/// lines is escaped.
pub fn print(is_json: bool, text: impl Display, json: &Value) -> Result<(), Error> {
    if is_json {
        return say_json(json);
    }
    let text = text.to_string();
    let lines: Vec<_> = text.split('\n').map(escaped).collect();
    say(lines.join("\n"))
}

/// Prints an error to stderr: a text or, with `--json`, an object. Its `next` is what to do, which messages have behind a
/// semicolon, and null in those that do not say.
pub fn report(error: &str, json: bool) {
    if json {
        let (error, next) = match error.split_once("; ") {
            Some((error, next)) => (error, Some(next)),
            None => (error, None),
        };
        report_json(&json!({"error": error, "next": next}));
    } else {
        eprintln!("error: {}", visible(error));
    }
}

/// Prints an error in the arguments as `{"error":…,"next":…}`; `next` is what follows the first paragraph of its message.
pub fn report_usage(error: &clap::Error) {
    let message = error.to_string();
    let (error, next) = match error.kind() {
        // Its message is the help.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            ("a subcommand is missing", "try '--help'")
        }
        _ => message.split_once("\n\n").unwrap_or((&message, "")),
    };
    let line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let error = line(error.strip_prefix("error: ").unwrap_or(error));
    report_json(&json!({"error": error, "next": line(next)}));
}

/// Prints an object to stderr.
fn report_json(report: &Value) {
    eprintln!("{}", with_escapes(&report.to_string()));
}

/// Escapes control characters but line breaks. An error can quote a file or a server, and a terminal would execute them.
fn visible(text: &str) -> String {
    let mut visible = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() && character != '\n' {
            visible.extend(character.escape_default());
        } else {
            visible.push(character);
        }
    }
    visible
}

/// Formats a table with columns that are aligned on a terminal, also behind wide characters.
pub fn table(heading: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    part_of_table(Some(heading), &[], rows)
}

/// Returns true for control and bidirectional characters, with which a text could change what a terminal shows of others.
fn is_hidden(character: char) -> bool {
    let is_bidirectional = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    is_bidirectional || character.is_control()
}

/// Escapes [hidden](is_hidden) characters.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        if is_hidden(character) {
            escaped.extend(character.escape_unicode());
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// Formats a part of a long table; only the first one has a heading. The columns have at least these widths.
pub fn part_of_table(
    heading: Option<&[&str]>,
    widths: &[u16],
    rows: impl Iterator<Item = Vec<String>>,
) -> String {
    to_table(heading, widths, rows).trim_fmt()
}

/// Formats a table of at most [`NARROW`] columns of a terminal. Cells that are too long continue in the next line.
pub fn narrow_table(heading: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = to_table(Some(heading), &[], rows);
    table
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(NARROW);
    table.trim_fmt()
}

fn to_table(
    heading: Option<&[&str]>,
    widths: &[u16],
    rows: impl Iterator<Item = Vec<String>>,
) -> Table {
    let rows = rows.map(|row| row.iter().map(|cell| escaped(cell)).collect::<Vec<_>>());
    let mut table = Table::new();
    table.load_style(NOTHING).add_rows(rows);
    if let Some(heading) = heading {
        table.set_header(heading);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        // The padding is part of the width.
        let width = widths.get(index).map(|width| Width::Fixed(width + 2));
        column.set_constraint(ColumnConstraint::LowerBoundary(
            width.unwrap_or(Width::Fixed(0)),
        ));
    }
    table
}

/// Shows a progress bar on stderr if that is a terminal.
pub fn progress(bar: ProgressBar, template: &str) -> Result<ProgressBar, Error> {
    Ok(bar.with_style(ProgressStyle::with_template(template)?))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn full_disk_is_named() {
        let full = File::options().write(true).open("/dev/full");
        let mut full = Named::new("/dev/full", full.expect("/dev/full"));
        let error = full.write_all(b"pets").expect_err("it is full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(
            error.to_string().starts_with("/dev/full: No space left"),
            "{error}"
        );
    }

    #[test]
    fn json_has_no_hidden_characters() {
        let value = json!({"name": "a\u{202e}\"b\u{85}\u{1b}ä🦊", "is": [1, null]});
        let escaped = with_escapes(&value.to_string());
        let expected = r#"{"is":[1,null],"name":"a\u202e\"b\u0085\u001bä🦊"}"#;
        assert_eq!(escaped, expected);
        assert_eq!(
            serde_json::from_str::<Value>(&escaped).expect("JSON"),
            value
        );
    }

    #[test]
    fn errors_have_no_control_characters() {
        let visible = visible("pet 1: \u{1b}]0;title\u{7}\u{9b}31m\r\nnäxt");
        assert_eq!(visible, "pet 1: \\u{1b}]0;title\\u{7}\\u{9b}31m\\r\nnäxt");
    }
}
