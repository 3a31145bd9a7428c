//! Verifies JWTs of external issuers (RFC 7519, RFC 9068) with the issuers' public keys.
//!
//! Steps: [`Token::parse`], look up the issuer in the configuration by `iss`, check the times, [`Source::verify`], find
//! or create the caller in the database. The signature comes after the times, so that an expired token does not cause
//! a request to an issuer.
//!
//! Invariants:
//! - The configuration, not the token, determines issuers, algorithms and the sources of keys.
//! - An issuer can only assert its own subjects.
//! - An invalid token reaches neither the database nor the credential cache. A token of a disabled caller is not cached.
//!
//! A token without `kid` is verified with each key of its algorithm, at most 16. If an issuer of such tokens replaces its keys,
//! the change is noticed when the cached keys are an hour old.

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

pub use self::token::{Token, looks_like_jwt};
use self::{source::Source, token::refused};
use super::error::Error;
use crate::{
    config,
    db::{self, Connection, Database, callers::CallerChange, credentials::Found},
    domain::{
        caller::{Caller, CallerId, CallerName, Scope, Scopes},
        change::Initiator,
        clock::{Clock, Moment},
        plan::Plan,
    },
};

/// Minimum interval between updates of a caller's stored plan. Otherwise alternating tokens with two plans would clear
/// every process's credential cache with each request.
const PLAN_UPDATE_INTERVAL: Duration = Duration::from_mins(1);

/// Configured issuers. Cheap to clone.
#[derive(Clone)]
pub struct Issuers {
    sources: Arc<[Arc<Source>]>,
    /// Time of the last plan update, per caller.
    plan_updates: Cache<CallerId, Moment>,
    clock: Clock,
}

impl Issuers {
    /// Creates the configured issuers, or `None` if there are none. Their keys are fetched when the first token arrives. Fails if
    /// the HTTP client cannot be built.
    pub fn new(issuers: Vec<config::Issuer>, clock: Clock) -> Result<Option<Self>, String> {
        if issuers.is_empty() {
            return Ok(None);
        }
        let client = fetch::client()?;
        let sources = issuers.into_iter().enumerate();
        let sources = sources
            .map(|(index, issuer)| Source::new(issuer, index, client.clone(), clock.clone()));
        Ok(Some(Self {
            sources: sources.collect(),
            plan_updates: Cache::new(10_000),
            clock,
        }))
    }

    /// Returns the caller of a token at `now`. A new subject becomes a new caller.
    pub async fn find_caller(
        &self,
        database: &Database,
        token: &str,
        now: DateTime<Utc>,
    ) -> Result<Found, Error> {
        let token = Token::parse(token).map_err(refused)?;
        let claims = &token.claims;
        let mut sources = self.sources.iter();
        let source = sources.find(|source| source.issuer.issuer == claims.issuer);
        let source = source.ok_or_else(|| refused("its iss is that of no configured issuer"))?;
        let issuer = &source.issuer;
        let expires_in = claims.expires_in(now, issuer.leeway);
        let expires_in = expires_in.ok_or_else(|| refused("its exp, nbf or iat excludes now"))?;
        // Before a key is looked up: tokens for other services cause no fetch.
        if !claims.is_for(&issuer.audience) {
            return Err(refused("its aud is for another service"));
        }
        source.verify(&token).await?;

        let name = caller_name(&issuer.issuer, &claims.subject);
        let name = name.ok_or_else(|| refused("its sub names no caller"))?;
        let claimed = claims.plan(issuer);
        let stored = find_or_insert(database, &name, claimed.unwrap_or(Plan::Free)).await?;
        let stored = stored.ok_or_else(|| refused("its caller is disabled"))?;
        if let (Some(id), Some(plan)) = (stored.id, claimed)
            && plan != stored.plan
            && self.may_update_plan(id)
        {
            let change = CallerChange {
                plan: Some(plan),
                ..CallerChange::default()
            };
            let changed = database.transact(async |transaction| {
                let initiator = Initiator::default();
                db::callers::change(transaction, id, change, &initiator).await
            });
            changed.await?;
        }
        Ok(Found {
            caller: Caller {
                plan: claimed.unwrap_or(stored.plan),
                scopes: granted(claims.scopes(issuer), stored.scopes),
                ..stored
            },
            expires_in: Some(expires_in),
            api_key: None,
        })
    }

    fn may_update_plan(&self, caller: CallerId) -> bool {
        let now = self.clock.now();
        let last = self.plan_updates.get(&caller);
        if last.is_some_and(|last| now < last + PLAN_UPDATE_INTERVAL) {
            return false;
        }
        self.plan_updates.insert(caller, now);
        true
    }
}

/// Returns the scopes common to the token and its caller, plus a claimed `admin`, which counts only if the
/// configuration lets the issuer grant it.
fn granted(claimed: Scopes, stored: Scopes) -> Scopes {
    let admin = claimed.iter().filter(|scope| *scope == Scope::Admin);
    claimed.intersection(stored).iter().chain(admin).collect()
}

/// Returns the caller of that name, or creates it on `plan`. It gets all scopes but `admin`: each token limits them. Returns
/// `None` if the caller is disabled.
async fn find_or_insert(
    database: &Database,
    name: &CallerName,
    plan: Plan,
) -> Result<Option<Caller>, db::Error> {
    let get = async |connection: &mut Connection| db::callers::get(connection, name).await;
    if let Some((caller, is_disabled)) = database.run(get).await? {
        return Ok((!is_disabled).then_some(caller));
    }
    let scopes = Scope::ALL.into_iter();
    let scopes = scopes.filter(|scope| *scope != Scope::Admin).collect();
    let inserted = database.run(async |connection| {
        db::callers::insert(connection, name, plan, scopes, &Initiator::default()).await
    });
    if inserted.await?.is_some() {
        tracing::info!(caller = %name, %plan, "created a caller for the subject of an issuer");
    }
    // A concurrent request may have inserted it.
    let (caller, is_disabled) = database.run(get).await?.ok_or_else(|| {
        db::Error::Corrupt(format!("callers: no row for {name} after its insertion"))
    })?;
    Ok((!is_disabled).then_some(caller))
}

/// Returns the caller name for an issuer's subject: `jwt:`, 128 bits of a hash of both and, if it is short and
/// printable ASCII, the subject for people to read.
fn caller_name(issuer: &str, subject: &str) -> Option<CallerName> {
    const MAX_LENGTH: usize = 64;
    // NUL is in neither part: an issuer is a URL, and a subject has no control characters.
    let hash = Sha256::digest(format!("{issuer}\0{subject}"));
    let short = format!("jwt:{}", URL_SAFE_NO_PAD.encode(hash.get(..16)?));
    let long = format!("{short}:{subject}");
    let readable = long.len() <= MAX_LENGTH && subject.bytes().all(|byte| byte.is_ascii_graphic());
    (if readable { long } else { short }).parse().ok()
}
