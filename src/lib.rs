//! The map of `pet-inventory`: the floors, and the life of a request.
//!
//! # The floors
//!
//! ```text
//! F6  cli
//! F5  app · telemetry · shutdown · local_postgres
//! F4  api
//! F3  auth | limits
//! F2  db | blobs | renderings
//! F1  config | http_client | trace | turn
//! F0  domain
//! ```
//!
//! Imports go down only: never up, never sideways. `tests/architecture.rs` checks it on the sources.
//!
//! - [`domain`]: the nouns and their rules; pure values. *A value of a type in there is valid.*
//! - [`config`]: what the operator decides; loaded once, checked, no secret can be printed.
//! - [`http_client`]: HTTP towards others: whom we ask, and trust.
//! - [`trace`]: what a span says of a trace, and W3C Trace Context, in and out.
//! - [`turn`]: a thread's turn on a core, which it may give away.
//! - [`db`]: PostgreSQL, the only room that knows sqlx; a file a noun, a free function a question. What many
//!   requests ask at once travels together.
//! - [`blobs`]: where the bytes of images are, the only room that knows `object_store`.
//! - [`renderings`]: smaller versions of images, the only room that decodes pixels.
//! - [`auth`]: who are you: from a secret to a [`domain::caller::Caller`]; knows no HTTP types.
//! - [`limits`]: decides whether a caller's request may proceed, by leased slices; knows no HTTP types either.
//! - [`api`]: HTTP, the only room that knows axum, bodies and status codes; a file a noun, one layer stack.
//! - [`app`]: the composition root; builds every part and runs them behind the hyper server.
//! - [`local_postgres`]: the PostgreSQL of a run without a database URL.
//! - [`shutdown`]: stopping, soft and then hard. [`telemetry`]: log lines, metrics and traces.
//! - [`cli`]: arguments, and what a person reads.
//!
//! A **technology is a room**: sqlx lives in `db` (and `local_postgres`), axum in `api` (and `app`),
//! governor in `limits`, JWT and argon2 in `auth`, reqwest in `http_client`, and in `auth` (which asks issuers
//! for their keys), `blobs` (which asks S3) and `telemetry` (which sends traces), rustls in `http_client`,
//! OpenTelemetry in `trace` and `telemetry`, clap in `cli`, the environment in `config`. A **rule** lives in
//! `domain`, a **sequence** in the handler, a **statement** in `db`.
//!
//! # The life of a request
//!
//! ```text
//! app::server        accept, bounds, HTTP/1 or HTTP/2 (app::listener, app::activity)
//! app::workers       a runtime a core, which answers (app::awake)
//! app::stall         no answer that nobody takes
//! app::wire          no message of two lengths (app::framing)
//! api::middleware    what is around every handler, each step with its reason
//!   observe          id, span, the body of an error; access line and metrics once it is sent (seen)
//!   well_formed      one Host
//!   load_shed        no more at once than can be answered, nor for longer (db::patience)
//!   client           whose address it is
//!   authenticate     auth → db::credentials
//!   rate_limit       limits: from a lease in memory, or db::limits leases for all that wait
//!   authorize        api::access says which scopes the operation needs
//!   time_limit       an answer, or 503
//!   idempotency      the same POST twice
//! api::extract       api::fields: every wrong field at once
//!                    (an upload has its own bounds: api::images::receive)
//! api::pets::add     NewPetBody → domain NewPet → db::pets::add → Pet → PetBody
//!   db::coalesce     what many ask at once, in one statement
//!   db::pool         a connection, unless PostgreSQL is out of reach (db::breaker)
//! ```
//!
//! A failure anywhere: the room's own error → [`api::error::Error`], the one table of statuses →
//! problem+json. What lies behind a 5xx rides the response up to `observe`, which logs it once.

pub mod api;
pub mod app;
pub mod auth;
pub mod blobs;
pub mod cli;
pub mod config;
pub mod db;
pub mod domain;
pub mod http_client;
pub mod limits;
pub mod local_postgres;
pub mod renderings;
pub mod shutdown;
pub mod telemetry;
pub mod trace;
pub mod turn;
