//! Integration tests of the service over HTTP and PostgreSQL: one test binary, one cluster, one database per test.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed test panics with the reason; its clock is the machine's"
)]

mod access;
mod admin;
mod anonymous;
mod audit;
mod auth;
mod batches;
mod changes;
mod cli;
mod cli_backup;
mod cli_callers;
mod cli_files;
mod cli_json;
mod cli_keys;
mod cli_setup;
mod compression;
mod conditional;
mod config;
mod cors;
mod database_conditions;
mod database_urls;
mod errors;
mod expiry;
mod feed;
mod finds;
mod idempotency;
mod images;
mod jwt;
mod limits;
mod limits_across_restarts;
mod log;
mod logins;
mod metrics;
mod networks;
mod oauth;
mod openapi;
mod orders;
mod outage;
mod pages;
mod pet_list;
mod pets;
mod properties;
mod readiness;
mod record;
mod record_facts;
mod resets;
mod sample_store;
mod sessions;
mod shares;
mod shutdown;
mod sockets;
mod stalls;
mod traces;
mod users;
mod webhooks;
mod wire;
