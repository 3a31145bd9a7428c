//! The service under load, beside what people would write and beside what it could cost at least:
//! `cargo bench --bench http`.
//!
//! It starts a PostgreSQL of its own with the data (durable: each commit waits for the disk), the service (the
//! real program: keys, limits, request ids, metrics, ETags and the access log, which goes to a file, all on),
//! and what it is compared with:
//!
//! - *naive*: what a user would write: axum, a `PgPool` of 16 connections, one `query_as … where id = $1` or
//!   `insert` a request, the caller of a key found in a hash map; no log, metrics, limits or ETags.
//! - *static*: one pet's JSON from memory, behind everything that the service has around its operations.
//! - *pgbench*: the same row by a prepared statement; no HTTP.
//! - *nginx*: the same bytes from and to the same folder, without waiting for the disk.
//!
//! `wrk` (Debian's package of that name) makes the load. All of it shares this machine, so absolute numbers
//! say little; the variants of a row take turns, and what counts is their ratio: the median of the rounds.
//!
//! ```text
//! cargo bench --bench http                      the table
//! cargo bench --bench http -- --quick           the same, shorter
//! cargo bench --bench http -- --only get,post   some rows: get limited occasional refuse post status tags images
//! cargo bench --bench http -- --growth          GET and POST with more pets, and with more callers
//! cargo bench --bench http -- --idle            GET beside 10,000 idle connections
//! ```

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::struct_excessive_bools,
    reason = "a benchmark that cannot go on says why and ends; it rounds; naive code uses axum as it comes"
)]

mod callers;
mod data;
mod images;
mod load;
mod processes;
mod rows;
mod servers;
mod table;

use std::path::PathBuf;

use clap::Parser;
use mimalloc::MiMalloc;

/// As the service has it, so that it is no difference between them.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// What to measure.
#[derive(Debug, Parser)]
struct Options {
    /// One short round.
    #[arg(long)]
    quick: bool,
    /// Rows: get, limited, occasional, refuse, post, status, tags, images.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// GET and POST with more pets, and with more callers.
    #[arg(long)]
    growth: bool,
    /// GET beside 10,000 idle connections.
    #[arg(long)]
    idle: bool,
    /// Rounds; the median counts.
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds of each run.
    #[arg(long)]
    seconds: Option<u32>,
    /// Pets in the table.
    #[arg(long, default_value_t = 100_000)]
    pets: u32,
    /// Another build of the service, to see what changed.
    #[arg(long, default_value = env!("CARGO_BIN_EXE_pet-inventory"))]
    service: PathBuf,
    /// An earlier build of the service, measured in turn with this one in the row `limited`.
    #[arg(long)]
    before: Option<PathBuf>,
    /// Be one of the servers that the service is compared with.
    #[arg(long, hide = true)]
    serve: Option<servers::Kind>,
    /// cargo says so to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { 3 })
    }

    fn seconds(&self) -> u32 {
        self.seconds.unwrap_or(if self.quick { 1 } else { 3 })
    }

    fn wants(&self, row: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == row)
    }
}

#[tokio::main]
async fn main() {
    let options = Options::parse();
    if let Some(kind) = options.serve {
        return servers::serve(kind).await;
    }
    load::require_wrk();
    if options.growth {
        rows::growth(&options).await;
    } else if options.idle {
        rows::idle(&options).await;
    } else {
        rows::all(&options).await;
    }
}
