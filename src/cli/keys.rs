//! `keys`: creates, lists and revokes API keys.

use chrono::{DateTime, Utc};
use clap::Subcommand;
use serde::Serialize;

use super::{
    credentials::{self, Made, Owner},
    output::{Error, say},
    session::with_database,
};
use crate::{auth::secret, config::Config, db::credentials::CredentialKind};

#[derive(Debug, Subcommand)]
pub enum Keys {
    /// Create an API key; it is shown only once
    Create {
        #[command(flatten)]
        owner: Owner,
        /// Lifetime of the key, such as 90d or 12h; default: until it is revoked
        #[arg(long, value_name = "DURATION")]
        expires: Option<humantime::Duration>,
        /// Print only {"caller":…,"plan":…,"id":…,"key":…}
        #[arg(long)]
        json: bool,
    },
    /// List all API keys, without their secrets
    List {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Revoke an API key, permanently
    Revoke {
        /// Id of the key, as listed by: pet-inventory keys list
        id: i64,
    },
}

impl Keys {
    pub async fn run(self, config: &Config) -> Result<(), Error> {
        match self {
            Self::Create {
                owner,
                expires,
                json,
            } => {
                let expires_at = expires.map(expiry).transpose()?;
                let made = with_database(config, async |database| {
                    credentials::make(database, owner, secret::Kind::ApiKey, expires_at).await
                })
                .await?;
                say(if json {
                    made_json(&made)?
                } else {
                    made_text(&made)
                })?;
                Ok(())
            }
            Self::List { json } => credentials::list(config, CredentialKind::ApiKey, json).await,
            Self::Revoke { id } => {
                credentials::revoke(config, CredentialKind::ApiKey, "key", id).await
            }
        }
    }
}

fn expiry(expires: humantime::Duration) -> Result<DateTime<Utc>, Error> {
    chrono::Duration::from_std(*expires)
        .ok()
        .and_then(|duration| now().checked_add_signed(duration))
        .ok_or_else(|| {
            "--expires is too far in the future; pass a shorter duration, such as 90d".into()
        })
}

#[expect(
    clippy::disallowed_methods,
    reason = "the lifetime of the key starts now"
)]
fn now() -> DateTime<Utc> {
    Utc::now()
}

fn made_json(made: &Made) -> Result<String, Error> {
    #[derive(Serialize)]
    struct Json<'a> {
        caller: &'a str,
        plan: &'a str,
        id: i64,
        key: &'a str,
    }
    Ok(serde_json::to_string(&Json {
        caller: made.caller.as_str(),
        plan: made.plan.as_str(),
        id: made.id,
        key: made.secret.expose(),
    })?)
}

fn made_text(made: &Made) -> String {
    format!(
        "Caller  {} (plan {})\nKey id  {}\nKey     {}\n\nThis is the only time the key is shown. \
         Send it in the header api_key, or as Authorization: Bearer.",
        made.caller,
        made.plan,
        made.id,
        made.secret.expose()
    )
}
