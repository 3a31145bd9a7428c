//! Receiver of webhooks, which responds as a test says.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use chrono::{DateTime, Utc};
use reqwest::header::HeaderMap;
use serde_json::Value;
use wiremock::{Mock, Request, ResponseTemplate, matchers::any};

use crate::MockHttp;

/// Message that a receiver has got.
#[derive(Clone)]
pub struct Message {
    /// Header fields.
    pub headers: HeaderMap,
    /// Body, as it was sent.
    pub body: Vec<u8>,
    /// Status of the response.
    pub status: u16,
    /// Time of the arrival.
    pub received_at: DateTime<Utc>,
}

impl Message {
    /// Returns the body.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// Returns the identifier of the message.
    pub fn id(&self) -> &str {
        self.headers["webhook-id"].to_str().expect("ASCII")
    }

    /// Returns the time from the change to the arrival, by the clock of this machine.
    pub fn lag(&self) -> Duration {
        let json = self.json();
        let at = json["timestamp"].as_str().expect("a time");
        let at: DateTime<Utc> = at.parse().expect("a time");
        (self.received_at - at).to_std().unwrap_or_default()
    }

    /// Returns the type, with the resource: `pet.changed 7`.
    pub fn what(&self) -> String {
        let json = self.json();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        format!(
            "{} {}",
            text(&json["type"]),
            text(&json["data"]["resource"])
        )
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the clock of a test is the machine's"
)]
fn now() -> DateTime<Utc> {
    Utc::now()
}

/// Running receiver; stops when dropped.
pub struct Receiver {
    server: MockHttp,
    messages: Arc<Mutex<Vec<Message>>>,
}

impl Receiver {
    /// Starts a receiver that accepts everything.
    pub async fn start() -> Self {
        Self::with(|_, _| 204).await
    }

    /// Starts a receiver that responds with the status that a function returns for a message, and for the number of messages with
    /// the same identifier before it.
    pub async fn with(respond: impl Fn(&Message, usize) -> u16 + Send + Sync + 'static) -> Self {
        Self::with_responses(respond, ResponseTemplate::new).await
    }

    /// Starts a receiver as [`Self::with`], with responses that another function makes of their status.
    pub async fn with_responses(
        respond: impl Fn(&Message, usize) -> u16 + Send + Sync + 'static,
        response: impl Fn(u16) -> ResponseTemplate + Send + Sync + 'static,
    ) -> Self {
        let server = MockHttp::start().await;
        let messages = Arc::new(Mutex::new(Vec::<Message>::new()));
        let received = Arc::clone(&messages);
        let respond = move |request: &Request| {
            let mut message = Message {
                headers: request.headers.clone(),
                body: request.body.clone(),
                status: 0,
                received_at: now(),
            };
            let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
            let before = received.iter().filter(|it| it.id() == message.id()).count();
            message.status = respond(&message, before);
            let response = response(message.status);
            received.push(message);
            response
        };
        let mock = Mock::given(any()).respond_with(respond);
        server.register(mock).await;
        Self { server, messages }
    }

    /// Returns the URL.
    pub fn url(&self) -> String {
        format!("{}/pets", self.server.uri())
    }

    /// Returns the messages so far, in the order of their arrival.
    pub fn messages(&self) -> Vec<Message> {
        let messages = self.messages.lock();
        messages.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the types and resources of the messages that got a response with status 2xx.
    pub fn accepted(&self) -> Vec<String> {
        let messages = self.messages().into_iter();
        let accepted = messages.filter(|it| (200..300).contains(&it.status));
        accepted.map(|it| it.what()).collect()
    }
}
