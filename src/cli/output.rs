//! Results and errors of commands.

use std::{
    fmt::Display,
    io::{self, Write as _},
};

use comfy_table::{Table, presets::NOTHING};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::db;

/// Failure of a command, which is printed and ends the program.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Transactions of commands are retried like those of requests.
impl db::AsDatabaseError for Error {
    fn database_error(&self) -> Option<&db::Error> {
        self.downcast_ref()
    }
}

/// Writes a line to stdout. Fails if stdout is closed, where `println!` would panic.
pub fn say(line: impl Display) -> Result<(), Error> {
    Ok(writeln!(io::stdout(), "{line}")?)
}

/// Writes the result of a command to stdout: one line of JSON with `--json`, else a text for people.
pub fn print(is_json: bool, text: impl Display, json: &Value) -> Result<(), Error> {
    if is_json { say(json) } else { say(text) }
}

/// Formats a table with columns that are aligned on a terminal, also behind wide characters.
pub fn table(heading: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(heading).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

/// Shows a progress bar on stderr if that is a terminal.
pub fn progress(bar: ProgressBar, template: &str) -> Result<ProgressBar, Error> {
    Ok(bar.with_style(ProgressStyle::with_template(template)?))
}
