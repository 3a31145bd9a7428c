//! Results and errors of commands.

use std::{
    fmt::Display,
    io::{self, Write as _},
};

use indicatif::{ProgressBar, ProgressStyle};

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

/// Formats a table with aligned columns.
pub fn table<const N: usize>(
    heading: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let rows: Vec<_> = [heading.map(str::to_owned)]
        .into_iter()
        .chain(rows)
        .collect();
    let widths: [_; N] = std::array::from_fn(|column| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or_default()
    });
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(widths);
        let cells: Vec<_> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        cells.join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Shows a progress bar on stderr if that is a terminal.
pub fn progress(bar: ProgressBar, template: &str) -> Result<ProgressBar, Error> {
    Ok(bar.with_style(ProgressStyle::with_template(template)?))
}
