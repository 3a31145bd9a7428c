//! Bearer tokens of outside issuers: JWTs (RFC 7519, RFC 9068), checked by the issuer's public keys.
//!
//! The life of a token: [`Token::read`](token::Token::read) → its `iss` finds the configured issuer →
//! [`Token::claims`](token::Token::claims) → [`Source::check`](source::Source::check), last, so that only
//! a token with the right claims makes anybody ask an issuer for keys → the caller in the database.
//!
//! Invariants: issuers, algorithms and keys come from the configuration alone; an issuer speaks for its
//! own subjects alone; a token that is no good reaches neither the database nor the memory.
//!
//! A token without `kid` is good where one key fits its algorithm. When an issuer of such tokens changes
//! that key, we hear of it when the old one is an hour old.

mod fetch;
mod keys;
mod source;
#[cfg(test)]
mod tests;
mod token;

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::{DateTime, Utc};
use moka::sync::Cache;
use sha2::{Digest as _, Sha256};

use self::{source::Source, token::Token};
use super::Error;
use crate::{
    config,
    db::{self, Database, credentials::Found},
    domain::{
        caller::{Caller, CallerId, CallerName, Scope, Scopes},
        clock::{Clock, Moment},
        plan::Plan,
    },
};

/// How often the stored plan of one caller follows its tokens. Two tokens that name two plans, shown in
/// turn, would otherwise have every process forget every credential with each request.
const FOLLOW_EVERY: Duration = Duration::from_mins(1);

/// The configured issuers. Cheap to clone.
#[derive(Clone)]
pub struct Issuers {
    sources: Arc<[Arc<Source>]>,
    /// When the stored plan of a caller last followed a token.
    followed: Cache<CallerId, Moment>,
    clock: Clock,
}

impl Issuers {
    /// The issuers of the configuration. Their keys are fetched when the first token comes.
    ///
    /// # Errors
    /// Why there can be no HTTP client.
    pub fn new(issuers: Vec<config::Issuer>, clock: Clock) -> Result<Self, String> {
        let mut sources = Vec::new();
        if !issuers.is_empty() {
            let client = fetch::client()?;
            sources.extend(
                issuers.into_iter().enumerate().map(|(place, issuer)| {
                    Source::new(issuer, place, client.clone(), clock.clone())
                }),
            );
        }
        Ok(Self {
            sources: sources.into(),
            followed: Cache::new(10_000),
            clock,
        })
    }

    /// Whether a bearer token is for us to judge.
    #[must_use]
    pub fn take(&self, token: &str) -> bool {
        !self.sources.is_empty() && Token::resembles(token)
    }

    /// Whom a token stands for at `now`. A subject that nobody has seen before becomes a caller.
    pub async fn find_caller(
        &self,
        database: &Database,
        token: &str,
        now: DateTime<Utc>,
    ) -> Result<Found, Error> {
        let token = Token::read(token).ok_or(Error::Invalid)?;
        let issuer = token.issuer().ok_or(Error::Invalid)?;
        let source = self.sources.iter().find(|it| it.issuer.issuer == issuer);
        let source = source.ok_or(Error::Invalid)?;
        let claims = token.claims(&source.issuer, now).ok_or(Error::Invalid)?;
        source.check(&token).await?;

        let name = name(issuer, &claims.subject).ok_or(Error::Invalid)?;
        let stored = find_or_insert(database, &name, claims.plan.unwrap_or(Plan::Free)).await?;
        if let (Some(id), Some(plan)) = (stored.id, claims.plan)
            && plan != stored.plan
            && self.may_follow(id)
        {
            db::callers::set_plan(database.pool(), &name, plan).await?;
        }
        let left = claims.expires_at - token::seconds(now);
        Ok(Found {
            caller: Caller {
                plan: claims.plan.unwrap_or(stored.plan),
                scopes: granted(claims.scopes, stored.scopes),
                ..stored
            },
            expires_in: Duration::try_from_secs_f64(left).ok(),
        })
    }

    fn may_follow(&self, caller: CallerId) -> bool {
        let now = self.clock.now();
        let last = self.followed.get(&caller);
        if last.is_some_and(|last| now < last + FOLLOW_EVERY) {
            return false;
        }
        self.followed.insert(caller, now);
        true
    }
}

/// What a token may do of what its caller may. Whether its issuer may name administrators is decided in
/// the configuration, and by [`Token::claims`]; what is stored of a caller has no say in that.
fn granted(claimed: Scopes, stored: Scopes) -> Scopes {
    let admin = claimed.iter().filter(|scope| *scope == Scope::Admin);
    claimed.intersection(stored).iter().chain(admin).collect()
}

/// The caller of that name, on `plan` when it is new. It may do all but administer, as callers that the
/// operator makes: each token says which of it.
async fn find_or_insert(
    database: &Database,
    name: &CallerName,
    plan: Plan,
) -> Result<Caller, db::Error> {
    let pool = database.pool();
    if let Some(caller) = db::callers::get(pool, name).await? {
        return Ok(caller);
    }
    let all_but_admin = Scope::ALL.into_iter().filter(|it| *it != Scope::Admin);
    let scopes = all_but_admin.collect();
    if db::callers::insert(pool, name, plan, scopes)
        .await?
        .is_some()
    {
        tracing::info!(caller = %name, %plan, "an issuer's subject is a caller from now on");
    }
    // Made just now, here or by another request.
    let caller = db::callers::get(pool, name).await?;
    caller.ok_or_else(|| db::Error::Corrupt(format!("callers: {name} vanished")))
}

/// The name of an issuer's subject among callers: `jwt:`, 128 bits of a hash that no two of them share,
/// and the subject itself for people to read, where it fits and is plain.
fn name(issuer: &str, subject: &str) -> Option<CallerName> {
    const LONGEST: usize = 64;
    // Neither has a NUL in it: an issuer is a URL, a subject has no control characters.
    let hash = Sha256::digest(format!("{issuer}\0{subject}"));
    let short = format!("jwt:{}", URL_SAFE_NO_PAD.encode(hash.get(..16)?));
    let long = format!("{short}:{subject}");
    let readable = long.len() <= LONGEST && subject.bytes().all(|byte| byte.is_ascii_graphic());
    (if readable { long } else { short }).parse().ok()
}
