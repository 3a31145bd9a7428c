//! Types of connections, and the URL of a database.

use std::str::FromStr;

use secrecy::{ExposeSecret, SecretString};
use sqlx::{PgConnection, postgres::PgConnectOptions};

use super::error::Error;

/// A connection, in or out of a transaction.
pub type Connection = PgConnection;

/// Options of connections to a PostgreSQL.
pub type ConnectOptions = PgConnectOptions;

/// Parses a `postgres://` URL. Errors do not contain it, because it may contain a password.
pub fn parse_url(url: &SecretString) -> Result<ConnectOptions, Error> {
    ConnectOptions::from_str(url.expose_secret()).map_err(|error| Error::Url(error.into()))
}
