//! `clients`: creates, lists and revokes OAuth 2.0 clients.

use clap::Subcommand;

use super::{
    credentials::{self, Owner},
    output::{Error, print},
};
use crate::{config::Config, db::credentials::CredentialKind, domain::id::CredentialId};

#[derive(Debug, Subcommand)]
pub enum Clients {
    /// Create a client, which gets access tokens at /oauth/token; its secret is shown only once
    ///
    /// With --json: {"caller":…,"plan":…,"id":…,"client_id":…,"client_secret":…}
    Create {
        #[command(flatten)]
        owner: Owner,
    },
    /// List all clients, without their secrets
    ///
    /// With --json, an array of {"id":…,"callerId":…,"caller":…,"hint":…,"client_id":…,"scopes":[…],"createdAt":…,"revokedAt":…},
    /// without what it does not have
    List,
    /// Revoke a client and all of its access tokens, permanently
    ///
    /// With --json: {"id":…,"revoked":true}
    Revoke {
        /// Id of the client, as listed by: pet-inventory clients list
        id: CredentialId,
        /// Do so even if no administrator is left
        #[arg(long)]
        force: bool,
    },
}

impl Clients {
    pub async fn run(self, config: &Config, json: bool) -> Result<(), Error> {
        const KIND: CredentialKind = CredentialKind::ClientSecret;
        match self {
            Self::Create { owner } => {
                let created = owner.create(config, KIND, None, None).await?;
                let text = format!(
                    "Caller         {} (plan {})\nId             {}\nclient_id      {}\nclient_secret  {}\n\n\
                     This is the only time the secret is shown. Get a token with it:\n\
                     \x20 curl -u 'CLIENT_ID:CLIENT_SECRET' -d grant_type=client_credentials http://HOST/oauth/token",
                    created.caller,
                    created.plan,
                    created.id,
                    created.client_id.as_deref().unwrap_or_default(),
                    created.secret.expose()
                );
                print(json, text, &created.to_json("client_secret")?)
            }
            Self::List => credentials::list(config, KIND, None, json).await,
            Self::Revoke { id, force } => {
                credentials::revoke(config, KIND, ("client", id), force, json).await
            }
        }
    }
}
