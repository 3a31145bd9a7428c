//! Fault injection: the real program on a PostgreSQL of its own loses no acknowledged write, does not hang and leaks
//! nothing.
//!
//! `cargo test` runs a short form of each row, with bounds that hold on a busy machine. This runs the full form with
//! the promised bounds, and prints one line per row:
//!
//! ```sh
//! FAULTS=full cargo test --release --features outside-tools --test faults -- --nocapture
//! ```
//!
//! `FAULTS=short` runs the short form with the promised bounds, as `.ci/run` does. The delays of the machine itself are
//! added to bounds of latencies.

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
mod limits;
mod outages;
mod outside;
mod races;
mod renderings;
mod restarts;
mod soak;
mod stage;
