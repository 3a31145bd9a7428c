//! `keys`: creates, rotates, lists and revokes API keys.

use std::{str::FromStr, time::Duration};

use chrono::{DateTime, Utc};
use clap::Subcommand;

use super::{
    credentials::{self, Created, Owner},
    output::{Error, say},
};
use crate::{config::Config, db::credentials::CredentialKind, domain::caller::CallerName};

#[derive(Debug, Subcommand)]
pub enum Keys {
    /// Create an API key; it is shown only once
    Create {
        #[command(flatten)]
        owner: Owner,
        /// Lifetime of the key, such as 90d or 12h, or never; default: auth.api_key_lifetime, or never
        #[arg(long, value_name = "DURATION")]
        expires: Option<Lifetime>,
        /// Print only {"caller":…,"plan":…,"id":…,"expiresAt":…,"key":…}
        #[arg(long)]
        json: bool,
    },
    /// Replace an API key by another with the same caller and scopes; both are valid for a while
    ///
    /// Give the new key to the clients during the overlap. To end the old key earlier, use: pet-inventory keys revoke
    Rotate {
        /// Id of the old key, as listed by: pet-inventory keys list
        id: i64,
        /// Time for which the old key stays valid, such as 24h or 15m, unless it expires earlier
        #[arg(long, value_name = "DURATION", default_value = "24h")]
        overlap: humantime::Duration,
        /// Lifetime of the new key, such as 90d or 12h, or never; default: auth.api_key_lifetime, or never
        #[arg(long, value_name = "DURATION")]
        expires: Option<Lifetime>,
        /// Print only {"caller":…,"plan":…,"id":…,"expiresAt":…,"replaced":{"id":…,"expiresAt":…},"key":…}
        #[arg(long)]
        json: bool,
    },
    /// List all API keys or those of a caller, with their last use to the minute, without their secrets
    List {
        /// Caller whose keys are listed; default: all callers
        #[arg(long, value_name = "NAME")]
        caller: Option<CallerName>,
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

/// Lifetime of a new key.
#[derive(Debug, Clone, Copy)]
pub enum Lifetime {
    /// Until the key is revoked.
    Unlimited,
    /// Time from now.
    Limited(Duration),
}

impl FromStr for Lifetime {
    type Err = humantime::DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "never" => Ok(Self::Unlimited),
            text => humantime::parse_duration(text).map(Self::Limited),
        }
    }
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
                let expires_at = expiry(config, expires)?;
                show(&owner.create(config, KIND, expires_at).await?, json)
            }
            Self::Rotate {
                id,
                overlap,
                expires,
                json,
            } => {
                let (until, expires_at) = (from_now(*overlap)?, expiry(config, expires)?);
                let created = credentials::rotate(config, id, until, expires_at).await?;
                show(&created, json)
            }
            Self::List { caller, json } => {
                credentials::list(config, KIND, caller.as_ref(), json).await
            }
            Self::Revoke { id } => credentials::revoke(config, KIND, "key", id).await,
        }
    }
}

fn show(created: &Created, json: bool) -> Result<(), Error> {
    if json {
        return say(created.to_json("key")?);
    }
    say(format_args!(
        "Caller  {} (plan {})\nKey id  {}\nKey     {}\nExpires {}\n\nThis is the only time the key is shown. \
         Send it in the header api_key, or as Authorization: Bearer.",
        created.caller,
        created.plan,
        created.id,
        created.secret.expose(),
        created.expires_at.as_deref().unwrap_or("never"),
    ))?;
    let Some(old) = &created.replaced else {
        return Ok(());
    };
    say(format_args!(
        "Key {id} expires at {}. To end it now: pet-inventory keys revoke {id}",
        old.expires_at,
        id = old.id,
    ))
}

/// Returns the expiry of a new key: by the option, or else by the configuration.
fn expiry(config: &Config, option: Option<Lifetime>) -> Result<Option<DateTime<Utc>>, Error> {
    let lifetime = match option {
        Some(Lifetime::Unlimited) => None,
        Some(Lifetime::Limited(lifetime)) => Some(lifetime),
        None => config.auth.api_key_lifetime,
    };
    lifetime.map(from_now).transpose()
}

#[expect(
    clippy::disallowed_methods,
    reason = "the lifetime of the key starts now"
)]
fn from_now(duration: Duration) -> Result<DateTime<Utc>, Error> {
    chrono::Duration::from_std(duration)
        .ok()
        .and_then(|duration| Utc::now().checked_add_signed(duration))
        .ok_or_else(|| "the duration is too long; pass a shorter one, such as 90d".into())
}
