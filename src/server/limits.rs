//! Bounds of connections.

use std::time::Duration;

/// Bounds of the connections of a listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum time until a request head is complete, and between two requests of a connection.
    pub header_timeout: Duration,
    /// Maximum time for which a write, or an HTTP/2 stream, makes no progress.
    pub idle_timeout: Duration,
    /// Maximum size of a request head in bytes.
    pub max_header_size: usize,
    /// Maximum number of open connections.
    pub max_connections: usize,
}
