//! Options of connections: read from the URL, or from files with the URL or the password, again for each new connection.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::{database_url::DatabaseUrl, error::Error, pooler};
use crate::{
    config::{self, Pooler, UrlFiles},
    domain::address::is_loopback,
};

/// Options of connections to a PostgreSQL.
pub type ConnectOptions = PgConnectOptions;

/// Options of new connections: of a constant URL, or of one that is read from files for each. Clones share the last one.
#[derive(Debug, Clone)]
pub(super) struct OptionsSource {
    last: Arc<Mutex<ConnectOptions>>,
    files: Option<UrlFiles>,
    pooler: Pooler,
}

impl OptionsSource {
    pub fn new(options: ConnectOptions, config: &config::Database) -> Self {
        let pooler = config.pooler;
        Self {
            last: Arc::new(Mutex::new(compatible(options, pooler))),
            files: config.files.clone(),
            pooler,
        }
    }

    /// Returns the options for a new connection. If the files cannot be read, those of the one before.
    pub async fn current(&self) -> ConnectOptions {
        if let Some(files) = self.files.clone() {
            let reading = tokio::task::spawn_blocking(move || files.read());
            let read = reading.await.unwrap_or_else(|panic| Err(panic.into()));
            let read = read.map_err(|error| Error::Url(format!("cannot be read: {error}").into()));
            match read.and_then(|(url, password)| DatabaseUrl::parse(&url, password.as_ref())) {
                Ok(url) => *self.last() = compatible(url.options, self.pooler),
                Err(error) => {
                    tracing::warn!(%error, "failed to read the URL of the database again; connecting with the one before");
                }
            }
        }
        self.last().clone()
    }

    /// Returns the options of the last connection.
    pub fn last(&self) -> MutexGuard<'_, ConnectOptions> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn compatible(options: ConnectOptions, pooler: Pooler) -> ConnectOptions {
    pooler::compatible(options, pooler).application_name("pet-inventory")
}

/// Returns the `sslmode` of connections to another host if it is weaker than `verify-full`: then an attacker in the network
/// can pretend to be PostgreSQL.
pub fn weak_tls_mode(options: &ConnectOptions) -> Option<&'static str> {
    let mode = match options.get_ssl_mode() {
        PgSslMode::Disable => "disable",
        PgSslMode::Allow => "allow",
        PgSslMode::Prefer => "prefer",
        PgSslMode::Require => "require",
        PgSslMode::VerifyCa => "verify-ca",
        PgSslMode::VerifyFull => return None,
    };
    let is_local = uses_unix_socket(options) || is_loopback(options.get_host());
    (!is_local).then_some(mode)
}

/// Returns the address for people.
pub(super) fn server(options: &ConnectOptions) -> String {
    match options.get_socket() {
        Some(folder) => folder.display().to_string(),
        None if options.get_host().contains(':') => {
            format!("[{}]:{}", options.get_host(), options.get_port())
        }
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

pub(super) fn uses_unix_socket(options: &ConnectOptions) -> bool {
    options.get_socket().is_some() || options.get_host().starts_with('/')
}
