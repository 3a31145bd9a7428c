//! `sessions`: list and revoke sessions of users.

use clap::Subcommand;

use super::{Error, credentials};
use crate::{config::Config, db::credentials::Kind};

/// List and revoke sessions of users.
#[derive(Debug, Subcommand)]
pub enum Sessions {
    /// List all sessions, without their tokens.
    List {
        /// Print a JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Revoke a session, by its id in the list, for good.
    Revoke {
        /// The session's id.
        id: i64,
    },
}

impl Sessions {
    /// Runs the command.
    pub async fn run(self, config: &Config) -> Result<(), Error> {
        match self {
            Self::List { json } => credentials::list(config, Kind::Session, json).await,
            Self::Revoke { id } => credentials::revoke(config, Kind::Session, "session", id).await,
        }
    }
}
