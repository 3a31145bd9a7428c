//! What no HTTP client is needed for.
