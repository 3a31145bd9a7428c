//! The command line: arguments, dispatch, and what a person reads.
//!
//! Invariant: stdout holds what a command was asked for and nothing else, so that it can be piped; log
//! lines and errors go to stderr.

#![expect(
    clippy::print_stderr,
    reason = "the terminal is what this room writes to"
)]

mod callers;
mod check;
mod clients;
mod config;
mod credentials;
mod export;
mod healthcheck;
mod import;
mod keys;
mod migrate;
mod pet_file;
mod serve;
mod session;
mod sessions;
mod table;

use std::{
    fmt::Display,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::{
    api::{self, state::Links},
    config::Config,
    telemetry,
};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Keeps a store's pets, orders and users: a REST API under /api/v3, on PostgreSQL.
///
/// Without arguments it serves. Without DATABASE_URL it runs a PostgreSQL of its own in ./data, with demo
/// keys, for a first look and for development.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    /// A TOML file over the defaults; the environment (PET_INVENTORY__SECTION__KEY) is over both.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

const EXAMPLES: &str = "\
Examples:
  pet-inventory
      Serve on 127.0.0.1:8080 with a PostgreSQL of our own.
  DATABASE_URL=postgres://user:password@host/database pet-inventory serve
      Serve on a PostgreSQL of yours.
  pet-inventory keys create --caller acme --plan pro
      Make an API key; works beside a running server and without one.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the API until Ctrl-C or SIGTERM.
    Serve,
    /// Bring the database's schema up to date; serving does so too.
    Migrate(migrate::Migrate),
    /// Print the OpenAPI 3.1 document.
    Openapi,
    /// Make, list and revoke API keys.
    #[command(subcommand)]
    Keys(keys::Keys),
    /// Make, list and revoke OAuth 2.0 clients.
    #[command(subcommand)]
    Clients(clients::Clients),
    /// List and revoke sessions of users.
    #[command(subcommand)]
    Sessions(sessions::Sessions),
    /// List callers, show what they have used, and put them on plans.
    #[command(subcommand)]
    Callers(callers::Callers),
    /// Add the pets of a file, all of them or none.
    Import(import::ImportPets),
    /// Write every pet to a file or to stdout, as of one moment.
    Export(export::ExportPets),
    /// Look whether the service would run as it is configured here, and say what to do where not.
    Check,
    /// Show the settings in force, and where each comes from.
    #[command(subcommand)]
    Config(config::Settings),
    /// Print what makes a shell complete our commands, as in: source <(pet-inventory completions bash)
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Ask the running service for a sign of life; for a container's HEALTHCHECK.
    Healthcheck,
}

/// Does what the command line says.
pub async fn run() -> ExitCode {
    let cli = Cli::parse();
    match cli.run().await {
        Ok(code) => code,
        // Whoever read our output has had enough, as `head` has: no failure that anybody need be told.
        Err(error) if is_broken_pipe(&error) => ExitCode::from(OF_SIGPIPE),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What shells say of a program that SIGPIPE has ended, which Rust's ignore.
const OF_SIGPIPE: u8 = 128 + 13;

fn is_broken_pipe(error: &Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Writes a line to stdout. Where nobody reads any more it fails; `println!` would panic.
fn say(line: impl Display) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}

impl Cli {
    async fn run(self) -> Result<ExitCode, Error> {
        let config = Config::load(self.config.as_deref())?;
        let _telemetry = telemetry::start(&config.telemetry)?;
        match self.command.unwrap_or(Command::Serve) {
            Command::Serve => serve::run(config).await?,
            Command::Migrate(command) => return command.run(&config).await,
            Command::Openapi => {
                let links = Links::new(config.server.public_url.as_ref());
                say(serde_json::to_string_pretty(&api::document(&links))?)?;
            }
            Command::Keys(command) => command.run(&config).await?,
            Command::Clients(command) => command.run(&config).await?,
            Command::Sessions(command) => command.run(&config).await?,
            Command::Callers(command) => command.run(&config).await?,
            Command::Import(command) => command.run(&config).await?,
            Command::Export(command) => command.run(&config).await?,
            Command::Check => return check::run(&config).await,
            Command::Config(command) => command.run(self.config.as_deref())?,
            Command::Healthcheck => healthcheck::run(&config).await?,
            Command::Completions { shell } => {
                let mut command = Self::command();
                let name = command.get_name().to_owned();
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut command, name, &mut script);
                io::stdout().write_all(&script)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
