//! `sessions`: lists and revokes sessions of users.

use clap::Subcommand;

use super::{credentials, output::Error};
use crate::{config::Config, db::credentials::CredentialKind, domain::id::CredentialId};

#[derive(Debug, Subcommand)]
pub enum Sessions {
    /// List all sessions, without their tokens
    ///
    /// With --json, an array of {"id":…,"callerId":…,"caller":…,"hint":…,"scopes":[…],"createdAt":…,"expiresAt":…,"revokedAt":…},
    /// without what it does not have
    List,
    /// Revoke a session, permanently
    ///
    /// With --json: {"id":…,"revoked":true}
    Revoke {
        /// Id of the session, as listed by: pet-inventory sessions list
        id: CredentialId,
    },
}

impl Sessions {
    pub async fn run(self, config: &Config, json: bool) -> Result<(), Error> {
        const KIND: CredentialKind = CredentialKind::Session;
        match self {
            Self::List => credentials::list(config, KIND, None, json).await,
            Self::Revoke { id } => {
                credentials::revoke(config, KIND, ("session", id), true, json).await
            }
        }
    }
}
