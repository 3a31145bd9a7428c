//! `[[auth.issuers]]`: external issuers of bearer tokens, and the rights that their tokens may grant.
//!
//! Invariant: traffic to the URLs of an [`Issuer`] cannot be intercepted: they are https, or http to a loopback host.

use std::{collections::HashSet, time::Duration};

use serde::{Deserialize, Deserializer, de};
use url::Url;

use crate::domain::{address, impl_names};

/// Maximum configurable clock difference to an issuer.
const MAX_LEEWAY: Duration = Duration::from_mins(1);

/// Issuer of bearer tokens. `config/default.toml` describes each key.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "Table")]
#[expect(missing_docs, reason = "config/default.toml describes every key")]
pub struct Issuer {
    pub issuer: String,
    pub audience: String,
    pub jwks_url: Option<Url>,
    pub algorithms: Vec<Algorithm>,
    pub plan_claim: Option<String>,
    pub scope_claim: String,
    pub allow_admin: bool,
    pub leeway: Duration,
}

/// Signature algorithm of a token (RFC 7518 §3.1, RFC 8037 §3.1). Symmetric algorithms are excluded: the key that
/// verifies such a token can also sign one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// RSA with SHA-256, PKCS #1 v1.5 padding.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// EdDSA, on Ed25519.
    EdDsa,
}

impl_names!(Algorithm, Rs256 = "RS256", Es256 = "ES256", EdDsa = "EdDSA",);

/// TOML form of an [`Issuer`], before validation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    issuer: String,
    audience: String,
    jwks_url: Option<String>,
    algorithms: Option<Vec<String>>,
    plan_claim: Option<String>,
    scope_claim: Option<String>,
    #[serde(default)]
    allow_admin: bool,
    #[serde(default, with = "humantime_serde")]
    leeway: Option<Duration>,
}

impl TryFrom<Table> for Issuer {
    type Error = String;

    fn try_from(table: Table) -> Result<Self, String> {
        let issuer = url("issuer", &table.issuer)?;
        if issuer.query().is_some() || issuer.fragment().is_some() {
            return Err("issuer must be a URL without query or fragment".to_owned());
        }
        let jwks_url = table.jwks_url.as_deref();
        let jwks_url = jwks_url.map(|text| url("jwks_url", text)).transpose()?;
        let algorithms: Vec<Algorithm> = match table.algorithms {
            None => vec![Algorithm::Rs256, Algorithm::Es256],
            Some(names) => names
                .into_iter()
                .map(|name| {
                    name.parse()
                        .map_err(|reason| format!("algorithms: {name:?} {reason}"))
                })
                .collect::<Result<_, _>>()?,
        };
        let scope_claim = table.scope_claim.unwrap_or_else(|| "scope".to_owned());
        for (key, empty) in [
            ("audience", table.audience.is_empty()),
            ("algorithms", algorithms.is_empty()),
            ("scope_claim", scope_claim.is_empty()),
            ("plan_claim", table.plan_claim.as_deref() == Some("")),
        ] {
            if empty {
                return Err(format!("{key} must not be empty"));
            }
        }
        let leeway = table.leeway.unwrap_or(Duration::from_secs(30));
        if leeway > MAX_LEEWAY {
            return Err("leeway must be at most 60s".to_owned());
        }
        Ok(Self {
            issuer: table.issuer,
            audience: table.audience,
            jwks_url,
            algorithms,
            plan_claim: table.plan_claim,
            scope_claim,
            allow_admin: table.allow_admin,
            leeway,
        })
    }
}

impl Issuer {
    /// Returns true if keys may be fetched from `url`: over https, or over http from a loopback host if the issuer is
    /// at one too. A remote issuer must not direct requests to services on this machine.
    pub fn trusts(&self, url: &Url) -> bool {
        match url.scheme() {
            "https" => true,
            "http" => is_loopback(url) && self.issuer.starts_with("http:"),
            _ => false,
        }
    }
}

fn url(key: &str, text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|error| format!("{key}: {error}"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(format!("{key} must be a URL without user and password"));
    }
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_loopback(&url) => Ok(url),
        _ => Err(format!(
            "{key} must be an https URL; http is allowed only for a loopback host"
        )),
    }
}

fn is_loopback(url: &Url) -> bool {
    url.host_str().is_some_and(address::is_loopback)
}

/// Deserializes the issuers. Refuses duplicates, since two rules would apply to one token.
pub(super) fn distinct<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<Issuer>, D::Error> {
    let issuers = Vec::<Issuer>::deserialize(value)?;
    let mut known = HashSet::new();
    match issuers.iter().find(|it| !known.insert(&it.issuer)) {
        Some(twice) => Err(de::Error::custom(format!(
            "issuer {:?} is listed twice",
            twice.issuer
        ))),
        None => Ok(issuers),
    }
}
