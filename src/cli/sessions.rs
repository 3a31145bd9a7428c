//! `sessions`: lists and revokes sessions of users.

use clap::Subcommand;

use super::{credentials, output::Error};
use crate::{config::Config, db::credentials::CredentialKind};

#[derive(Debug, Subcommand)]
pub enum Sessions {
    /// List all sessions, without their tokens
    List {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Revoke a session, permanently
    Revoke {
        /// Id of the session, as listed by: pet-inventory sessions list
        id: i64,
    },
}

impl Sessions {
    pub async fn run(self, config: &Config) -> Result<(), Error> {
        const KIND: CredentialKind = CredentialKind::Session;
        match self {
            Self::List { json } => credentials::list(config, KIND, None, json).await,
            Self::Revoke { id } => credentials::revoke(config, KIND, "session", id).await,
        }
    }
}
