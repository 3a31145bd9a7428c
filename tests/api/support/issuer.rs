//! An issuer of tokens: a real HTTP server on loopback that publishes keys.

use std::{
    io::Write as _,
    sync::{Arc, Mutex},
    time::Duration,
};

use chrono::Utc;
use pet_inventory::{config::Config, domain::clock::Clock};
use reqwest::Method;
use serde_json::{Value, json};
use wiremock::{Mock, MockServer, ResponseTemplate, matchers::any};

use super::{Answer, Ask, TestApp, TestDatabase, config_over, signer::Signer};

/// What the tokens of all issuers here are for.
pub const AUDIENCE: &str = "pets.test";

/// An issuer.
pub struct Issuer {
    server: MockServer,
    keys: Arc<Mutex<ResponseTemplate>>,
}

impl Issuer {
    /// Publishes the keys of these.
    pub async fn of(signers: &[&Signer]) -> Self {
        let server = MockServer::start().await;
        let keys = Arc::new(Mutex::new(key_set(signers)));
        let answer = Arc::clone(&keys);
        let answer = move |_: &wiremock::Request| answer.lock().expect("never poisoned").clone();
        Mock::given(any()).respond_with(answer).mount(&server).await;
        Self { server, keys }
    }

    /// From now on publishes those of these.
    pub fn publish(&self, signers: &[&Signer]) {
        self.answer(key_set(signers));
    }

    /// From now on answers so.
    pub fn answer(&self, answer: ResponseTemplate) {
        *self.keys.lock().expect("never poisoned") = answer;
    }

    /// `iss`.
    pub fn url(&self) -> String {
        self.server.uri()
    }

    /// The paths that were asked for.
    pub async fn asked(&self) -> Vec<String> {
        let requests = self.server.received_requests().await.expect("recorded");
        let paths = requests.iter().map(|it| it.url.path().to_owned());
        paths.collect()
    }

    /// How often it was asked.
    pub async fn fetches(&self) -> usize {
        self.asked().await.len()
    }

    /// Its table in the configuration, with these lines too.
    pub fn table(&self, more: &str) -> String {
        format!(
            "[[auth.issuers]]\nissuer = \"{0}\"\njwks_url = \"{0}/keys\"\naudience = \"{AUDIENCE}\"\n\
             algorithms = [\"RS256\", \"ES256\", \"EdDSA\"]\n{more}\n",
            self.url()
        )
    }

    /// Good claims about this subject, for ten minutes.
    pub fn claims(&self, subject: &str) -> Value {
        let now = now();
        json!({
            "iss": self.url(), "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + 600,
            "scope": "openid read:pets write:pets",
        })
    }
}

/// Seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "tokens tell time by the wall")]
pub fn now() -> i64 {
    Utc::now().timestamp()
}

/// A JWK Set.
pub fn key_set(signers: &[&Signer]) -> ResponseTemplate {
    let keys: Vec<Value> = signers.iter().map(|signer| signer.jwk()).collect();
    ResponseTemplate::new(200).set_body_json(json!({ "keys": keys }))
}

/// The service with these issuers' tables, by this clock.
pub async fn serve(tables: &[String], clock: Clock) -> TestApp {
    let database = TestDatabase::migrated().await;
    let config = configured(&database, tables);
    TestApp::configured(database, config, clock).await
}

fn configured(database: &TestDatabase, tables: &[String]) -> Config {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(tables.concat().as_bytes()).expect("written");
    // Wrong tokens are what some tests are about.
    let generous = [(
        "PET_INVENTORY__LIMITS__WRONG_CREDENTIALS_PER_MINUTE",
        "100000",
    )];
    config_over(&database.url(), &generous, Some(file.path()))
}

impl TestApp {
    /// Asks with a bearer token for something that needs `read:pets`: 404 when the token is good.
    pub async fn bearer(&self, token: &str) -> Answer {
        let request = self.anonymous(Method::GET, "/pet/404").bearer_auth(token);
        request.answer().await
    }

    /// How often an issuer's keys were fetched, so the metrics say; `None`: never.
    pub async fn fetches(&self, place: usize, result: &str) -> Option<u64> {
        let url = format!("http://{}/metrics", self.operations);
        let text = self.client.get(url).answer().await.is(200).text();
        let name = format!("jwks_fetches_total{{issuer=\"{place}\",result=\"{result}\"}} ");
        text.lines()
            .find_map(|line| line.strip_prefix(&name)?.parse().ok())
    }
}

/// Longer than an issuer may take, and than a test that does not wait for it.
pub const SLOW: Duration = Duration::from_secs(10);
