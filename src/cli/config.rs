//! `config`: prints the effective settings.

use clap::Subcommand;
use serde_json::{Value, json};

use super::output::{Error, print};
use crate::config::{CommandLine, Config};

#[derive(Debug, Subcommand)]
pub enum Settings {
    /// Print every setting and its origin (the defaults, the file, a variable or an option), with secrets hidden
    ///
    /// The output is TOML: its lines can be copied to the file given to --config. With --json, an array of
    /// {"key":…,"value":…,"origin":…}
    Show,
}

impl Settings {
    pub fn run(&self, command_line: &CommandLine, json: bool) -> Result<(), Error> {
        let Self::Show = self;
        let settings = Config::settings(command_line)?;
        let objects = settings
            .iter()
            .map(|it| json!({"key": it.key, "value": it.value, "origin": it.origin}));
        let value: Value = objects.collect();
        let lines: Vec<_> = settings.iter().map(ToString::to_string).collect();
        print(json, lines.join("\n"), &value)
    }
}
