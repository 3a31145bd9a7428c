//! Fetches an issuer's keys over HTTP without trusting the network.
//!
//! Invariants:
//! - A fetch ends within [`TIMEOUT`] and reads at most [`MAX_SIZE`] bytes per response.
//! - Redirects and the environment's proxies are not followed: keys come from the operator's URL.

use std::time::Duration;

use reqwest::{Client, StatusCode};
use serde::Deserialize;
use url::Url;

use super::keys::KeySet;
use crate::{
    config::Issuer,
    http_client::{self, with_causes},
    trace_context,
};

/// Maximum duration of a fetch. Requests wait for it.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a response in bytes. A hundred keys with certificates are smaller.
const MAX_SIZE: usize = 256 << 10;

/// Failure to fetch keys. The message contains no part of a token.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No response, or an unreadable one.
    #[error("{}", with_causes(.0))]
    Http(#[from] reqwest::Error),
    #[error("no response within {} s", TIMEOUT.as_secs())]
    TimedOut,
    /// A status other than 200. Redirects are included.
    #[error("the response has status {0}")]
    Status(StatusCode),
    #[error("the response is larger than {MAX_SIZE} bytes")]
    TooLarge,
    /// The content is not of the expected form.
    #[error("{0}")]
    Malformed(String),
}

/// Builds the HTTP client for issuers.
///
/// # Errors
/// The reason, if the client cannot be built.
pub fn client() -> Result<Client, String> {
    let client = http_client::builder().map_err(|error| error.to_string())?;
    client
        // Fetches are about an hour apart, so no connection is kept.
        .pool_max_idle_per_host(0)
        .build()
        .map_err(|error| with_causes(&error))
}

/// Fetches the keys of an issuer.
pub async fn keys(client: &Client, issuer: &Issuer) -> Result<KeySet, Error> {
    let fetch = async {
        let url = match &issuer.jwks_url {
            Some(url) => url.clone(),
            None => discover(client, issuer).await?,
        };
        let set = get(client, url).await?;
        KeySet::parse(&set, issuer)
            .map_err(|error| Error::Malformed(format!("invalid JWK Set: {error}")))
    };
    tokio::time::timeout(TIMEOUT, fetch)
        .await
        .map_err(|_| Error::TimedOut)?
}

/// Returns the issuer's `jwks_uri` (OpenID Connect Discovery 1.0 §4).
async fn discover(client: &Client, issuer: &Issuer) -> Result<Url, Error> {
    #[derive(Deserialize)]
    struct Metadata {
        issuer: String,
        jwks_uri: Url,
    }
    let base = issuer.issuer.trim_end_matches('/');
    let url = format!("{base}/.well-known/openid-configuration");
    let malformed = |problem: &dyn ToString| {
        Error::Malformed(format!(
            "invalid OpenID configuration: {}",
            problem.to_string()
        ))
    };
    let url = url.parse().map_err(|error| malformed(&error))?;
    let metadata = get(client, url).await?;
    let metadata: Metadata =
        serde_json::from_slice(&metadata).map_err(|error| malformed(&error))?;
    if metadata.issuer != issuer.issuer {
        return Err(malformed(&"its issuer is not the configured one"));
    }
    if !issuer.trusts(&metadata.jwks_uri) {
        return Err(malformed(&"its jwks_uri is not https"));
    }
    Ok(metadata.jwks_uri)
}

async fn get(client: &Client, url: Url) -> Result<Vec<u8>, Error> {
    let request = client.get(url).header("accept", "application/json");
    let mut request = request.build()?;
    trace_context::inject(request.headers_mut());
    let mut response = client.execute(request).await?;
    if response.status() != StatusCode::OK {
        return Err(Error::Status(response.status()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > MAX_SIZE {
            return Err(Error::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
