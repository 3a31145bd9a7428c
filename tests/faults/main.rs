//! Faults, injected for real into the real program on a real PostgreSQL of its own: nothing that was
//! acknowledged is lost, nothing hangs, nothing leaks.
//!
//! `cargo test` runs a short form of every row, by bounds that a busy machine keeps. The whole of it, by the
//! bounds that are promised, one line a row:
//!
//! ```sh
//! FAULTS=full cargo test --features outside-tools --test faults -- --nocapture
//! ```

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::too_many_lines,
    dead_code,
    unused_imports,
    reason = "a test that cannot go on says why and fails; its clock is the machine's; it shares a harness; a row is one story"
)]

mod capacity;
mod checker;
mod clients;
mod crashes;
mod limits;
mod outages;
#[cfg(feature = "outside-tools")]
mod outside;
mod races;
mod restarts;
mod stage;
#[path = "../api/support/mod.rs"]
mod support;
