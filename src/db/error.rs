//! Classifies failures of PostgreSQL by their consequence for the request.

use std::{io, sync::Arc};

use sqlx::{migrate::MigrateError, postgres::PgDatabaseError};
use tokio::sync::{mpsc::error::TrySendError, oneshot::error::RecvError};

/// Failure of a database operation.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// PostgreSQL cannot be reached, is starting or stopping, is read-only, or lacks resources. A later retry may
    /// succeed.
    #[error("PostgreSQL is unavailable: {0}")]
    Unavailable(#[source] Arc<sqlx::Error>),
    /// No result in time.
    #[error("PostgreSQL did not respond in time")]
    TimedOut,
    /// PostgreSQL cancelled the statement, which took too long. Its timeout is 0.1 s shorter than that of this process,
    /// which therefore shows that PostgreSQL is frozen or overloaded.
    #[error("the statement took too long")]
    StatementTimedOut,
    /// The statements of the request together took too long. If PostgreSQL is frozen or unreachable, one of them usually
    /// exceeds its own timeout instead.
    #[error("the statements of the request took too long")]
    TotalTimedOut,
    /// Too many requests already wait for PostgreSQL.
    #[error("too many requests wait for PostgreSQL")]
    Overloaded,
    /// Lock timeout: another transaction held a lock for too long.
    #[error("another transaction held a lock for too long: {0}")]
    Locked(#[source] Arc<sqlx::Error>),
    /// Serialization failure or deadlock with another transaction; a retry may succeed.
    #[error("serialization failure or deadlock with another transaction: {0}")]
    Contended(#[source] Arc<sqlx::Error>),
    /// Stored value that this version of the program cannot read.
    #[error("invalid value in the database: {0}")]
    Corrupt(String),
    /// Invalid database URL.
    #[error("invalid URL of the database (database.url or DATABASE_URL): {0}")]
    Url(#[source] Arc<sqlx::Error>),
    /// Schema of a build before 0.1.0, with its last migration.
    #[error(
        "the database has the schema {0:04} of an earlier build, and is left as it is. Move its data to a new database: \
         back up with the build that wrote it (pet-inventory migrate && pet-inventory backup pets.tar), then restore with \
         this one, with another DATABASE_URL and images.url (pet-inventory restore pets.tar)"
    )]
    EarlierSchema(i64),
    /// Failed migration.
    #[error("migration failed: {0}")]
    Migrate(#[source] Arc<MigrateError>),
    /// Statement that PostgreSQL refuses: a bug in this program.
    #[error("{0}")]
    Query(#[source] Arc<sqlx::Error>),
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
    /// Creates the error of a statement without a result in time: in the total time of its request, or in its own.
    pub(super) const fn timed_out(in_total: bool) -> Self {
        if in_total {
            Self::TotalTimedOut
        } else {
            Self::TimedOut
        }
    }

    /// Returns the error that PostgreSQL or the connection reported, if any.
    pub(super) fn sqlx_error(&self) -> Option<&sqlx::Error> {
        match self {
            Self::Unavailable(error)
            | Self::Locked(error)
            | Self::Contended(error)
            | Self::Query(error) => Some(error),
            _ => None,
        }
    }

    /// Returns true if connecting may succeed later without a change of the configuration: the server is unreachable, starting,
    /// stopping, in recovery or full, or its name or Unix socket does not exist yet. False for a wrong password, an unknown
    /// database, a missing or wrong certificate, and a server that does not speak the protocol.
    pub(super) fn is_transient(&self, is_unix_socket: bool) -> bool {
        let error = match self {
            Self::TimedOut => return true,
            Self::Unavailable(error) => error,
            _ => return false,
        };
        match &**error {
            sqlx::Error::Io(error) => match error.kind() {
                // Otherwise it is the file of a certificate.
                io::ErrorKind::NotFound => is_unix_socket,
                io::ErrorKind::InvalidData
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::PermissionDenied => false,
                _ => true,
            },
            // object_not_in_prerequisite_state: the database is configured to accept no connections.
            sqlx::Error::Database(_) => sqlstate(error) != "55000",
            _ => false,
        }
    }

    /// Returns the name of the violated constraint, if any.
    pub(super) fn constraint(&self) -> Option<&str> {
        self.sqlx_error()?.as_database_error()?.constraint()
    }

    /// Returns true if the statement was certainly not sent.
    pub fn is_not_sent(&self) -> bool {
        match self.sqlx_error() {
            Some(sqlx::Error::Io(error)) => matches!(
                error.kind(),
                io::ErrorKind::NotConnected | io::ErrorKind::ConnectionRefused
            ),
            _ => matches!(self, Self::Overloaded),
        }
    }
}

/// The task that was to respond has ended with its runtime.
impl From<RecvError> for Error {
    fn from(_: RecvError) -> Self {
        sqlx::Error::PoolClosed.into()
    }
}

/// The queue of the task that is to respond is full, or the task has ended.
impl<T> From<TrySendError<T>> for Error {
    fn from(error: TrySendError<T>) -> Self {
        match error {
            TrySendError::Full(_) => Self::Overloaded,
            TrySendError::Closed(_) => sqlx::Error::PoolClosed.into(),
        }
    }
}

impl From<MigrateError> for Error {
    fn from(error: MigrateError) -> Self {
        Self::Migrate(error.into())
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Decode(source) => return Self::Corrupt(source.to_string()),
            sqlx::Error::ColumnDecode { index, source } => {
                return Self::Corrupt(format!("column {index}: {source}"));
            }
            _ => {}
        }
        match sqlstate(&error) {
            // query_canceled: statement_timeout.
            "57014" => Self::StatementTimedOut,
            // lock_not_available: lock_timeout.
            "55P03" => Self::Locked(error.into()),
            // serialization_failure, deadlock_detected.
            "40001" | "40P01" => Self::Contended(error.into()),
            _ if is_unavailable(&error) => Self::Unavailable(error.into()),
            _ => Self::Query(error.into()),
        }
    }
}

/// Returns the SQLSTATE (PostgreSQL documentation, appendix A), or an empty string if PostgreSQL did not report the error.
fn sqlstate(error: &sqlx::Error) -> &str {
    error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<PgDatabaseError>())
        .map_or("", PgDatabaseError::code)
}

/// Returns true if the error is classified as [`Error::Unavailable`].
pub(super) fn is_unavailable(error: &sqlx::Error) -> bool {
    match sqlstate(error) {
        // query_canceled.
        "57014" => false,
        // read_only_sql_transaction: the primary was demoted. invalid_sql_statement_name, duplicate_prepared_statement,
        // invalid_binary_representation (of a parameter of another statement): there is a pooler that `database.pooler`
        // does not declare. The connection is not used again after any of these.
        "25006" | "26000" | "42P05" | "22P03" => true,
        // object_not_in_prerequisite_state: the database is configured to accept no connections.
        "55000" => true,
        "" => {
            is_connection_failure(error)
                || matches!(error, sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed)
        }
        // Classes: connection exception, insufficient resources, operator intervention, system error.
        code => ["08", "53", "57", "58"]
            .iter()
            .any(|class| code.starts_with(class)),
    }
}

/// Returns true if the connection is lost, or leads to a PostgreSQL that is starting or stopping.
pub(super) fn is_connection_failure(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::WorkerCrashed => true,
        _ => ["08", "57P"]
            .iter()
            .any(|class| sqlstate(error).starts_with(class)),
    }
}

/// Returns true if PostgreSQL has no room for another connection (`too_many_connections`).
pub(super) fn is_full(error: &sqlx::Error) -> bool {
    sqlstate(error) == "53300"
}

/// Returns true if the connection leads to a standby.
pub(super) fn is_read_only(error: &sqlx::Error) -> bool {
    sqlstate(error) == "25006"
}

/// Returns true if the server is not the one that the statement was prepared on: `invalid_sql_statement_name`,
/// `duplicate_prepared_statement`, or `invalid_binary_representation` of a parameter of another statement.
pub(super) fn is_prepared_statement_mismatch(error: &sqlx::Error) -> bool {
    matches!(sqlstate(error), "26000" | "42P05" | "22P03")
}
