//! `config`: prints the effective settings.

use std::path::Path;

use clap::Subcommand;

use super::output::{Error, say};
use crate::config::Config;

#[derive(Debug, Subcommand)]
pub enum Settings {
    /// Print every setting and its origin (the defaults, the file or a variable), with secrets hidden
    ///
    /// The output is TOML: its lines can be copied to the file given to --config.
    Show,
}

impl Settings {
    pub fn run(&self, file: Option<&Path>) -> Result<(), Error> {
        let Self::Show = self;
        Config::settings(file)?.into_iter().try_for_each(say)
    }
}
