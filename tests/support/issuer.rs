//! Token issuer: an HTTP server on loopback that publishes keys.

use std::{
    io::Write as _,
    sync::{Arc, Mutex},
};

use chrono::Utc;
use pet_inventory::domain::clock::Clock;
use reqwest::Method;
use serde_json::{Value, json};
use wiremock::{Mock, ResponseTemplate, matchers::any};

use crate::{MockHttp, RequestExt, Response, TestApp, TestDatabase, config_over, signer::Signer};

/// Audience of the tokens of all test issuers.
pub const AUDIENCE: &str = "pets.test";

/// Running issuer; stops when dropped.
pub struct Issuer {
    server: MockHttp,
    responses: Arc<Mutex<Responses>>,
}

struct Responses {
    keys: ResponseTemplate,
    /// Response at `/.well-known/openid-configuration`.
    configuration: ResponseTemplate,
}

impl Issuer {
    /// Starts an issuer that publishes the signers' keys.
    pub async fn start(signers: &[&Signer]) -> Self {
        let server = MockHttp::start().await;
        let configuration =
            json!({ "issuer": server.uri(), "jwks_uri": format!("{}/keys", server.uri()) });
        let responses = Arc::new(Mutex::new(Responses {
            keys: key_set(signers),
            configuration: ResponseTemplate::new(200).set_body_json(configuration),
        }));
        let shared = Arc::clone(&responses);
        let response = move |request: &wiremock::Request| {
            let responses = shared.lock().expect("never poisoned");
            match request.url.path() {
                "/.well-known/openid-configuration" => responses.configuration.clone(),
                _ => responses.keys.clone(),
            }
        };
        Mock::given(any())
            .respond_with(response)
            .mount(&server)
            .await;
        Self { server, responses }
    }

    /// Replaces the published keys.
    pub fn publish(&self, signers: &[&Signer]) {
        self.respond_with(key_set(signers));
    }

    /// Replaces the response at the `jwks_uri`.
    pub fn respond_with(&self, response: ResponseTemplate) {
        self.responses.lock().expect("never poisoned").keys = response;
    }

    /// Replaces the response at `/.well-known/openid-configuration`.
    pub fn configuration(&self, response: ResponseTemplate) {
        self.responses.lock().expect("never poisoned").configuration = response;
    }

    /// Returns the `iss` of its tokens.
    pub fn url(&self) -> String {
        self.server.uri()
    }

    /// Returns the paths of all requests so far.
    pub async fn requested_paths(&self) -> Vec<String> {
        let requests = self.server.received_requests().await.expect("recorded");
        let paths = requests.iter().map(|it| it.url.path().to_owned());
        paths.collect()
    }

    /// Returns the `traceparent` headers of all requests so far.
    pub async fn traceparents(&self) -> Vec<String> {
        let requests = self.server.received_requests().await.expect("recorded");
        let headers = requests
            .iter()
            .filter_map(|it| it.headers.get("traceparent"));
        let text = headers.map(|value| value.to_str().expect("ASCII").to_owned());
        text.collect()
    }

    /// Returns the number of requests so far.
    pub async fn fetches(&self) -> usize {
        self.requested_paths().await.len()
    }

    /// Returns its table of the configuration, with additional lines.
    pub fn table(&self, more: &str) -> String {
        self.table_without_keys(&format!("jwks_url = \"{}/keys\"\n{more}", self.url()))
    }

    /// Returns the same table without `jwks_url`.
    pub fn table_without_keys(&self, more: &str) -> String {
        format!(
            "[[auth.issuers]]\nissuer = \"{}\"\naudience = \"{AUDIENCE}\"\n\
             algorithms = [\"RS256\", \"ES256\", \"EdDSA\"]\n{more}\n",
            self.url()
        )
    }

    /// Returns valid claims for a subject, for ten minutes.
    pub fn claims(&self, subject: &str) -> Value {
        let now = now();
        json!({
            "iss": self.url(), "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + 600,
            "scope": "openid read:pets write:pets",
        })
    }
}

/// Returns the current time in seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "tokens tell time by the wall")]
pub fn now() -> i64 {
    Utc::now().timestamp()
}

/// Returns a JWK Set with the signers' keys.
pub fn key_set(signers: &[&Signer]) -> ResponseTemplate {
    let set: Vec<Value> = signers.iter().map(|signer| signer.jwk()).collect();
    keys(&set)
}

/// Returns a JWK Set with any members, valid keys or not.
pub fn keys(keys: &[Value]) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_json(json!({ "keys": keys }))
}

/// Starts the service with the issuers' tables and the system clock.
pub async fn serve(tables: &[String]) -> TestApp {
    // Some tests send many wrong tokens.
    let generous = [(
        "PET_INVENTORY__LIMITS__FAILED_AUTHENTICATION_PER_MINUTE",
        "100000",
    )];
    serve_with(tables, &generous, Clock::system()).await
}

/// Starts the service with the issuers' tables, settings and a clock.
pub async fn serve_with(tables: &[String], settings: &[(&str, &str)], clock: Clock) -> TestApp {
    let database = TestDatabase::migrated().await;
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(tables.concat().as_bytes()).expect("written");
    let config = config_over(&database.url(), settings, Some(file.path()));
    TestApp::configured(database, config, clock).await
}

impl TestApp {
    /// Sends a request that needs `read:pets`, with a bearer token. The status is 404 if the token is accepted.
    pub async fn bearer(&self, token: &str) -> Response {
        self.anonymous(Method::GET, "/pet/404")
            .bearer_auth(token)
            .await
    }

    /// Returns the number of fetches of an issuer's keys from the metrics, or `None` if there were none.
    pub async fn fetches(&self, place: usize, result: &str) -> Option<u64> {
        let url = format!("http://{}/metrics", self.operations);
        let text = self.client.get(url).is(200).await.text();
        let name = format!("jwks_fetches_total{{issuer=\"{place}\",result=\"{result}\"}} ");
        text.lines()
            .find_map(|line| line.strip_prefix(&name)?.parse().ok())
    }
}
