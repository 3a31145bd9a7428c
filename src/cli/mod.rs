//! Command line: arguments, dispatch and output.
//!
//! Invariant: stdout holds only the result of the command, so that it can be piped; logs and errors go to stderr.

#![expect(
    clippy::print_stderr,
    reason = "the command line reports errors on stderr"
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
mod output;
mod pet_file;
mod serve;
mod session;
mod sessions;

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use self::output::{Error, say};
use crate::{
    api::{self, openapi, state::Links},
    config::Config,
    telemetry,
};

/// REST API for the pets, orders and users of a pet store, under /api/v3, on PostgreSQL
///
/// Without a command, it runs serve. Without DATABASE_URL, it starts an embedded PostgreSQL in ./data, with demo keys,
/// for evaluation and development.
///
/// A variable with the suffix _FILE names a file with the value: DATABASE_URL_FILE=/run/secrets/database_url.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    /// TOML file that overrides the defaults; the environment (PET_INVENTORY__SECTION__KEY) overrides both
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

const EXAMPLES: &str = "\
Examples:
  pet-inventory
      Serve on 127.0.0.1:8080 with an embedded PostgreSQL.
  DATABASE_URL=postgres://user:password@host/database pet-inventory serve
      Serve with your own PostgreSQL.
  pet-inventory keys create --caller acme --plan pro
      Create an API key, whether or not the server is running.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the API until Ctrl-C or SIGTERM
    Serve,
    /// Bring the database schema up to date; serve does so too
    Migrate(migrate::Migrate),
    /// Print the OpenAPI document
    Openapi {
        /// Form of the document: OpenAPI 3.1 as JSON or YAML, or OpenAPI 3.0 as JSON
        #[arg(long, value_enum, default_value = "json")]
        format: DocumentFormat,
    },
    /// Create, rotate, list and revoke API keys
    #[command(subcommand)]
    Keys(keys::Keys),
    /// Create, list and revoke OAuth 2.0 clients
    #[command(subcommand)]
    Clients(clients::Clients),
    /// List and revoke sessions of users
    #[command(subcommand)]
    Sessions(sessions::Sessions),
    /// List callers, show their use, set their plans and scopes, disable and delete them
    #[command(subcommand)]
    Callers(callers::Callers),
    /// Add the pets of a file, all of them or none
    ///
    /// Each record must be valid for POST /pet; one without an id gets a new one. Invalid records are listed by line,
    /// and then nothing is added. If the import is interrupted, run the same command again to continue it.
    Import(import::ImportPets),
    /// Write all pets to a file or to stdout, as one consistent snapshot
    Export(export::ExportPets),
    /// Check that the service would run with this configuration, and suggest fixes
    Check,
    /// Show the effective settings and their origins
    #[command(subcommand)]
    Config(config::Settings),
    /// Print a shell completion script, for example: source <(pet-inventory completions bash)
    Completions {
        /// Shell that runs the script
        shell: Shell,
    },
    /// Check the liveness of the running service, for the HEALTHCHECK of a container
    Healthcheck,
}

/// Form of the OpenAPI document.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum DocumentFormat {
    Json,
    Yaml,
    #[value(name = "json-3.0")]
    Json30,
}

impl DocumentFormat {
    fn print(self, links: &Links) -> Result<(), Error> {
        let document = api::document(links);
        say(match self {
            Self::Json => serde_json::to_string_pretty(&document)?,
            Self::Yaml => openapi::serve::to_yaml(&document)?,
            Self::Json30 => {
                serde_json::to_string_pretty(&openapi::version_3_0::convert(&document)?)?
            }
        })
    }
}

/// Runs the command line of this process and returns the exit code.
pub async fn run() -> ExitCode {
    let cli = Cli::parse();
    match cli.run().await {
        Ok(code) => code,
        // The reader of stdout has closed it early, as `head` does: not an error to report.
        Err(error) if is_broken_pipe(&error) => ExitCode::from(SIGPIPE_CODE),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Exit code that shells report for a program ended by SIGPIPE, which Rust programs ignore.
const SIGPIPE_CODE: u8 = 128 + 13;

fn is_broken_pipe(error: &Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

impl Cli {
    async fn run(self) -> Result<ExitCode, Error> {
        let config = Config::load(self.config.as_deref())?;
        let _telemetry = telemetry::start(&config.telemetry)?;
        match self.command.unwrap_or(Command::Serve) {
            Command::Serve => serve::run(config).await,
            Command::Migrate(command) => return command.run(&config).await,
            Command::Openapi { format } => {
                format.print(&Links::new(config.server.public_url.as_ref()))
            }
            Command::Keys(command) => command.run(&config).await,
            Command::Clients(command) => command.run(&config).await,
            Command::Sessions(command) => command.run(&config).await,
            Command::Callers(command) => command.run(&config).await,
            Command::Import(command) => command.run(&config).await,
            Command::Export(command) => command.run(&config).await,
            Command::Check => return check::run(&config).await,
            Command::Config(command) => command.run(self.config.as_deref()),
            Command::Healthcheck => healthcheck::run(&config).await,
            Command::Completions { shell } => {
                let (mut command, mut script) = (Self::command(), Vec::new());
                clap_complete::generate(shell, &mut command, "pet-inventory", &mut script);
                Ok(io::stdout().write_all(&script)?)
            }
        }
        .map(|()| ExitCode::SUCCESS)
    }
}
