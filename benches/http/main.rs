//! HTTP benchmark: the service under load, compared with a naive implementation and with lower bounds.
//!
//! It starts an embedded PostgreSQL (durable: each commit waits for the disk), the real program (keys, limits, request
//! ids, metrics, ETags, and the access log written to a file), and the variants to compare with:
//!
//! - *naive*: the obvious implementation: axum, a `PgPool` of 16 connections, one `query_as … where id = $1` or
//!   `insert` per request, and keys in a hash map; no log, metrics, limits or ETags.
//! - *static*: the JSON of one pet from memory, behind all of the service's layers.
//! - *pgbench*: the same row by a prepared statement, without HTTP.
//! - *nginx*: the same bytes from and to the same folder, without waiting for the disk.
//!
//! `wrk` (Debian package `wrk`) generates the load. Everything shares this machine, so absolute numbers mean little:
//! the variants of a row run alternately, and the result is the ratio of their medians over all rounds.
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
    reason = "a failed benchmark panics with the reason; it rounds; the naive server uses axum without changes"
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

/// The service's allocator, so that variants do not differ in it.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Compare the service with other implementations under load
#[derive(Debug, Parser)]
struct Options {
    /// Run one short round
    #[arg(long)]
    quick: bool,
    /// Run these rows only: get, limited, occasional, refuse, post, status, tags, images
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Measure GET and POST with more pets, and with more callers
    #[arg(long)]
    growth: bool,
    /// Measure GET beside 10,000 idle connections
    #[arg(long)]
    idle: bool,
    /// Number of rounds; the result is their median
    #[arg(long)]
    rounds: Option<usize>,
    /// Duration of each run in seconds
    #[arg(long)]
    seconds: Option<u32>,
    /// Number of pets in the table
    #[arg(long, default_value_t = 100_000)]
    pets: u32,
    /// Program to measure, such as another build of the service
    #[arg(long, default_value = env!("CARGO_BIN_EXE_pet-inventory"))]
    service: PathBuf,
    /// Earlier build of the service, measured in turns with this one in every row except `occasional`
    #[arg(long)]
    before: Option<PathBuf>,
    /// Run as one of the servers that the service is compared with
    #[arg(long, hide = true)]
    serve: Option<servers::Kind>,
    /// Ignored; cargo passes it to every benchmark
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
