//! HTTP server that responds as a test says, on a port of its own.

use std::{ops::Deref, thread};

use wiremock::MockServer;

/// Running server; stops when dropped.
pub struct MockHttp(Option<MockServer>);

impl MockHttp {
    /// Starts a server without responses.
    pub async fn start() -> Self {
        Self(Some(MockServer::start().await))
    }
}

impl Deref for MockHttp {
    type Target = MockServer;

    fn deref(&self) -> &MockServer {
        self.0.as_ref().expect("it is running")
    }
}

impl Drop for MockHttp {
    /// Drops the server on another thread. wiremock then blocks on a lock of tokio, which is never ready in a task that has
    /// used up its cooperative budget: the test would hang.
    fn drop(&mut self) {
        let server = self.0.take();
        let _ = thread::spawn(move || drop(server)).join();
    }
}
