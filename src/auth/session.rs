//! Sessions: from a user's name and password to a bearer token for a while.

use std::time::Duration;

use chrono::{DateTime, Utc};
use secrecy::SecretString;

use super::{
    password::{self, Passwords, Verdict},
    secret::{Kind, Secret},
};
use crate::{
    db::{self, Connection, Database, SecretHash},
    domain::{
        plan::Plan,
        user::{Password, Username},
    },
};

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such user, it has another password, or none.
    #[error("the username or the password is wrong")]
    WrongPair,
    /// The password could not be verified.
    #[error(transparent)]
    Password(#[from] password::Error),
    /// The operating system has no random numbers.
    #[error("no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// Nobody could be asked.
    #[error(transparent)]
    Database(#[from] db::Error),
}

impl db::Failure for Error {
    fn database_error(&self) -> Option<&db::Error> {
        match self {
            Self::Database(error) => Some(error),
            _ => None,
        }
    }
}

/// A session, its token to be shown once.
pub struct Opened {
    /// The token.
    pub token: Secret,
    /// When it ends by itself.
    pub expires_at: DateTime<Utc>,
    /// The plan that its requests are counted against.
    pub plan: Plan,
}

/// Logs a user in. Whether there is one of that name cannot be told from how long it takes, as far as its stored
/// hash has today's parameters: one of others takes its own time until the user has logged in once more.
pub async fn open(
    database: &Database,
    passwords: &Passwords,
    username: &Username,
    password: Password,
    lifetime: Duration,
) -> Result<Opened, Error> {
    let account = db::users::find(database.pool(), username).await?;
    let stored = account
        .as_ref()
        .and_then(|account| account.password_hash.clone());
    let verdict = passwords.verify(password, stored.clone()).await?;
    let (Some(account), Some(stored), Verdict::Right { renewed }) = (account, stored, verdict)
    else {
        return Err(Error::WrongPair);
    };
    let token = Secret::generate(Kind::Session)?;
    let expires_at = database
        .transact(async |transaction: &mut Connection| {
            let stored: SecretString = match renewed {
                Some(renewed) => {
                    db::users::renew_hash(transaction, account.user.id, &stored, &renewed).await?;
                    renewed
                }
                None => stored,
            };
            // Only while the password that was verified is the password.
            let (hash, hint) = (token.hash(), token.hint());
            let session = (&hash, hint.as_str(), lifetime);
            db::sessions::insert(transaction, account.user.id, &stored, session)
                .await?
                .ok_or(Error::WrongPair)
        })
        .await?;
    Ok(Opened {
        token,
        expires_at,
        plan: account.plan,
    })
}

/// Ends the session of a token; gives what to forget of it. `None`: it is no session's.
pub async fn close(database: &Database, token: &[u8]) -> Result<Option<SecretHash>, db::Error> {
    let session = std::str::from_utf8(token).ok();
    let session = session.and_then(|text| Secret::parse(text, &[Kind::Session]));
    let Some(session) = session else {
        return Ok(None);
    };
    let hash = session.hash();
    let ended = db::sessions::revoke(database.pool(), &hash).await?;
    Ok(ended.then_some(hash))
}
