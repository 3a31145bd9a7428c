//! Results and errors of commands.

use std::{
    fmt::Display,
    io::{self, Write as _},
    iter,
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
pub fn table(heading: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let heading = heading.iter().map(|&name| name.to_owned()).collect();
    let rows: Vec<Vec<String>> = iter::once(heading).chain(rows).collect();
    let mut widths = vec![0; rows[0].len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let lines = rows.iter().map(|row| {
        let cells: Vec<_> = row
            .iter()
            .zip(&widths)
            .map(|(cell, &width)| format!("{cell:width$}"))
            .collect();
        cells.join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Shows a progress bar on stderr if that is a terminal.
pub fn progress(bar: ProgressBar, template: &str) -> Result<ProgressBar, Error> {
    Ok(bar.with_style(ProgressStyle::with_template(template)?))
}
