//! What can go wrong with PostgreSQL, classified by what it means for whoever asked.

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
    /// Another transaction was in the way; the same request may succeed now.
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

impl Error {
    /// The same, for one more of those whom it concerns.
    pub(super) fn again(&self) -> Self {
        let text = || sqlx::Error::Protocol(self.to_string());
        match self {
            Self::TimedOut => Self::TimedOut,
            Self::Overloaded => Self::Overloaded,
            Self::Unavailable(_) => Self::Unavailable(text()),
            Self::Contended(_) => Self::Contended(text()),
            Self::Corrupt(what) => Self::Corrupt(what.clone()),
            Self::Url(_) | Self::Migrate(_) | Self::Query(_) => Self::Query(text()),
        }
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => Self::Unavailable(error),
            sqlx::Error::Database(database) => {
                match sql_state(&database.code().unwrap_or_default()) {
                    SqlState::Unavailable => Self::Unavailable(error),
                    SqlState::TimedOut => Self::TimedOut,
                    SqlState::Contended => Self::Contended(error),
                    SqlState::Other => Self::Query(error),
                }
            }
            sqlx::Error::Decode(why) => Self::Corrupt(why.to_string()),
            sqlx::Error::ColumnDecode { source, .. } => Self::Corrupt(source.to_string()),
            _ => Self::Query(error),
        }
    }
}

enum SqlState {
    Unavailable,
    TimedOut,
    Contended,
    Other,
}

/// PostgreSQL's documentation, appendix A: error codes.
fn sql_state(code: &str) -> SqlState {
    match code {
        // query_canceled: statement_timeout.
        "57014" => SqlState::TimedOut,
        // lock_not_available, serialization_failure, deadlock_detected.
        "55P03" | "40001" | "40P01" => SqlState::Contended,
        // read_only_sql_transaction: a primary that was demoted under us.
        "25006" => SqlState::Unavailable,
        // Classes: connection exception, insufficient resources, operator intervention, system error.
        code if ["08", "53", "57", "58"].contains(&code.get(..2).unwrap_or_default()) => {
            SqlState::Unavailable
        }
        _ => SqlState::Other,
    }
}
