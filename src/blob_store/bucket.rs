//! Opens an S3 bucket as an object store.

use std::{str::FromStr, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use object_store::{
    ClientOptions, ObjectStore, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService},
    prefix::PrefixStore,
};
use secrecy::{ExposeSecret, SecretString};
use url::Url;

use crate::{http_client, trace_context};

/// Maximum duration of one request to the bucket, of at most a 5 MiB part, and time after which none is retried: a
/// client is waiting.
const TIME: Duration = Duration::from_secs(20);

/// Opens `s3://bucket/prefix` with the standard AWS variables, which `config` has read.
pub(super) fn open(
    url: &Url,
    aws: &[(String, SecretString)],
) -> Result<Arc<dyn ObjectStore>, String> {
    let mut builder = AmazonS3Builder::new().with_bucket_name(url.host_str().unwrap_or_default());
    let mut allow_http = false;
    for (name, value) in aws {
        let name = name.to_ascii_lowercase();
        if let Ok(key) = AmazonS3ConfigKey::from_str(&name) {
            builder = builder.with_config(key, value.expose_secret());
        }
        // An explicit `http:` endpoint permits connections without TLS.
        allow_http |=
            name.starts_with("aws_endpoint") && value.expose_secret().starts_with("http:");
    }
    let store = builder
        .with_allow_http(allow_http)
        .with_http_connector(Connector)
        .with_retry(RetryConfig {
            max_retries: 2,
            retry_timeout: TIME,
            ..RetryConfig::default()
        })
        .build()
        .map_err(|error| error.to_string())?;
    let prefix = url.path().trim_matches('/');
    Ok(Arc::new(PrefixStore::new(store, prefix)))
}

/// Builds the HTTP client. The one of `object_store` would look for a TLS provider and find none.
#[derive(Debug)]
struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = || Ok(http_client::builder()?.timeout(TIME).build()?);
        let client = client().map_err(|source| object_store::Error::Generic {
            store: "S3",
            source,
        })?;
        Ok(HttpClient::new(Traced(client)))
    }
}

/// HTTP client that adds the trace context to requests.
#[derive(Debug)]
struct Traced(reqwest::Client);

impl HttpService for Traced {
    fn call<'a, 'b>(
        &'a self,
        mut request: HttpRequest,
    ) -> BoxFuture<'b, Result<HttpResponse, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        // The headers are not signed, so they may differ between attempts.
        trace_context::inject(request.headers_mut());
        self.0.call(request)
    }
}
