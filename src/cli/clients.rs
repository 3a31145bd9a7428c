//! `clients`: creates, lists and revokes OAuth 2.0 clients.

use clap::Subcommand;
use serde::Serialize;

use super::{
    credentials::{self, Made, Owner},
    output::{Error, say},
    session::with_database,
};
use crate::{auth::secret, config::Config, db::credentials::CredentialKind};

#[derive(Debug, Subcommand)]
pub enum Clients {
    /// Create a client, which gets access tokens at /oauth/token; its secret is shown only once
    Create {
        #[command(flatten)]
        owner: Owner,
        /// Print only {"caller":…,"plan":…,"id":…,"client_id":…,"client_secret":…}
        #[arg(long)]
        json: bool,
    },
    /// List all clients, without their secrets
    List {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Revoke a client and all of its access tokens, permanently
    Revoke {
        /// Id of the client, as listed by: pet-inventory clients list
        id: i64,
    },
}

impl Clients {
    pub async fn run(self, config: &Config) -> Result<(), Error> {
        match self {
            Self::Create { owner, json } => {
                let made = with_database(config, async |database| {
                    credentials::make(database, owner, secret::Kind::ClientSecret, None).await
                })
                .await?;
                say(if json {
                    made_json(&made)?
                } else {
                    made_text(&made)
                })?;
                Ok(())
            }
            Self::List { json } => {
                credentials::list(config, CredentialKind::ClientSecret, json).await
            }
            Self::Revoke { id } => {
                credentials::revoke(config, CredentialKind::ClientSecret, "client", id).await
            }
        }
    }
}

fn made_json(made: &Made) -> Result<String, Error> {
    #[derive(Serialize)]
    struct Json<'a> {
        caller: &'a str,
        plan: &'a str,
        id: i64,
        client_id: Option<&'a str>,
        client_secret: &'a str,
    }
    Ok(serde_json::to_string(&Json {
        caller: made.caller.as_str(),
        plan: made.plan.as_str(),
        id: made.id,
        client_id: made.client_id.as_deref(),
        client_secret: made.secret.expose(),
    })?)
}

fn made_text(made: &Made) -> String {
    format!(
        "Caller         {} (plan {})\nId             {}\nclient_id      {}\nclient_secret  {}\n\n\
         This is the only time the secret is shown. Get a token with it:\n\
         \x20 curl -u 'CLIENT_ID:CLIENT_SECRET' -d grant_type=client_credentials http://HOST/oauth/token",
        made.caller,
        made.plan,
        made.id,
        made.client_id.as_deref().unwrap_or_default(),
        made.secret.expose()
    )
}
