//! Classifies failures of PostgreSQL by their consequence for the request.

use std::io;

use tokio::sync::oneshot::error::RecvError;

/// Failure of a database operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// PostgreSQL cannot be reached, is starting or stopping, is read-only, or lacks resources. A later retry may
    /// succeed.
    #[error("PostgreSQL is unavailable: {0}")]
    Unavailable(#[source] sqlx::Error),
    /// No result in time.
    #[error("PostgreSQL did not respond in time")]
    TimedOut,
    /// Too many requests already wait for PostgreSQL.
    #[error("too many requests wait for PostgreSQL")]
    Overloaded,
    /// Lock timeout: another transaction held a lock for too long.
    #[error("another transaction held a lock for too long: {0}")]
    Locked(#[source] sqlx::Error),
    /// Serialization failure or deadlock with another transaction; a retry may succeed.
    #[error("serialization failure or deadlock with another transaction: {0}")]
    Contended(#[source] sqlx::Error),
    /// Stored value that this version of the program cannot read.
    #[error("invalid value in the database: {0}")]
    Corrupt(String),
    /// Invalid database URL.
    #[error("invalid database URL (database.url, DATABASE_URL): {0}")]
    Url(#[source] sqlx::Error),
    /// Failed migration.
    #[error("migration failed: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// Statement that PostgreSQL refuses: a bug in this program.
    #[error("{0}")]
    Query(#[source] sqlx::Error),
}

/// Error that may contain a database error, such as those of the layers above.
pub trait AsDatabaseError: From<Error> {
    /// Returns the database error, if it is one.
    fn database_error(&self) -> Option<&Error>;
}

impl AsDatabaseError for Error {
    fn database_error(&self) -> Option<&Error> {
        Some(self)
    }
}

impl Error {
    /// Returns the error that PostgreSQL or the connection reported, if any.
    pub(super) const fn sqlx_error(&self) -> Option<&sqlx::Error> {
        match self {
            Self::Unavailable(error)
            | Self::Locked(error)
            | Self::Contended(error)
            | Self::Query(error) => Some(error),
            Self::TimedOut
            | Self::Overloaded
            | Self::Corrupt(_)
            | Self::Url(_)
            | Self::Migrate(_) => None,
        }
    }

    /// Returns true if the statement was certainly not sent.
    #[must_use]
    pub fn is_not_sent(&self) -> bool {
        match self {
            Self::Overloaded => true,
            Self::Unavailable(sqlx::Error::Io(error)) => matches!(
                error.kind(),
                io::ErrorKind::NotConnected | io::ErrorKind::ConnectionRefused
            ),
            _ => false,
        }
    }

    /// Copies the error for another request of the same batch.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let text = || sqlx::Error::Protocol(self.to_string());
        match self {
            Self::TimedOut => Self::TimedOut,
            Self::Overloaded => Self::Overloaded,
            Self::Unavailable(sqlx::Error::Io(error)) => {
                Self::Unavailable(io::Error::new(error.kind(), self.to_string()).into())
            }
            Self::Unavailable(_) => Self::Unavailable(text()),
            Self::Locked(_) => Self::Locked(text()),
            Self::Contended(_) => Self::Contended(text()),
            Self::Corrupt(value) => Self::Corrupt(value.clone()),
            Self::Url(_) | Self::Migrate(_) | Self::Query(_) => Self::Query(text()),
        }
    }
}

/// The task that was to respond has ended with its runtime.
impl From<RecvError> for Error {
    fn from(_: RecvError) -> Self {
        Self::Unavailable(sqlx::Error::PoolClosed)
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Decode(source) => return Self::Corrupt(source.to_string()),
            sqlx::Error::ColumnDecode { source, .. } => return Self::Corrupt(source.to_string()),
            _ => {}
        }
        match ErrorKind::of(&error) {
            ErrorKind::Unavailable => Self::Unavailable(error),
            ErrorKind::TimedOut => Self::TimedOut,
            ErrorKind::Locked => Self::Locked(error),
            ErrorKind::Contended => Self::Contended(error),
            ErrorKind::Other => Self::Query(error),
        }
    }
}

/// Classification of an sqlx error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorKind {
    Unavailable,
    TimedOut,
    Locked,
    Contended,
    Other,
}

impl ErrorKind {
    pub(super) fn of(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => Self::Unavailable,
            sqlx::Error::Database(database) => {
                Self::of_sqlstate(&database.code().unwrap_or_default())
            }
            _ => Self::Other,
        }
    }

    /// Classifies a SQLSTATE (PostgreSQL documentation, appendix A).
    fn of_sqlstate(code: &str) -> Self {
        match code {
            // query_canceled: statement_timeout.
            "57014" => Self::TimedOut,
            // lock_not_available: lock_timeout.
            "55P03" => Self::Locked,
            // serialization_failure, deadlock_detected.
            "40001" | "40P01" => Self::Contended,
            // read_only_sql_transaction: the primary was demoted. invalid_sql_statement_name,
            // duplicate_prepared_statement: there is a pooler now. The connection is not used again after any of these.
            "25006" | "26000" | "42P05" => Self::Unavailable,
            // object_not_in_prerequisite_state: the database is configured to accept no connections.
            "55000" => Self::Unavailable,
            // Classes: connection exception, insufficient resources, operator intervention, system error.
            code if ["08", "53", "57", "58"].contains(&code.get(..2).unwrap_or_default()) => {
                Self::Unavailable
            }
            _ => Self::Other,
        }
    }
}

/// Returns true if the connection is lost, or leads to a PostgreSQL that is starting or stopping.
pub(super) fn is_connection_failure(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::WorkerCrashed => true,
        sqlx::Error::Database(database) => {
            let code = database.code().unwrap_or_default();
            code.starts_with("08") || code.starts_with("57P")
        }
        _ => false,
    }
}

/// Returns true if the connection leads to a standby.
pub(super) fn is_read_only(error: &sqlx::Error) -> bool {
    has_code(error, &["25006"])
}

/// Returns true if the server is not the one that the statement was prepared on: `invalid_sql_statement_name`,
/// `duplicate_prepared_statement`.
pub(super) fn is_prepared_statement_mismatch(error: &sqlx::Error) -> bool {
    has_code(error, &["26000", "42P05"])
}

fn has_code(error: &sqlx::Error, codes: &[&str]) -> bool {
    error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code)
        .is_some_and(|code| codes.contains(&code.as_ref()))
}
