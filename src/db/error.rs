//! What can go wrong with PostgreSQL, classified by what it means for whoever asked.

use std::io;

use tokio::sync::oneshot::error::RecvError;

/// A failure of the database room.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// PostgreSQL cannot be reached, is starting or stopping, is read-only, or has no room left.
    /// It passes without a change on our side: try again later.
    #[error("PostgreSQL is unavailable: {0}")]
    Unavailable(#[source] sqlx::Error),
    /// No answer in time.
    #[error("PostgreSQL did not answer in time")]
    TimedOut,
    /// More requests wait for PostgreSQL than can be answered soon.
    #[error("too many requests wait for PostgreSQL")]
    Overloaded,
    /// Another transaction held what was needed, for as long as we wait.
    #[error("another transaction was in the way: {0}")]
    Locked(#[source] sqlx::Error),
    /// Of two transactions that met only one could go on; the same one may succeed now.
    #[error("the transaction met another one: {0}")]
    Contended(#[source] sqlx::Error),
    /// A stored value that this version of the program cannot read.
    #[error("stored value out of its bounds: {0}")]
    Corrupt(String),
    /// The database URL cannot be read.
    #[error("the database URL (database.url, DATABASE_URL) cannot be read: {0}")]
    Url(#[source] sqlx::Error),
    /// The schema could not be brought up to date.
    #[error("migration failed: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// A statement that PostgreSQL refuses: our bug.
    #[error("{0}")]
    Query(#[source] sqlx::Error),
}

/// An error that may hold one of this room's, as those of the rooms above do.
pub trait Failure: From<Error> {
    /// The error of this room, if it is one.
    fn database_error(&self) -> Option<&Error>;
}

impl Failure for Error {
    fn database_error(&self) -> Option<&Error> {
        Some(self)
    }
}

impl Error {
    /// What PostgreSQL, or the way to it, said.
    pub(super) const fn by_postgres(&self) -> Option<&sqlx::Error> {
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

    /// Whether the statement was certainly not sent.
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

    /// A copy for another of the requests that shared the failed statement.
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
            Self::Corrupt(what) => Self::Corrupt(what.clone()),
            Self::Url(_) | Self::Migrate(_) | Self::Query(_) => Self::Query(text()),
        }
    }
}

/// The responding task ended with its runtime.
impl From<RecvError> for Error {
    fn from(_: RecvError) -> Self {
        Self::Unavailable(sqlx::Error::PoolClosed)
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Decode(why) => return Self::Corrupt(why.to_string()),
            sqlx::Error::ColumnDecode { source, .. } => return Self::Corrupt(source.to_string()),
            _ => {}
        }
        match Kind::of(&error) {
            Kind::Unavailable => Self::Unavailable(error),
            Kind::TimedOut => Self::TimedOut,
            Kind::Locked => Self::Locked(error),
            Kind::Contended => Self::Contended(error),
            Kind::Other => Self::Query(error),
        }
    }
}

/// What a failure of sqlx's means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Unavailable,
    TimedOut,
    Locked,
    Contended,
    Other,
}

impl Kind {
    /// Reads a failure.
    pub(super) fn of(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => Self::Unavailable,
            sqlx::Error::Database(database) => Self::of_code(&database.code().unwrap_or_default()),
            _ => Self::Other,
        }
    }

    /// PostgreSQL's documentation, appendix A: error codes.
    fn of_code(code: &str) -> Self {
        match code {
            // query_canceled: statement_timeout.
            "57014" => Self::TimedOut,
            // lock_not_available: lock_timeout.
            "55P03" => Self::Locked,
            // serialization_failure, deadlock_detected.
            "40001" | "40P01" => Self::Contended,
            // read_only_sql_transaction: a primary that was demoted under us. invalid_sql_statement_name,
            // duplicate_prepared_statement: a pooler came in between. No connection that met one is used again.
            "25006" | "26000" | "42P05" => Self::Unavailable,
            // object_not_in_prerequisite_state: the database was told to accept no connections.
            "55000" => Self::Unavailable,
            // Classes: connection exception, insufficient resources, operator intervention, system error.
            code if ["08", "53", "57", "58"].contains(&code.get(..2).unwrap_or_default()) => {
                Self::Unavailable
            }
            _ => Self::Other,
        }
    }
}

/// Whether it says that a connection is lost, or leads to a PostgreSQL that starts or stops.
pub(super) fn is_of_the_connection(error: &sqlx::Error) -> bool {
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

/// Whether it says that the connection leads to a standby.
pub(super) fn is_read_only(error: &sqlx::Error) -> bool {
    has_code(error, &["25006"])
}

/// Whether it says that the server is not the one that a statement was prepared on: `invalid_sql_statement_name`,
/// `duplicate_prepared_statement`.
pub(super) fn is_of_a_pooler(error: &sqlx::Error) -> bool {
    has_code(error, &["26000", "42P05"])
}

fn has_code(error: &sqlx::Error, codes: &[&str]) -> bool {
    error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code)
        .is_some_and(|code| codes.contains(&code.as_ref()))
}
