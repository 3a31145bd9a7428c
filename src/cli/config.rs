//! `config`: the settings in force.

use std::path::Path;

use clap::Subcommand;

use super::{Error, say};
use crate::config::Config;

/// Show the settings in force.
#[derive(Debug, Subcommand)]
pub enum Settings {
    /// Print every setting and where it comes from: the defaults, a file, a variable. Passwords are hidden.
    ///
    /// What is printed is TOML: a line of it can go into the file that --config names.
    Show,
}

impl Settings {
    /// Runs the command.
    pub fn run(&self, file: Option<&Path>) -> Result<(), Error> {
        match self {
            Self::Show => {
                for setting in Config::settings(file)? {
                    say(setting)?;
                }
            }
        }
        Ok(())
    }
}
