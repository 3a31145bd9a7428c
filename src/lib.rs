//! Map of `pet-inventory`: layers, and the life of a request.
//!
//! # Layers
//!
//! ```text
//! cli
//! app
//! server · telemetry · embedded_postgres · maintenance
//! api
//! webhooks
//! auth | limits | images | feed | sample_store
//! db | blob_store
//! config | http_client | trace_context | turns
//! domain
//! ```
//!
//! Imports go down only: never up, never sideways. `tests/architecture` checks this.
//!
//! - [`domain`]: resources and their rules; pure values. *A value of one of its types is valid.*
//! - [`config`]: the operator's settings; loaded and checked once. Secrets cannot be printed.
//! - [`http_client`]: outgoing HTTP: TLS roots, timeouts, and names that must have public addresses.
//! - [`trace_context`]: span attributes, and W3C Trace Context. [`turns`]: permits that callers and client addresses get in turn.
//! - [`db`]: PostgreSQL; one file per resource, one free function per statement. Requests share statements.
//! - [`blob_store`]: bytes of images, on disk or S3.
//! - [`images`]: validation of uploaded images, and smaller versions; the only module that decodes pixels.
//! - [`auth`]: resolves a credential to a [`domain::caller::Caller`]; no types of requests.
//! - [`limits`]: decides whether a caller's request may proceed, by leased slices, what a client address may use, and how many
//!   files may be open for what; no HTTP types.
//! - [`feed`]: publishes the record of changes, and passes it to streams.
//! - [`sample_store`]: pets with pictures, to try the service with.
//! - [`webhooks`]: delivers changes to webhooks, and tests.
//! - [`api`]: routes, layers, handlers and status codes.
//! - [`server`]: listeners, connections, workers and shutdown; serves any tower service.
//! - [`embedded_postgres`]: PostgreSQL for a run without a database URL.
//! - [`maintenance`]: periodic tasks: purges, sweeps, folds; runs the feed.
//! - [`telemetry`]: log lines, metrics and traces, and the version and commit of the program.
//! - [`app`]: the composition root: builds every part and runs them.
//! - [`cli`]: commands, and what they print.
//!
//! `.github/ARCHITECTURE.md` has the technologies that each module owns. A **rule** is in `domain`, a **sequence** in
//! the handler, a **statement** in `db`.
//!
//! # Life of a request
//!
//! ```text
//! server             accepts a connection and assigns it to a worker (server::workers)
//! server::connection HTTP/1.1, with timeouts (server::client_stream)
//! api::router        the route and its facts (api::operations), and the layers (api::layers), which share an
//!                    api::request_context
//!   request_context  request id, client address, facts of the operation; caching
//!   request_span     trace span
//!   access_log       log line and metrics, also of a request whose client disconnects
//!   shield           such a request ends, but not in the middle of a statement; database deadline, shared by its
//!                    statements (db::scope, db::deadline)
//!   errors           body of error responses
//!   cors             web pages of configured origins (server.cors_origins)
//!   errors           500 after a panic
//!   check            Host and authority, length of the target and of conditional fields
//!   check            no condition where the resource has no entity tag
//!   load_shed        maximum number of requests in progress, in total and by address (limits::shares)
//!   authenticate     auth → db::credentials
//!   rate_limit       limits: from a lease in memory, or by a statement for all waiting requests (db::limits)
//!   check            demo keys only in requests from this machine
//!   check            scopes that the operation needs
//!   errors           again: inside the limits, against which a panic does not count
//!   timeout          503 after the request timeout
//!   idempotency      stored responses to a repeated POST
//! api::compression   gzip or zstd, only of lists; also of the document, pages and metrics (api::layers::compress)
//! api::extract       every invalid field at once (api::fields); uploads: api::images::receive
//! api::pets::add     NewPetBody → domain NewPet → db::pets::add → StoredPet
//!   db::batch        one statement for concurrent requests
//!   db::record       the record of the change, in the same statement
//!   db::pool         a connection, unless PostgreSQL is unreachable (db::breaker);
//!                    of large reads, a few at a time, callers in turn (db::large_reads, turns)
//! ```
//!
//! Errors: the module's own error → [`api::error::Error`], the one table of statuses → problem+json. The error is
//! an extension of the response; `access_log` logs that of a 5xx response once.

// The future of all layers is one type, nested deeper than the default of 128.
#![recursion_limit = "256"]

pub mod api;
pub mod app;
pub mod auth;
pub mod blob_store;
pub mod cli;
pub mod config;
pub mod db;
pub mod domain;
pub mod embedded_postgres;
pub mod feed;
pub mod http_client;
pub mod images;
pub mod limits;
pub mod maintenance;
pub mod sample_store;
pub mod server;
pub mod telemetry;
pub mod trace_context;
pub mod turns;
pub mod webhooks;
