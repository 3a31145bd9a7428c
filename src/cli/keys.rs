//! `keys`: make, list and revoke API keys.

use chrono::{DateTime, Utc};
use clap::Subcommand;
use serde::Serialize;

use super::{
    Error,
    credentials::{self, Made, Owner},
    say,
    session::with_database,
};
use crate::{auth::secret, config::Config, db::credentials::Kind};

/// Make, list and revoke API keys.
#[derive(Debug, Subcommand)]
pub enum Keys {
    /// Make an API key. It is shown once.
    Create {
        #[command(flatten)]
        owner: Owner,
        /// How long the key lasts, as in 90d or 12h; without it, until it is revoked.
        #[arg(long, value_name = "DURATION")]
        expires: Option<humantime::Duration>,
        /// Print {"caller":…,"plan":…,"id":…,"key":…} and nothing else.
        #[arg(long)]
        json: bool,
    },
    /// List all API keys, without their secrets.
    List {
        /// Print a JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Revoke an API key, by its id in the list, for good.
    Revoke {
        /// The key's id.
        id: i64,
    },
}

impl Keys {
    /// Runs the command.
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
            Self::List { json } => credentials::list(config, Kind::ApiKey, json).await,
            Self::Revoke { id } => credentials::revoke(config, Kind::ApiKey, "key", id).await,
        }
    }
}

fn expiry(expires: humantime::Duration) -> Result<DateTime<Utc>, Error> {
    chrono::Duration::from_std(*expires)
        .ok()
        .and_then(|duration| now().checked_add_signed(duration))
        .ok_or_else(|| "--expires is too far away".into())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a command begins at the time it is called"
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
