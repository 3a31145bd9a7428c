//! Configuration, loaded once and validated before anything starts.
//!
//! Four layers, each overriding the one before: `config/default.toml` (compiled in), the file given to `--config`, the
//! environment (`PET_INVENTORY__SECTION__KEY`, and established names such as `DATABASE_URL`, `PORT` and `OTEL_*`), and
//! options. A variable with the suffix `_FILE` names a file with the value.
//!
//! Invariants:
//! - A [`Config`] is valid. Unknown keys and invalid values are errors that name the key.
//! - Printing a [`Config`] shows no secret.
//! - No other module reads the environment.

mod files;
mod issuers;
mod sections;
mod settings;
mod variables;

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    io,
    path::PathBuf,
};

use config::{ConfigError, Environment, File, FileFormat, Value, ValueKind};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use url::Url;

pub use self::files::{FileError, UrlFiles};
pub use self::issuers::{Algorithm, Issuer};
pub use self::sections::{
    Auth, Changes, CorsOrigins, Database, DemoKeys, FromEnvironment, Images, Limits, LocalPostgres,
    LogFormat, Operations, OtlpHeaders, Plans, Pooler, Sampler, Server, Telemetry, Users, Webhooks,
};
pub use self::settings::Setting;
use self::variables::{ALIASES, LISTEN, PORT, PREFIX, is_ignored, variable};
use crate::domain::{address::ListenAddress, caller::Scope};

/// Compiled-in defaults, with a description of every key.
const DEFAULTS: &str = include_str!("../../config/default.toml");

/// Configuration error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A layer cannot be read, or has an unknown key or a value of the wrong type.
    #[error("configuration: {problem}{}", origin_suffix(.origin.as_deref()))]
    Load {
        /// Problem, with the key.
        problem: ConfigError,
        /// File or variable, if `problem` does not name it.
        origin: Option<String>,
    },
    /// A value has the right type but is not allowed.
    #[error("configuration: {key} {reason}{}", origin_suffix(.origin.as_deref()))]
    Value {
        /// Key, as `section.key`.
        key: &'static str,
        /// Problem, in words that follow the key.
        reason: &'static str,
        /// File or variable.
        origin: Option<String>,
    },
    /// The file that a variable names cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
}

fn origin_suffix(origin: Option<&str>) -> String {
    origin.map_or_else(String::new, |origin| format!(" in {origin}"))
}

impl From<ConfigError> for Error {
    fn from(problem: ConfigError) -> Self {
        let origin = None;
        Self::Load { problem, origin }
    }
}

/// Configuration of the service. `config/default.toml` describes each key.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "config/default.toml describes every section")]
pub struct Config {
    pub server: Server,
    pub operations: Operations,
    pub database: Database,
    pub local_postgres: LocalPostgres,
    pub images: Images,
    pub plans: Plans,
    pub limits: Limits,
    pub auth: Auth,
    pub users: Users,
    pub changes: Changes,
    pub webhooks: Webhooks,
    pub telemetry: Telemetry,
    /// Settings that only the environment provides.
    #[serde(skip)]
    pub environment: FromEnvironment,
}

/// Settings of the command line, which override all others.
#[derive(Debug, Clone, Default)]
pub struct CommandLine {
    /// File over the defaults.
    pub file: Option<PathBuf>,
    /// `server.listen`.
    pub listen: Option<ListenAddress>,
    /// `database.url`.
    pub database_url: Option<SecretString>,
}

impl CommandLine {
    /// Returns the keys and values of the options, with the options as their origins.
    fn values(&self) -> impl Iterator<Item = (&'static str, Value)> {
        let url = self.database_url.as_ref();
        let options = [
            (
                LISTEN,
                "--listen",
                self.listen.as_ref().map(ToString::to_string),
            ),
            (
                "database.url",
                "--database-url",
                url.map(|it| it.expose_secret().to_owned()),
            ),
        ];
        options.into_iter().filter_map(|(key, option, value)| {
            Some((key, Value::new(Some(&option.to_owned()), value?)))
        })
    }
}

impl Config {
    /// Loads the defaults, the environment of the process, and the file and the options of the command line.
    pub fn load(command_line: &CommandLine) -> Result<Self, Error> {
        Self::from_layers(command_line, process_environment())
    }

    /// Returns the defaults of `config/default.toml`.
    pub fn defaults() -> Result<Self, Error> {
        Self::from_layers(&CommandLine::default(), [])
    }

    /// Returns every effective setting, sorted by key and without secrets.
    pub fn settings(command_line: &CommandLine) -> Result<Vec<Setting>, Error> {
        let environment = process_environment();
        Self::from_variables(command_line, &environment)?;
        Ok(settings::list(
            &layers(command_line, &files::resolve(&environment)?)?,
            &environment,
        ))
    }

    /// Like [`Config::load`], with the environment as an argument.
    pub fn from_layers(
        command_line: &CommandLine,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Error> {
        Self::from_variables(command_line, &set_variables(environment))
    }

    fn from_variables(
        command_line: &CommandLine,
        environment: &HashMap<OsString, OsString>,
    ) -> Result<Self, Error> {
        let os = &files::resolve(environment)?;
        let layers = layers(command_line, os)?;
        let mut config: Self = layers
            .clone()
            .try_deserialize()
            .map_err(|problem| explain(problem, &layers))?;
        let text = |name: &str| os.get(OsStr::new(name))?.to_str();
        config.environment = FromEnvironment {
            bootstrap_api_key: text("BOOTSTRAP_API_KEY").map(SecretString::from),
            postgres_bin_dir: os.get(OsStr::new("POSTGRES_BIN_DIR")).map(PathBuf::from),
            path: os.get(OsStr::new("PATH")).cloned(),
            aws: texts(os)
                .filter(|(name, _)| name.starts_with("AWS_"))
                .map(|(name, value)| (name.to_owned(), value.into()))
                .collect(),
            temporary_directory: text("TMPDIR").map(PathBuf::from),
            sockets: variables::sockets(&text),
            ignored: texts(os)
                .filter(|(name, value)| is_ignored(name, value) || !is_usable(name, value))
                .map(|(name, _)| name.to_owned())
                .collect(),
        };
        let Database { url, password, .. } = &config.database;
        let is_option = command_line.database_url.is_some();
        config.database.files =
            UrlFiles::of(environment, is_option, url.as_ref(), password.as_ref());
        config.validate().map_err(|(key, reason)| Error::Value {
            key,
            reason,
            origin: origin_of(&layers, key),
        })?;
        Ok(config)
    }

    /// Validates constraints that the types do not express.
    fn validate(&self) -> Result<(), (&'static str, &'static str)> {
        let Self {
            server,
            database,
            images,
            auth,
            users,
            telemetry,
            ..
        } = self;
        validate_database(database)?;
        let zero = [
            ("images.max_size", images.max_size.0 == 0),
            ("images.max_uploads", images.max_uploads == 0),
            ("images.upload_timeout", images.upload_timeout.is_zero()),
            ("images.rendering_memory", images.rendering_memory.0 == 0),
            ("server.header_timeout", server.header_timeout.is_zero()),
            ("server.body_timeout", server.body_timeout.is_zero()),
            ("server.request_timeout", server.request_timeout.is_zero()),
            ("server.max_connections", server.max_connections == 0),
            (
                "server.max_connections_per_address",
                server.max_connections_per_address == 0,
            ),
            ("server.max_requests", server.max_requests == 0),
            (
                "auth.access_token_lifetime",
                auth.access_token_lifetime.as_secs() == 0,
            ),
            (
                "auth.api_key_lifetime",
                auth.api_key_lifetime.is_some_and(|it| it.as_secs() == 0),
            ),
            (
                "users.session_lifetime",
                users.session_lifetime.as_secs() == 0,
            ),
            ("server.max_body_size", server.max_body_size.0 == 0),
            ("telemetry.otlp_timeout", telemetry.otlp_timeout.is_zero()),
            // The exporter would use a whole core.
            ("telemetry.otlp_delay", telemetry.otlp_delay.is_zero()),
            ("changes.retention", self.changes.retention.is_zero()),
            ("database.max_connections", database.max_connections == 0),
            (
                "database.acquire_timeout",
                database.acquire_timeout.is_zero(),
            ),
        ];
        if let Some((key, _)) = zero.into_iter().find(|(_, is_zero)| *is_zero) {
            return Err((key, "must not be empty or zero"));
        }
        if !(8 << 10..=1 << 20).contains(&server.max_header_size.0) {
            return Err(("server.max_header_size", "must be from 8KiB to 1MiB"));
        }
        if !(1..=8).contains(&self.webhooks.max_deliveries) {
            let reason = "must be from 1 to 8: the requests in progress to each webhook, no longer those of the process";
            return Err(("webhooks.max_deliveries", reason));
        }
        // A whole list takes 2 MiB, and a client address may use an eighth.
        if server.max_response_memory.0 < 16 << 20 {
            return Err(("server.max_response_memory", "must be at least 16MiB"));
        }
        let is_http = |url: &Url| matches!(url.scheme(), "http" | "https") && url.query().is_none();
        if !(server.public_url.iter()).all(|url| is_http(url) && url.fragment().is_none()) {
            let reason = "must be an http or https URL without query or fragment";
            return Err(("server.public_url", reason));
        }
        if !images.url.iter().all(|url| match url.scheme() {
            "file" => url.to_file_path().is_ok(),
            "s3" => url.host_str().is_some_and(|bucket| !bucket.is_empty()),
            _ => false,
        }) {
            let reason = "must be file:///an/absolute/path or s3://bucket/prefix";
            return Err(("images.url", reason));
        }
        for (key, url) in [
            ("telemetry.otlp_endpoint", &telemetry.otlp_endpoint),
            (
                "telemetry.otlp_traces_endpoint",
                &telemetry.otlp_traces_endpoint,
            ),
        ] {
            let Some(url) = url else { continue };
            if !is_http(url) || !url.username().is_empty() || url.password().is_some() {
                let reason = "must be an http or https URL without query or credentials; set credentials in otlp_headers";
                return Err((key, reason));
            }
        }
        if !(0.0..=1.0).contains(&telemetry.otlp_sampling) {
            return Err(("telemetry.otlp_sampling", "must be from 0 to 1"));
        }
        let scopes = auth.anonymous_scopes;
        if scopes.contains(Scope::Admin) || scopes.contains(Scope::ReadChanges) {
            let reason = "must not contain admin or read:changes: they are not for everybody";
            return Err(("auth.anonymous_scopes", reason));
        }
        Ok(())
    }
}

/// Validates the URL of the database and its password.
fn validate_database(database: &Database) -> Result<(), (&'static str, &'static str)> {
    for (key, text) in [
        ("database.url", &database.url),
        ("database.password", &database.password),
    ] {
        if (text.as_ref()).is_some_and(|it| it.expose_secret().is_empty()) {
            return Err((key, "must not be empty or zero"));
        }
    }
    let has_url = database.url.is_some();
    if !has_url && database.password.is_some() {
        return Err(("database.password", "must not be set without database.url"));
    }
    Ok(())
}

/// Returns the arguments of this process, of which the first one is the name of the program.
pub fn arguments() -> Vec<OsString> {
    std::env::args_os().collect()
}

/// Returns the path of this program.
pub fn program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

#[expect(
    clippy::disallowed_methods,
    reason = "the only function that reads the environment"
)]
fn process_environment() -> HashMap<OsString, OsString> {
    set_variables(std::env::vars_os())
}

/// Returns the names of the variables of PostgreSQL's clients, such as `PGOPTIONS`, in the environment of this process.
pub fn postgres_variables() -> Vec<OsString> {
    let names = process_environment().into_keys();
    let is_for_clients = |name: &OsString| {
        let name = name.as_encoded_bytes();
        name.starts_with(b"PG") && !name.starts_with(b"PG_")
    };
    names.filter(is_for_clients).collect()
}

/// Leaves out variables with an empty value, as Docker Compose writes those that are not set.
fn set_variables(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> HashMap<OsString, OsString> {
    let variables = environment.into_iter();
    variables.filter(|(_, value)| !value.is_empty()).collect()
}

/// Returns the variables that are text.
fn texts(environment: &HashMap<OsString, OsString>) -> impl Iterator<Item = (&str, &str)> {
    let variables = environment.iter();
    variables.filter_map(|(name, value)| Some((name.to_str()?, value.to_str()?)))
}

/// Combines the layers, each overriding the one before.
fn layers(
    command_line: &CommandLine,
    environment: &HashMap<OsString, OsString>,
) -> Result<config::Config, Error> {
    let mut ours: HashMap<String, String> = texts(environment)
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    for (key, alias, unit) in ALIASES {
        if let Some(value) = ours.get(alias).filter(|value| is_usable(alias, value)) {
            let value = format!("{value}{unit}");
            ours.entry(variable(key)).or_insert(value);
        }
    }
    let port = (ours.remove(PORT)).filter(|_| command_line.listen.is_none());
    let layers = combine(command_line, ours.clone())?;
    let listen = layers.get_string(LISTEN).unwrap_or_default().parse();
    // An invalid address is reported later.
    let (Some(port), Ok(listen)) = (port, listen) else {
        return Ok(layers);
    };
    let fail = |reason| Error::Value {
        key: LISTEN,
        reason,
        origin: Some(PORT.to_owned()),
    };
    let ListenAddress::Tcp(mut address) = listen else {
        return Err(fail("is a Unix socket, but there is a port"));
    };
    let port = port.parse().map_err(|_| fail("has an invalid port"))?;
    address.set_port(port);
    ours.insert(variable(LISTEN), address.to_string());
    Ok(combine(command_line, ours)?)
}

/// Returns false for a standard variable of OpenTelemetry with a value that the service does not know. It may be meant for other
/// programs, and does not stop the start.
fn is_usable(alias: &str, value: &str) -> bool {
    let Some((key, _, unit)) = (ALIASES.iter()).find(|(_, name, _)| *name == alias) else {
        return true;
    };
    let variables = HashMap::from([(variable(key), format!("{value}{unit}"))]);
    let config = || {
        let layers = combine(&CommandLine::default(), variables).ok()?;
        layers.try_deserialize::<Config>().ok()
    };
    !alias.starts_with("OTEL_") || config().is_some_and(|config| config.validate().is_ok())
}

/// Combines the defaults, variables, and the file and the options of the command line.
fn combine(
    command_line: &CommandLine,
    variables: HashMap<String, String>,
) -> Result<config::Config, ConfigError> {
    let mut layers =
        config::Config::builder().add_source(File::from_str(DEFAULTS, FileFormat::Toml));
    if let Some(file) = &command_line.file {
        layers = layers.add_source(File::from(file.as_path()).format(FileFormat::Toml));
    }
    let environment = Environment::with_prefix(PREFIX)
        .prefix_separator("__")
        .separator("__")
        .source(Some(variables));
    for (key, value) in command_line.values() {
        layers = layers.set_override(key, value)?;
    }
    layers.add_source(environment).build()
}

/// Returns the origin of a value; for an element of a list, that of the list.
fn origin_of(layers: &config::Config, key: &str) -> Option<String> {
    let mut value = &layers.cache;
    let key = key.split_once('[').map_or(key, |(list, _)| list);
    for part in key.split('.') {
        let ValueKind::Table(table) = &value.kind else {
            return None;
        };
        value = table.get(part)?;
    }
    value.origin().map(str::to_owned)
}

/// Adds the origin to errors of serde, which lack it, unlike those of the `config` crate.
fn explain(problem: ConfigError, layers: &config::Config) -> Error {
    let mut origin = None;
    if let ConfigError::At {
        error,
        origin: None,
        key: Some(section),
    } = &problem
    {
        let text = error.to_string();
        // serde reports an unknown key on its section.
        let unknown = text.strip_prefix("unknown field `");
        origin = match unknown.and_then(|text| text.split_once('`')) {
            Some((name, _)) => origin_of(layers, &format!("{section}.{name}")),
            None => origin_of(layers, section),
        };
    }
    Error::Load { problem, origin }
}
