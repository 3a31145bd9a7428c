//! `keys`: creates, lists and revokes API keys.

use chrono::{DateTime, Utc};
use clap::Subcommand;

use super::{
    credentials::{self, Owner},
    output::{Error, say},
};
use crate::{config::Config, db::credentials::CredentialKind};

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
        const KIND: CredentialKind = CredentialKind::ApiKey;
        match self {
            Self::Create {
                owner,
                expires,
                json,
            } => {
                let expires_at = expires.map(expiry).transpose()?;
                let created = owner.create(config, KIND, expires_at).await?;
                if json {
                    return say(created.to_json("key")?);
                }
                say(format_args!(
                    "Caller  {} (plan {})\nKey id  {}\nKey     {}\n\nThis is the only time the key is shown. \
                     Send it in the header api_key, or as Authorization: Bearer.",
                    created.caller,
                    created.plan,
                    created.id,
                    created.secret.expose()
                ))
            }
            Self::List { json } => credentials::list(config, KIND, json).await,
            Self::Revoke { id } => credentials::revoke(config, KIND, "key", id).await,
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the lifetime of the key starts now"
)]
fn expiry(expires: humantime::Duration) -> Result<DateTime<Utc>, Error> {
    chrono::Duration::from_std(*expires)
        .ok()
        .and_then(|duration| Utc::now().checked_add_signed(duration))
        .ok_or_else(|| {
            "--expires is too far in the future; pass a shorter duration, such as 90d".into()
        })
}
