//! Queries and connections to PostgreSQL.
//!
//! Each resource has a file with one function per query. Functions take a connection, so that the handler decides which
//! statements share a transaction ([`Database::run`], [`Database::transact`]), or a [`Database`] if their statement is
//! batched with those of other requests (`batch`). Large, rare futures are boxed, because each move copies them.
//!
//! Invariants:
//! - Even if PostgreSQL is frozen, a statement ends within [`QUERY_TIMEOUT`] and the [`deadline`] of its response.
//! - While PostgreSQL is known to be unavailable, or a standby, no statement is sent ([`breaker`]).
//! - Every failure is classified here, once ([`Error`]).
//! - There are no import cycles: files import from the file that owns an item, not from this one.

pub mod administration;
pub mod backups;
mod batch;
pub mod breaker;
pub mod callers;
pub mod changes;
mod codec;
mod conditions;
mod connect;
pub mod credential_changes;
pub mod credentials;
mod database;
mod database_url;
pub mod deadline;
pub mod deliveries;
mod error;
pub mod exports;
mod health;
pub mod idempotency;
pub mod images;
pub mod imports;
pub mod inventory;
mod large_reads;
pub mod limits;
pub mod migrations;
pub mod oauth;
mod options;
pub mod orders;
mod parts;
pub mod pets;
mod pool;
mod pooler;
mod record;
pub mod sample_store;
pub mod schema;
pub mod scope;
mod sequences;
mod server;
pub mod sessions;
pub mod usage;
pub mod users;
pub mod webhooks;

pub use self::{
    administration::Administration,
    codec::SecretHash,
    conditions::Conditions,
    connect::Connection,
    database::Database,
    database_url::DatabaseUrl,
    deadline::QUERY_TIMEOUT,
    error::{AsDatabaseError, Error},
    health::HealthCheck,
    large_reads::Cost,
    options::{ConnectOptions, weak_tls_mode},
    parts::{Found, MAX_SMALL, Part, Rest},
    pool::Usage,
    pooler::PLANNER_SETTINGS,
    server::Server,
};
