//! `keys`: creates, rotates, lists and revokes API keys.

use std::{str::FromStr, time::Duration};

use chrono::{DateTime, Utc};
use clap::Subcommand;

use super::{
    credentials::{self, Created, Expiry, Owner},
    output::{Error, print},
};
use crate::{
    config::Config,
    db::credentials::CredentialKind,
    domain::{
        caller::{CallerName, KeyName},
        id::CredentialId,
    },
};

#[derive(Debug, Subcommand)]
pub enum Keys {
    /// Create an API key; it is shown only once
    ///
    /// With --json: {"caller":…,"plan":…,"id":…,"expiresAt":…,"key":…}
    Create {
        #[command(flatten)]
        owner: Owner,
        /// Name of the key, for people, such as "till 3"
        #[arg(long, value_name = "TEXT")]
        name: Option<KeyName>,
        /// Lifetime of the key, such as 90d or 12h, or never; default: auth.api_key_lifetime, or never
        #[arg(long, value_name = "DURATION")]
        expires: Option<Lifetime>,
    },
    /// Replace an API key by another with the same caller, name and scopes; both are valid for a while
    ///
    /// Give the new key to the clients during the overlap. To end the old key earlier, use: pet-inventory keys revoke. With
    /// --json: {"caller":…,"plan":…,"id":…,"expiresAt":…,"replaced":{"id":…,"expiresAt":…},"key":…}
    Rotate {
        /// Id of the old key, as listed by: pet-inventory keys list
        id: CredentialId,
        /// Time for which the old key stays valid, such as 24h or 15m, unless it expires earlier
        #[arg(long, value_name = "DURATION", default_value = "24h")]
        overlap: humantime::Duration,
        /// Lifetime of the new key, such as 90d or 12h, or never; default: that of the old one
        #[arg(long, value_name = "DURATION")]
        expires: Option<Lifetime>,
        /// Do so even if no administrator is left
        #[arg(long)]
        force: bool,
    },
    /// List all API keys or those of a caller, with their last use to the minute, without their secrets
    ///
    /// With --json, an array of {"id":…,"callerId":…,"caller":…,"hint":…,"name":…,"scopes":[…],"createdAt":…,"expiresAt":…,
    /// "revokedAt":…,"lastUsedAt":…}, without what it does not have
    List {
        /// Caller that has the keys; default: all callers
        #[arg(long, value_name = "NAME")]
        caller: Option<CallerName>,
    },
    /// Revoke an API key, permanently
    ///
    /// With --json: {"id":…,"revoked":true}
    Revoke {
        /// Id of the key, as listed by: pet-inventory keys list
        id: CredentialId,
        /// Do so even if no administrator is left
        #[arg(long)]
        force: bool,
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
    pub async fn run(self, config: &Config, json: bool) -> Result<(), Error> {
        const KIND: CredentialKind = CredentialKind::ApiKey;
        match self {
            Self::Create {
                owner,
                name,
                expires,
            } => {
                let expires_at = expiry(config, expires)?;
                show(&owner.create(config, KIND, name, expires_at).await?, json)
            }
            Self::Rotate {
                id,
                overlap,
                expires,
                force,
            } => {
                let until = from_now(*overlap)?;
                let expiry = match expires {
                    None => Expiry::AsBefore,
                    Some(_) => expiry(config, expires)?.map_or(Expiry::Never, Expiry::At),
                };
                let created = credentials::rotate(config, id, until, expiry, force).await?;
                show(&created, json)
            }
            Self::List { caller } => credentials::list(config, KIND, caller.as_ref(), json).await,
            Self::Revoke { id, force } => {
                credentials::revoke(config, KIND, ("key", id), force, json).await
            }
        }
    }
}

fn show(created: &Created, json: bool) -> Result<(), Error> {
    let mut text = format!(
        "Caller  {} (plan {})\nKey id  {}\nKey     {}\nExpires {}\n\nThis is the only time the key is shown. \
         Send it in the header api_key, or as Authorization: Bearer.",
        created.caller,
        created.plan,
        created.id,
        created.secret.expose(),
        created.expires_at.as_deref().unwrap_or("never"),
    );
    if let Some(old) = &created.replaced {
        text = format!(
            "{text}\nKey {id} expires at {}. To end it now: pet-inventory keys revoke {id}",
            old.expires_at,
            id = old.id,
        );
    }
    print(json, text, &created.to_json("key")?)
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
