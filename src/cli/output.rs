//! Results and errors of commands.

use std::{
    fmt::Display,
    io::{self, Write as _},
};

/// Failure of a command, which is printed and ends the program.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Writes a line to stdout. Fails if stdout is closed, where `println!` would panic.
pub fn say(line: impl Display) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}
