//! Command line: arguments, dispatch and output.
//!
//! Invariant: stdout holds only the result of the command, so that it can be piped; logs and errors go to stderr.

#![expect(
    clippy::print_stderr,
    reason = "the command line reports errors on stderr"
)]

mod archive;
mod audit;
mod backup;
mod callers;
mod check;
mod claim_images;
mod clients;
mod config;
mod credentials;
mod export;
mod healthcheck;
mod import;
mod keys;
mod migrate;
mod output;
mod partial_file;
mod pet_file;
mod restore;
mod seed;
mod serve;
mod session;
mod sessions;
mod stored_images;
mod webhooks;

use std::{
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{self, ExitCode},
};

use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use secrecy::SecretString;

use self::output::{Error, print, report, report_usage, say};
use crate::{
    api::{self, openapi, state::Links},
    config::{CommandLine, Config, arguments, postgres_variables, program},
    domain::address::ListenAddress,
    telemetry::{self, build::BUILD},
};

/// REST API for the pets, orders and users of a pet store, under /api/v3, on PostgreSQL
///
/// Without a command, it runs serve. Without DATABASE_URL, it starts an embedded PostgreSQL in ./data, with demo keys,
/// for evaluation and development.
///
/// PORT replaces the port of server.listen. A variable with the suffix _FILE names a file with the value:
/// DATABASE_URL_FILE=/run/secrets/database_url.
#[derive(Debug, Parser)]
#[command(version = BUILD.as_str(), after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    /// TOML file that overrides the defaults; the environment (PET_INVENTORY__SECTION__KEY) overrides both
    #[arg(long, global = true, value_name = "FILE", help_heading = SETTINGS)]
    config: Option<PathBuf>,
    /// Address of the API, in place of server.listen: 127.0.0.1:8080 or unix:/run/pet-inventory/api.sock; for serve, check,
    /// config and healthcheck
    #[arg(long, global = true, value_name = "ADDRESS", help_heading = SETTINGS)]
    listen: Option<ListenAddress>,
    /// URL of the database, in place of database.url. Other users of the machine can see it in the list of processes: if it
    /// has a password, use DATABASE_URL or DATABASE_URL_FILE
    #[arg(long, global = true, value_name = "URL", help_heading = SETTINGS)]
    database_url: Option<SecretString>,
    /// Print the result as one line of JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

/// Heading of the options that are settings.
const SETTINGS: &str = "Settings";

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
    ///
    /// With --json, it prints once it is ready:
    /// {"api":…,"docs":…,"socket":…,"metrics":…,"operationsSocket":…,"data":…,"demoKeys":[{"key":…,"plan":…}]}. The sockets
    /// are the paths of Unix sockets, or null
    Serve,
    /// Bring the database schema up to date; serve does so too
    ///
    /// With --json: {"applied":[{"version":…,"description":…}]}, or "missing" with --check
    Migrate(migrate::Migrate),
    /// Print the OpenAPI document
    ///
    /// With --json: the JSON forms as one line
    Openapi {
        /// Form of the document: OpenAPI 3.1 as JSON or YAML, or OpenAPI 3.0.3 as JSON
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
    /// Send changes to URLs: create, list, disable and delete webhooks, show and repeat their deliveries
    #[command(subcommand)]
    Webhooks(webhooks::Webhooks),
    /// Show who changed what: the record of changes
    ///
    /// Changes are kept for changes.retention, 30 days by default. With --json, one line for each change, as in the responses
    /// of GET /changes
    Audit(audit::Audit),
    /// Add the pets of a file, all of them or none
    ///
    /// Each record must be valid for POST /pet; one without an id gets a new one. Invalid records and ids that are in use are
    /// listed by line, and then nothing is added. An import that is interrupted leaves nothing: run it again. - reads
    /// stdin, with --format. With --json: {"added":…}
    Import(import::ImportPets),
    /// Write all pets to a file or to stdout, as one consistent snapshot
    ///
    /// With --json, for a file: {"file":…,"bytes":…}
    Export(export::ExportPets),
    /// Write the database and the images to one archive, as of one point in time, while the service runs
    ///
    /// The archive is a tar file with credentials and personal data. To compress and encrypt it:
    /// set -o pipefail; pet-inventory backup - | zstd | age --recipient KEY > FILE
    ///
    /// With --json, for a file: {"file":…,"bytes":…,"pets":…,"images":…,"imagesLeftOut":…}
    Backup(backup::Backup),
    /// Restore a backup into an empty database and an empty image store, all of it or nothing
    ///
    /// With --json: {"pets":…,"images":…,"createdAt":…,"note":…}
    Restore(restore::Restore),
    /// Add 30 pets with pictures and a few orders, to try the service with
    ///
    /// The service may be running or not. Fails if the store has pets. With --json: {"pets":…,"orders":…}
    Seed,
    /// Check that the service would run with this configuration, and suggest fixes
    ///
    /// With --json: {"ok":…,"checks":[{"part":…,"ok":…,"message":…}],"warnings":[{"part":…,"message":…}]}
    Check(check::Check),
    /// Make the image store that of this database: after it was lost, or if another one used it
    ///
    /// Only one database may use a store: its service deletes what no image of it needs. serve does not start on a store without
    /// the images of its database until this says that they are lost; each of them is 404 then. With --json: {"images":…}
    ClaimImages,
    /// Show the effective settings and their origins
    #[command(subcommand)]
    Config(config::Settings),
    /// Print a shell completion script, for example: source <(pet-inventory completions bash)
    Completions {
        /// Shell that runs the script
        shell: Shell,
    },
    /// Check the liveness of the running service, for the HEALTHCHECK of a container
    ///
    /// With --json: {"ok":true}
    Healthcheck,
}

impl Command {
    /// Fails for an option that the command would ignore.
    fn refuse_ignored_options(&self, settings: &CommandLine, json: bool) -> Result<(), Error> {
        let (has_listen, has_url) = (settings.listen.is_some(), settings.database_url.is_some());
        let ignored = match self {
            Self::Serve | Self::Check(_) | Self::Config(_) => None,
            Self::Healthcheck => has_url.then_some("--database-url"),
            Self::Completions { .. }
            | Self::Openapi {
                format: DocumentFormat::Yaml,
            } if json => Some("--json"),
            Self::Openapi { .. } | Self::Completions { .. } if has_url => Some("--database-url"),
            _ => has_listen.then_some("--listen"),
        };
        match ignored {
            Some(option) => Err(format!("this command does not use {option}; omit it").into()),
            None => Ok(()),
        }
    }
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
    fn print(self, links: &Links, json: bool) -> Result<(), Error> {
        let document = api::document(links);
        say(match self {
            Self::Json if json => serde_json::to_string(&document)?,
            Self::Json => serde_json::to_string_pretty(&document)?,
            Self::Yaml => openapi::serve::to_yaml(&document)?,
            Self::Json30 => {
                let document = openapi::version_3_0::convert(&document)?;
                return print(json, format_args!("{document:#}"), &document);
            }
        })
    }
}

/// Runs the command line of this process and returns the exit code. Starts the runtime here, because a crate that polls a
/// future compiles all that it awaits: a program of this library would compile the service once more.
///
/// # Panics
///
/// If the system refuses to start threads.
#[tokio::main]
pub async fn run() -> ExitCode {
    let arguments = arguments();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && arguments.iter().any(|it| it == "--json") => {
            report_usage(&error);
            return ExitCode::from(USAGE_CODE);
        }
        Err(error) => error.exit(),
    };
    let json = cli.json;
    match cli.run().await {
        Ok(code) => code,
        // The reader of stdout has closed it early, as `head` does: not an error to report.
        Err(error) if is_broken_pipe(&error) => ExitCode::from(SIGPIPE_CODE),
        Err(error) => {
            report(&error.to_string(), json);
            ExitCode::FAILURE
        }
    }
}

/// Executes the program again without the variables of PostgreSQL's clients, if there are any: sqlx and PostgreSQL read them also for
/// the embedded PostgreSQL.
fn leave_out_postgres_variables() -> io::Result<()> {
    let names = postgres_variables();
    if names.is_empty() {
        return Ok(());
    }
    let mut command = process::Command::new(program()?);
    command.args(arguments().into_iter().skip(1));
    for name in names {
        command.env_remove(name);
    }
    Err(command.exec())
}

/// Exit code of clap for arguments that cannot be read.
const USAGE_CODE: u8 = 2;

/// Exit code that shells report for a program ended by SIGPIPE, which Rust programs ignore.
const SIGPIPE_CODE: u8 = 128 + 13;

fn is_broken_pipe(error: &Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

impl Cli {
    async fn run(self) -> Result<ExitCode, Error> {
        let (command, json) = (self.command.unwrap_or(Command::Serve), self.json);
        let settings = CommandLine {
            file: self.config,
            listen: self.listen,
            database_url: self.database_url,
        };
        command.refuse_ignored_options(&settings, json)?;
        let config = Config::load(&settings)?;
        if config.database.url.is_none() {
            leave_out_postgres_variables()?;
        }
        let _telemetry = telemetry::start(&config)?;
        match command {
            Command::Serve => serve::run(config, json).await,
            Command::Migrate(command) => return command.run(&config, json).await,
            Command::Openapi { format } => {
                format.print(&Links::new(config.server.public_url.as_ref()), json)
            }
            Command::Keys(command) => command.run(&config, json).await,
            Command::Clients(command) => command.run(&config, json).await,
            Command::Sessions(command) => command.run(&config, json).await,
            Command::Callers(command) => command.run(&config, json).await,
            Command::Webhooks(command) => command.run(&config, json).await,
            Command::Audit(command) => command.run(&config, json).await,
            Command::Import(command) => command.run(&config, json).await,
            Command::Export(command) => command.run(&config, json).await,
            Command::Backup(command) => Box::pin(command.run(&config, json)).await,
            Command::Restore(command) => Box::pin(command.run(&config, json)).await,
            Command::Seed => Box::pin(seed::run(&config, json)).await,
            Command::Check(command) => return check::run(&command, &config, json).await,
            Command::ClaimImages => claim_images::run(&config, json).await,
            Command::Config(command) => command.run(&settings, json),
            Command::Healthcheck => healthcheck::run(&config, json).await,
            Command::Completions { shell } => {
                let (mut command, mut script) = (Self::command(), Vec::new());
                clap_complete::generate(shell, &mut command, "pet-inventory", &mut script);
                Ok(io::stdout().write_all(&script)?)
            }
        }
        .map(|()| ExitCode::SUCCESS)
    }
}
