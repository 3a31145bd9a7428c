//! Reader of Server-Sent Events (WHATWG HTML §9.2).

use std::{collections::VecDeque, time::Duration};

use reqwest::Response;
use serde_json::Value;
use tokio::time::timeout;

use crate::{Call, PATIENCE};

/// An open stream of events.
#[derive(Debug)]
pub struct Events {
    response: Response,
    unread: VecDeque<u8>,
    /// Identifier of the last event, or of the last block without an event.
    pub last_id: String,
    /// Type of the event that is being read.
    kind: String,
}

impl Events {
    /// Opens a stream, which must succeed.
    pub async fn open(request: Call) -> Self {
        let request = request.header("accept", "text/event-stream");
        let response = request.send().await.expect("a response");
        assert_eq!(response.status(), 200, "{response:?}");
        Self::of(response)
    }

    /// Reads the events of a response.
    pub fn of(response: Response) -> Self {
        Self {
            response,
            unread: VecDeque::new(),
            last_id: String::new(),
            kind: String::new(),
        }
    }

    /// Returns the headers of the response.
    pub fn headers(&self) -> &reqwest::header::HeaderMap {
        self.response.headers()
    }

    /// Waits for the next event, and returns its data. Returns `None` at the end of the stream, or if it was cut.
    pub async fn next(&mut self) -> Option<Value> {
        let mut data = String::new();
        loop {
            let line = self.line().await?;
            match line.split_once(": ") {
                Some(("id", id)) => id.clone_into(&mut self.last_id),
                Some(("event", name)) => name.clone_into(&mut self.kind),
                Some(("data", text)) => text.clone_into(&mut data),
                _ => assert_eq!(line, "", "an unknown field"),
            }
            if line.is_empty() && self.kind == "position" {
                assert_eq!(data, format!("{{\"position\":{}}}", self.last_id));
                data = String::new();
            } else if line.is_empty() {
                assert_eq!(self.kind, "change");
                let change: Value = serde_json::from_str(&data).expect("JSON");
                assert_eq!(change["position"].to_string(), self.last_id);
                return Some(change);
            }
        }
    }

    /// Waits for an event, at most for [`PATIENCE`].
    pub async fn change(&mut self) -> Value {
        let next = timeout(PATIENCE, self.next()).await;
        next.expect("an event in time").expect("an event")
    }

    /// Waits for the next identifier, with or without an event, and returns it.
    pub async fn id(&mut self) -> String {
        loop {
            let line = timeout(PATIENCE, self.line())
                .await
                .expect("a line in time")
                .expect("a line");
            if let Some(kind) = line.strip_prefix("event: ") {
                kind.clone_into(&mut self.kind);
            }
            if let Some(id) = line.strip_prefix("id: ") {
                id.clone_into(&mut self.last_id);
                return id.to_owned();
            }
        }
    }

    /// Returns true if no event comes for a while.
    pub async fn is_silent(&mut self) -> bool {
        timeout(Duration::from_millis(400), self.next())
            .await
            .is_err()
    }

    /// Waits for the end of the stream, at most for [`PATIENCE`]. Returns the number of events before it.
    pub async fn end(&mut self) -> usize {
        let mut count = 0;
        let end = async {
            while self.next().await.is_some() {
                count += 1;
            }
        };
        timeout(PATIENCE, end).await.expect("an end in time");
        count
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line = self.unread.drain(..=end).take(end).collect();
                return Some(String::from_utf8(line).expect("UTF-8"));
            }
            self.unread.extend(self.response.chunk().await.ok()??);
        }
    }
}
