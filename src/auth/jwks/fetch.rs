//! Asking an issuer for its keys, over HTTP, and not trusting the way there.
//!
//! Invariant: a fetch ends within [`TIME`] and takes at most [`SIZE`] bytes an answer, whatever the other
//! side does. No redirects, no proxy of the environment's: keys come from where the operator said.

use std::time::Duration;

use reqwest::{Client, StatusCode};
use serde::Deserialize;
use url::Url;

use super::keys::KeySet;
use crate::{
    config::Issuer,
    http_client::{self, with_causes},
    trace,
};

/// How long a fetch may take in all. Requests wait for it.
const TIME: Duration = Duration::from_secs(5);
/// The largest answer that is read, in bytes; a hundred keys with their certificates are smaller.
const SIZE: usize = 256 << 10;

/// Why there are no keys. Says nothing of any token.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No answer, or none that can be read.
    #[error("{}", with_causes(.0))]
    Http(#[from] reqwest::Error),
    /// Too slow.
    #[error("no answer within {} s", TIME.as_secs())]
    TimedOut,
    /// Another answer than 200; a redirect is one.
    #[error("answered {0}")]
    Status(StatusCode),
    /// Too much.
    #[error("answered more than {SIZE} bytes")]
    TooLarge,
    /// Not what it should be.
    #[error("{0}")]
    Malformed(String),
}

/// A client for issuers.
///
/// # Errors
/// When the operating system does not let us have one.
pub fn client() -> Result<Client, String> {
    let client = http_client::builder().map_err(|error| error.to_string())?;
    client
        // An issuer is asked about once an hour.
        .pool_max_idle_per_host(0)
        .build()
        .map_err(|error| with_causes(&error))
}

/// The keys of an issuer.
pub async fn keys(client: &Client, issuer: &Issuer) -> Result<KeySet, Error> {
    let fetch = async {
        let url = match &issuer.jwks_url {
            Some(url) => url.clone(),
            None => discover(client, issuer).await?,
        };
        let set = get(client, url).await?;
        KeySet::read(&set, &issuer.algorithms)
            .map_err(|error| Error::Malformed(format!("no JWK Set: {error}")))
    };
    tokio::time::timeout(TIME, fetch)
        .await
        .map_err(|_| Error::TimedOut)?
}

/// OpenID Connect Discovery 1.0 §4.
async fn discover(client: &Client, issuer: &Issuer) -> Result<Url, Error> {
    #[derive(Deserialize)]
    struct Metadata {
        issuer: String,
        jwks_uri: Url,
    }
    let base = issuer.issuer.trim_end_matches('/');
    let url = format!("{base}/.well-known/openid-configuration");
    let malformed = |problem: &dyn ToString| {
        Error::Malformed(format!("no OpenID configuration: {}", problem.to_string()))
    };
    let url = url.parse().map_err(|error| malformed(&error))?;
    let metadata = get(client, url).await?;
    let metadata: Metadata =
        serde_json::from_slice(&metadata).map_err(|error| malformed(&error))?;
    if metadata.issuer != issuer.issuer {
        return Err(malformed(&"of another issuer"));
    }
    if !issuer.trusts(&metadata.jwks_uri) {
        return Err(malformed(&"its jwks_uri is not https"));
    }
    Ok(metadata.jwks_uri)
}

async fn get(client: &Client, url: Url) -> Result<Vec<u8>, Error> {
    let request = client.get(url).header("accept", "application/json");
    let mut request = request.build()?;
    trace::pass_on(request.headers_mut());
    let mut response = client.execute(request).await?;
    if response.status() != StatusCode::OK {
        return Err(Error::Status(response.status()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > SIZE {
            return Err(Error::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
