//! Configuration, loaded once and validated before anything starts.
//!
//! Three layers, each overriding the one before: `config/default.toml` (compiled in), the file given to `--config`, and
//! the environment (`PET_INVENTORY__SECTION__KEY`, and established names such as `DATABASE_URL` and `OTEL_*`).
//!
//! Invariants:
//! - A [`Config`] is valid. Unknown keys and invalid values are errors that name the key.
//! - Printing a [`Config`] shows no secret.
//! - No other module reads the environment.

mod issuers;
mod sections;
mod settings;
#[cfg(test)]
mod tests;
mod variables;

use std::{
    collections::HashMap,
    ffi::OsString,
    path::{Path, PathBuf},
};

use config::{ConfigError, Environment, File, FileFormat, ValueKind};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

pub use self::issuers::{Algorithm, Issuer};
pub use self::sections::{
    Auth, Database, DemoKeys, FromEnvironment, Images, Limits, LocalPostgres, LogFormat,
    Operations, OtlpHeaders, PlanLimits, Plans, Server, Telemetry, Users,
};
pub use self::settings::Setting;
use self::variables::{ALIASES, PREFIX, variable};
use crate::domain::caller::Scope;

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
pub struct Config {
    /// Listener of the API, and its limits.
    pub server: Server,
    /// Listener of the operations endpoints.
    pub operations: Operations,
    /// Connection to PostgreSQL.
    pub database: Database,
    /// Embedded PostgreSQL, used without a database URL.
    pub local_postgres: LocalPostgres,
    /// Image store, and limits of uploads.
    pub images: Images,
    /// Limits of each plan.
    pub plans: Plans,
    /// Settings of limits that apply to all plans.
    pub limits: Limits,
    /// Authentication and anonymous access.
    pub auth: Auth,
    /// User accounts and their sessions.
    pub users: Users,
    /// Logs and traces.
    pub telemetry: Telemetry,
    /// Settings that only the environment provides.
    #[serde(skip)]
    pub environment: FromEnvironment,
}

impl Config {
    /// Loads the defaults, `file` if given, and the environment of the process.
    ///
    /// # Errors
    /// [`Error`], which names the key and its file or variable.
    pub fn load(file: Option<&Path>) -> Result<Self, Error> {
        Self::from_layers(file, process_environment())
    }

    /// Returns every effective setting, sorted by key and without secrets.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn settings(file: Option<&Path>) -> Result<Vec<Setting>, Error> {
        let environment = process_environment();
        Self::from_layers(file, environment.clone())?;
        Ok(settings::list(&layers(file, &environment)?, &environment))
    }

    /// Like [`Config::load`], with the environment as an argument.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn from_layers(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Error> {
        let os: HashMap<OsString, OsString> = environment.into_iter().collect();
        let text = |name: &str| os.get(name.as_ref() as &std::ffi::OsStr)?.to_str();
        let layers = layers(file, &os)?;
        let mut config: Self = layers
            .clone()
            .try_deserialize()
            .map_err(|problem| explain(problem, &layers))?;
        config.environment = FromEnvironment {
            bootstrap_api_key: text("BOOTSTRAP_API_KEY")
                .filter(|key| !key.is_empty())
                .map(SecretString::from),
            postgres_bin_dir: os
                .get("POSTGRES_BIN_DIR".as_ref() as &std::ffi::OsStr)
                .map(PathBuf::from),
            path: os.get("PATH".as_ref() as &std::ffi::OsStr).cloned(),
            aws: os
                .iter()
                .filter_map(|(name, value)| Some((name.to_str()?, value.to_str()?)))
                .filter(|(name, _)| name.starts_with("AWS_"))
                .map(|(name, value)| (name.to_owned(), value.into()))
                .collect(),
            temporary_directory: text("TMPDIR")
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
        };
        config.validate().map_err(|(key, reason)| Error::Value {
            key,
            reason,
            origin: origin(&layers, key),
        })?;
        Ok(config)
    }

    /// Validates constraints that the types do not express.
    fn validate(&self) -> Result<(), (&'static str, &'static str)> {
        let Self {
            server,
            database,
            images,
            ..
        } = self;
        let positive: [(&'static str, bool); 15] = [
            ("images.max_size", images.max_size.0 == 0),
            ("images.max_uploads", images.max_uploads == 0),
            ("images.upload_timeout", images.upload_timeout.is_zero()),
            ("images.rendering_memory", images.rendering_memory.0 == 0),
            ("server.header_timeout", server.header_timeout.is_zero()),
            ("server.body_timeout", server.body_timeout.is_zero()),
            ("server.request_timeout", server.request_timeout.is_zero()),
            ("server.max_connections", server.max_connections == 0),
            ("server.max_requests", server.max_requests == 0),
            (
                "auth.access_token_lifetime",
                self.auth.access_token_lifetime.as_secs() == 0,
            ),
            (
                "users.session_lifetime",
                self.users.session_lifetime.as_secs() == 0,
            ),
            ("server.max_body_size", server.max_body_size.0 == 0),
            ("database.max_connections", database.max_connections == 0),
            (
                "database.acquire_timeout",
                database.acquire_timeout.is_zero(),
            ),
            (
                "database.url",
                database
                    .url
                    .as_ref()
                    .is_some_and(|url| url.expose_secret().is_empty()),
            ),
        ];
        let refuse = |key, reason| Err((key, reason));
        if let Some((key, _)) = positive.into_iter().find(|(_, zero)| *zero) {
            return refuse(key, "must not be empty or zero");
        }
        if !(8 << 10..=1 << 20).contains(&server.max_header_size.0) {
            return refuse("server.max_header_size", "must be from 8KiB to 1MiB");
        }
        if let Some(url) = &server.public_url
            && (!matches!(url.scheme(), "http" | "https")
                || url.query().is_some()
                || url.fragment().is_some())
        {
            return refuse(
                "server.public_url",
                "must be an http or https URL without query or fragment",
            );
        }
        if let Some(url) = &images.url
            && !(url.scheme() == "file" && url.to_file_path().is_ok()
                || url.scheme() == "s3" && url.host_str().is_some_and(|bucket| !bucket.is_empty()))
        {
            return refuse(
                "images.url",
                "must be file:///an/absolute/path or s3://bucket/prefix",
            );
        }
        let telemetry = &self.telemetry;
        if let Some(url) = &telemetry.otlp_endpoint
            && (!matches!(url.scheme(), "http" | "https")
                || url.query().is_some()
                || !url.username().is_empty()
                || url.password().is_some())
        {
            return refuse(
                "telemetry.otlp_endpoint",
                "must be an http or https URL without query or credentials; set credentials in otlp_headers",
            );
        }
        if !(0.0..=1.0).contains(&telemetry.otlp_sampling) {
            return refuse("telemetry.otlp_sampling", "must be from 0 to 1");
        }
        if self.auth.anonymous_scopes.contains(Scope::Admin) {
            return refuse(
                "auth.anonymous_scopes",
                "must not contain admin: every anonymous caller would have it",
            );
        }
        Ok(())
    }

    /// Returns the defaults of `config/default.toml`.
    ///
    /// # Errors
    /// [`Error`] when that file is invalid, which a test rules out.
    pub fn defaults() -> Result<Self, Error> {
        Self::from_layers(None, [])
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the only function that reads the environment"
)]
fn process_environment() -> HashMap<OsString, OsString> {
    std::env::vars_os().collect()
}

/// Combines the layers, each overriding the one before.
fn layers(
    file: Option<&Path>,
    environment: &HashMap<OsString, OsString>,
) -> Result<config::Config, ConfigError> {
    let mut ours: HashMap<String, String> = environment
        .iter()
        .filter_map(|(name, value)| Some((name.to_str()?.into(), value.to_str()?.into())))
        .collect();
    for (key, alias) in ALIASES {
        if let Some(value) = ours.get(alias).filter(|value| !value.is_empty()) {
            let value = value.clone();
            ours.entry(variable(key)).or_insert(value);
        }
    }
    let mut layers =
        config::Config::builder().add_source(File::from_str(DEFAULTS, FileFormat::Toml));
    if let Some(file) = file {
        layers = layers.add_source(File::from(file).format(FileFormat::Toml));
    }
    let environment = Environment::with_prefix(PREFIX)
        .prefix_separator("__")
        .separator("__")
        .source(Some(ours));
    layers.add_source(environment).build()
}

/// Returns the origin of a value; for an element of a list, that of the list.
fn origin(layers: &config::Config, key: &str) -> Option<String> {
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
    let origin = match &problem {
        ConfigError::At {
            error,
            origin: None,
            key: Some(key),
        } => {
            let text = error.to_string();
            // serde reports an unknown key on its section.
            let unknown = text
                .strip_prefix("unknown field `")
                .and_then(|text| text.split_once('`'));
            match unknown {
                Some((name, _)) => origin(layers, &format!("{key}.{name}")),
                None => origin(layers, key),
            }
        }
        _ => None,
    };
    Error::Load { problem, origin }
}
