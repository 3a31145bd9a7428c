//! Fault injection: the real program on a PostgreSQL of its own loses no acknowledged write, does not hang and leaks
//! nothing.
//!
//! This runs the full form of each row with the bounds that .github/RELIABILITY.md promises, and prints one line per row:
//!
//! ```sh
//! .ci/setup --all && FAULTS=full cargo test --release --package system-tests --test faults -- --nocapture
//! ```
//!
//! Without `FAULTS=full`, the runs are shorter, as in `.ci/run`; the bounds are the same but for row 26. The delays of
//! the machine itself are added to bounds of latencies.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed test panics with the reason; its clock is the machine's"
)]

mod backups;
mod bodies;
mod capacity;
mod checker;
mod clients;
mod compression;
mod crashes;
mod feed;
mod limits;
mod logins;
mod neighbours;
mod outages;
mod outside;
mod patroni;
mod races;
mod renderings;
mod restarts;
mod soak;
mod stage;
mod webhooks;
