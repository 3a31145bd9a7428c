//! HTTP benchmark: the service under load, compared with other implementations and with lower bounds.
//!
//! It starts an embedded PostgreSQL (durable: each commit waits for the disk), the real program (keys, limits, request
//! ids, metrics, ETags, and the access log written to a file), and the variants to compare with:
//!
//! - *naive*: the obvious implementation: axum, a `PgPool` of 16 connections, one `query_as … where id = $1` or
//!   `insert` per request, and keys in a hash map; no log, metrics, limits or ETags.
//! - *static*: the JSON of one pet from memory, behind all of the service's layers.
//! - *pgbench*: the same statements, prepared, on the same tables, without HTTP.
//! - *nginx*: the same bytes from and to the same folder, without waiting for the disk.
//!
//! `wrk` generates the load. Everything shares this machine, so absolute numbers mean little: the variants of a row run
//! alternately, and the result is the ratio of their medians over all rounds. A response with an unexpected status
//! fails the benchmark. `benches/README.md` describes the rows.

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

mod accounts;
mod admin;
mod bars;
mod callers;
mod data;
mod delay;
mod idle;
mod images;
mod load;
mod operations;
mod pgbench;
mod processes;
mod rows;
mod scale;
mod servers;
mod stage;
mod stream;
mod table;

use std::path::PathBuf;

use clap::{Parser, builder::TypedValueParser as _};
use mimalloc::MiMalloc;
use test_support::{issuer::Issuer, signer::Signer};

use crate::{
    data::{Database, Postgres},
    servers::Kind,
    stage::{Setup, Stage},
};

/// The service's allocator, so that variants do not differ in it.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Compare the service with other implementations under load
#[derive(Debug, Parser)]
struct Options {
    /// Run one round of one second, with 100,000 pets in place of a million: ten minutes
    #[arg(long)]
    quick: bool,
    /// Run these rows only: operations such as getPetById, or credentials, limited, round-trip, stream, images,
    /// refuse, occasional, statistics, sizes
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Run operations at these numbers of connections only
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(["1", "16", "64", "256"]).map(|number| number.parse::<u32>().expect("a number")))]
    connections: Vec<u32>,
    /// Measure GET beside 10,000 idle connections
    #[arg(long)]
    idle: bool,
    /// Number of rounds; the result is their median
    #[arg(long)]
    rounds: Option<usize>,
    /// Duration of each run in seconds
    #[arg(long)]
    seconds: Option<u32>,
    /// Number of pets in the table; the rows statistics and sizes have their own
    #[arg(long, default_value_t = 100_000)]
    pets: u32,
    /// Program to measure, such as another build of the service
    #[arg(long, default_value = env!("CARGO_BIN_EXE_pet-inventory"))]
    service: PathBuf,
    /// Earlier build of the service, measured in turns with this one in every row except occasional
    #[arg(long)]
    before: Option<PathBuf>,
    /// Run as one of the servers that the service is compared with
    #[arg(long, hide = true)]
    serve: Option<Kind>,
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

    fn wants_connections(&self, connections: u32) -> bool {
        self.connections.is_empty() || self.connections.contains(&connections)
    }

    fn many_pets(&self) -> u32 {
        if self.quick { 100_000 } else { 1_000_000 }
    }

    /// Returns true if a row is selected, by its name or by that of its operation.
    fn wants(&self, row: &str) -> bool {
        let operation = row.split('/').next();
        let mut only = self.only.iter();
        self.only.is_empty() || only.any(|only| only == row || Some(only.as_str()) == operation)
    }
}

#[tokio::main]
async fn main() {
    let options = Options::parse();
    if let Some(kind) = options.serve {
        return servers::serve(kind).await;
    }
    load::require("wrk", "wrk");
    if options.idle {
        return idle::row(&options).await;
    }
    rows::require_all(&options.service);
    all(&options).await;
    bars::print();
}

/// Measures and prints all selected rows.
async fn all(options: &Options) {
    println!(
        "{} pets, {} rounds of {} s, medians",
        options.pets,
        options.rounds(),
        options.seconds()
    );
    let postgres = Postgres::start().await;
    let database = postgres.database(options, "bench", options.pets).await;
    let keys = database.callers("bench", "enterprise", 8).await;
    table::header();
    main_stage(options, &postgres, &database, &keys).await;
    if options.wants("refuse") || options.wants("occasional") {
        default_limits(options, &postgres, &database, keys).await;
    }
    if options.wants("statistics") || options.wants("sizes") {
        scale::rows(options, &postgres).await;
    }
}

/// Limits so high that no request is refused, and settings for every kind of credential.
const CONFIG: &str = "
[plans.free]
per_minute = 1000000000
per_day = 4000000000
[plans.pro]
per_minute = 1000000000
per_day = 4000000000
[users]
logins_per_minute = 1000000000
[auth]
anonymous_scopes = [\"read:pets\"]
[server]
max_requests = 4096
";

async fn main_stage(options: &Options, postgres: &Postgres, database: &Database, keys: &[String]) {
    let signer = Signer::p256();
    let issuer = Issuer::start(&[&signer]).await;
    let config = format!("{CONFIG}{}", issuer.table("plan_claim = \"plan\""));
    let setup = Setup {
        config: &config,
        others: &[Kind::Naive, Kind::Static],
        ..Setup::default()
    };
    let pets = (database, options.pets);
    let stage = Stage::start(options, postgres, pets, keys.to_vec(), setup).await;
    rows::operations(&stage).await;
    if options.wants("credentials") {
        callers::credentials(&stage, &issuer, &signer).await;
    }
    if options.wants("limited") {
        callers::limited(&stage).await;
    }
    if options.wants("round-trip") {
        delay::row(&stage).await;
    }
    if options.wants("stream") {
        stream::row(&stage).await;
    }
    // Last: the disk stays busy with the uploads for a while.
    if options.wants("images") {
        images::rows(&stage).await;
    }
}

/// Measures the rows that need the default limits.
async fn default_limits(
    options: &Options,
    postgres: &Postgres,
    database: &Database,
    keys: Vec<String>,
) {
    let operations = free_address();
    let setup = Setup {
        // So high that a wrong key always gets 401, never 429.
        settings: &[(
            "PET_INVENTORY__LIMITS__FAILED_AUTHENTICATION_PER_MINUTE",
            "4000000000",
        )],
        operations: &operations,
        others: &[Kind::Static],
        ..Setup::default()
    };
    let stage = Stage::start(options, postgres, (database, options.pets), keys, setup).await;
    if options.wants("refuse") {
        callers::refusals(&stage).await;
    }
    if options.wants("occasional") {
        callers::occasional(&stage, &operations).await;
    }
}

/// Returns a free address of this machine. The port is not reserved.
fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").to_string()
}
