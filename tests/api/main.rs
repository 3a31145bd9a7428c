//! Integration tests of the service over HTTP and PostgreSQL: one test binary, one cluster, one database per test.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::too_many_lines,
    reason = "a test that cannot go on says why and fails; its clock is the machine's; a table is long"
)]

mod access;
mod auth;
mod cli;
mod cli_files;
mod cli_setup;
mod conditional;
mod durable_days;
mod errors;
mod finds;
mod idempotency;
mod images;
mod jwt;
mod limits;
mod log;
mod metrics;
mod oauth;
mod openapi;
mod orders;
mod outage;
mod pages;
mod pets;
mod properties;
mod shutdown;
mod stalls;
mod together;
mod traces;
mod users;
mod wire;
