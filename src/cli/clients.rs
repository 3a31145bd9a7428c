//! `clients`: creates, lists and revokes OAuth 2.0 clients.

use clap::Subcommand;

use super::{
    credentials::{self, Owner},
    output::{Error, print},
};
use crate::{
    api::state::Links,
    config::Config,
    db::credentials::CredentialKind,
    domain::{address::ListenAddress, id::CredentialId},
};

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
                     \x20 curl -u '{}:SECRET' -d grant_type=client_credentials {}",
                    created.caller,
                    created.plan,
                    created.id,
                    created.client_id.as_deref().unwrap_or_default(),
                    created.secret.expose(),
                    created.client_id.as_deref().unwrap_or_default(),
                    token_endpoint(config),
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

/// Returns the URL of the token endpoint, with what curl needs beside it: by `server.public_url`, or else `server.listen`.
fn token_endpoint(config: &Config) -> String {
    let links = Links::new(config.server.public_url.as_ref());
    let path = links.url("/oauth/token");
    match &config.server.listen {
        _ if config.server.public_url.is_some() => path,
        ListenAddress::Tcp(address) if address.ip().is_unspecified() => {
            format!("http://localhost:{}{path}", address.port())
        }
        ListenAddress::Tcp(address) => format!("http://{address}{path}"),
        ListenAddress::Unix(socket) => {
            format!("--unix-socket {} http://localhost{path}", socket.display())
        }
    }
}
