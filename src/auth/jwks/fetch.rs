//! Fetches an issuer's keys over HTTP without trusting the network.
//!
//! Invariants:
//! - A fetch ends within [`TIMEOUT`] and reads at most [`MAX_SIZE`] bytes per response.
//! - Redirects and the environment's proxies are not followed: keys come from the operator's URL.

use std::{fmt::Display, time::Duration};

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
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Builds the HTTP client for issuers, or returns the reason why it cannot.
pub fn client() -> Result<Client, String> {
    let builder = http_client::builder().map_err(|error| error.to_string())?;
    // Fetches are about an hour apart, so no connection is kept.
    let client = builder.pool_max_idle_per_host(0).build();
    client.map_err(|error| with_causes(&error))
}

/// Fetches the keys of an issuer.
pub async fn keys(client: &Client, issuer: &Issuer) -> Result<KeySet, Error> {
    let fetch = async {
        let url = match &issuer.jwks_url {
            Some(url) => url.clone(),
            None => discover(client, issuer).await?,
        };
        let set = KeySet::parse(&get(client, url).await?, issuer);
        Ok::<_, Error>(set.map_err(|error| format!("invalid JWK Set: {error}"))?)
    };
    let result = tokio::time::timeout(TIMEOUT, fetch).await;
    result.map_err(|_| format!("no response within {} s", TIMEOUT.as_secs()))?
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
    let malformed = |problem: &dyn Display| format!("invalid OpenID configuration: {problem}");
    let url = url.parse().map_err(|error| malformed(&error))?;
    let json = get(client, url).await?;
    let metadata: Metadata = serde_json::from_slice(&json).map_err(|error| malformed(&error))?;
    if metadata.issuer != issuer.issuer {
        return Err(malformed(&"its issuer is not the configured one").into());
    }
    if !issuer.trusts(&metadata.jwks_uri) {
        return Err(malformed(&"its jwks_uri is not https").into());
    }
    Ok(metadata.jwks_uri)
}

async fn get(client: &Client, url: Url) -> Result<Vec<u8>, Error> {
    let request = client.get(url).header("accept", "application/json");
    let mut request = request.build()?;
    trace_context::inject(request.headers_mut());
    let mut response = client.execute(request).await?;
    if response.status() != StatusCode::OK {
        // Redirects are included.
        return Err(format!("the response has status {}", response.status()).into());
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > MAX_SIZE {
            return Err(format!("the response is larger than {MAX_SIZE} bytes").into());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
