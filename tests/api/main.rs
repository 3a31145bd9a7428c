//! The service's tests over real HTTP and a real PostgreSQL: one binary, one cluster, a database a test.

mod auth;
mod cli;
mod conditional;
mod errors;
mod finds;
mod idempotency;
mod limits;
mod openapi;
mod outage;
mod pets;
mod properties;
mod shutdown;
mod support;
mod wire;
