//! Classifies failures of PostgreSQL by their consequence for the request.

use std::{borrow::Cow, io, sync::Arc};

use sqlx::{migrate::MigrateError, postgres::PgDatabaseError};
use tokio::sync::{mpsc::error::TrySendError, oneshot::error::RecvError};

/// Failure of a database operation.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// PostgreSQL cannot be reached, is starting or stopping, is read-only, lacks resources, or refuses the role, its password
    /// or the database. A later retry may succeed.
    #[error("PostgreSQL is unavailable: {}", message(.0))]
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
    #[error("another transaction held a lock for too long: {}", message(.0))]
    Locked(#[source] Arc<sqlx::Error>),
    /// Serialization failure or deadlock with another transaction; a retry may succeed.
    #[error("serialization failure or deadlock with another transaction: {}", message(.0))]
    Contended(#[source] Arc<sqlx::Error>),
    /// Stored value that this version of the program cannot read.
    #[error("invalid value in the database: {0}")]
    Corrupt(String),
    /// Invalid database URL, with the reason.
    #[error("database.url (DATABASE_URL) {0}")]
    Url(Cow<'static, str>),
    /// Conditions of the service that a database does not meet.
    #[error("{}", .0.join(". Also, "))]
    Unmet(Vec<String>),
    /// Failed migration.
    #[error("migration failed: {}", migration_message(.0))]
    Migrate(#[source] Arc<MigrateError>),
    /// Statement that PostgreSQL refuses: a bug in this program.
    #[error("{}", message(.0))]
    Query(#[source] Arc<sqlx::Error>),
}

/// Returns the message of an error. sqlx adds the line of PostgreSQL's source.
pub(super) fn message(error: &sqlx::Error) -> String {
    match error.as_database_error() {
        Some(error) => error.message().to_owned(),
        None => error.to_string(),
    }
}

fn migration_message(error: &MigrateError) -> String {
    match error {
        MigrateError::Execute(error) => message(error),
        MigrateError::ExecuteMigration(error, version) => {
            format!("{version:04}: {}", message(error))
        }
        MigrateError::VersionMismatch(version) => format!(
            "{version:04} differs from that of the build that applied it: run that build, or restore its backup into \
             another database with: pet-inventory restore"
        ),
        MigrateError::Dirty(version) => format!(
            "{version:04} was interrupted; to repeat it: delete from _sqlx_migrations where version = {version}; \
             then: pet-inventory migrate"
        ),
        _ => error.to_string(),
    }
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
            sqlx::Error::Database(_) => !is_refused(error) && sqlstate(error) != "55000",
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
            Some(error) => is_refused(error),
            None => matches!(self, Self::Overloaded),
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
        match Consequences::of(&error).class {
            Class::Unavailable => Self::Unavailable(error.into()),
            Class::StatementTimedOut => Self::StatementTimedOut,
            Class::Locked => Self::Locked(error.into()),
            Class::Contended => Self::Contended(error.into()),
            Class::Query => Self::Query(error.into()),
        }
    }
}

/// What follows from an error that PostgreSQL or the connection reported: for the request, the connection, and the circuit breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Consequences {
    /// Error of the request, from which its status and a retry follow.
    pub class: Class,
    /// Use of connections afterwards.
    pub connections: Connections,
    /// True if the server may be unavailable: a failed statement starts a probe, and a probe fails.
    pub is_server_in_doubt: bool,
}

/// Class of errors of a request: the variant of [`Error`] of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// 503.
    Unavailable,
    /// 503, and counted against the limits of the caller.
    StatementTimedOut,
    /// 503; a request of a batch is executed again, separately.
    Locked,
    /// The transaction is retried; then 503.
    Contended,
    /// 500: a bug in this program.
    Query,
}

/// Use of connections after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Connections {
    /// The connection is used again.
    Reusable,
    /// The connection is closed.
    Closed,
    /// The connection and all that were opened earlier are closed.
    AllClosed,
}

/// Consequences by SQLSTATE (PostgreSQL documentation, appendix A). Of several codes that begin one, the longest counts; those
/// without a row are errors of the statement.
const BY_SQLSTATE: [(&[&str], Consequences); 8] = {
    use self::{
        Class::{Contended, Locked, StatementTimedOut, Unavailable},
        Connections::{AllClosed, Closed, Reusable},
    };
    const fn row(class: Class, connections: Connections, doubt: bool) -> Consequences {
        Consequences {
            class,
            connections,
            is_server_in_doubt: doubt,
        }
    }
    [
        // Connection exception; operator intervention: PostgreSQL is starting or stopping.
        (&["08", "57P"], row(Unavailable, Closed, true)),
        // Invalid authorization, and invalid catalog name: the password was changed, or the role, its right to log in or the
        // database is missing. Connections that were opened earlier may work on, but no other replaces them.
        (&["28", "3D"], row(Unavailable, AllClosed, true)),
        // read_only_sql_transaction: the primary was demoted. The other connections lead to it as well.
        (&["25006"], row(Unavailable, AllClosed, false)),
        // invalid_sql_statement_name, duplicate_prepared_statement, invalid_binary_representation (of a parameter of another
        // statement): there is a pooler that `database.pooler` does not declare.
        (
            &["26000", "42P05", "22P03"],
            row(Unavailable, Closed, false),
        ),
        // Insufficient resources, operator intervention, system error; object_not_in_prerequisite_state: the database is
        // configured to accept no connections.
        (
            &["53", "57", "58", "55000"],
            row(Unavailable, Reusable, false),
        ),
        // query_canceled: statement_timeout.
        (&["57014"], row(StatementTimedOut, Reusable, false)),
        // lock_not_available: lock_timeout.
        (&["55P03"], row(Locked, Reusable, false)),
        // serialization_failure, deadlock_detected.
        (&["40001", "40P01"], row(Contended, Reusable, false)),
    ]
};

impl Consequences {
    const OF_A_STATEMENT: Self = Self {
        class: Class::Query,
        connections: Connections::Reusable,
        is_server_in_doubt: false,
    };

    pub fn of(error: &sqlx::Error) -> Self {
        let unavailable = |connections, is_server_in_doubt| Self {
            class: Class::Unavailable,
            connections,
            is_server_in_doubt,
        };
        match error {
            sqlx::Error::Database(_) => Self::of_sqlstate(sqlstate(error)),
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::WorkerCrashed => unavailable(Connections::Closed, true),
            sqlx::Error::PoolTimedOut => unavailable(Connections::Reusable, true),
            sqlx::Error::PoolClosed => unavailable(Connections::Reusable, false),
            _ => Self::OF_A_STATEMENT,
        }
    }

    fn of_sqlstate(code: &str) -> Self {
        let rows = BY_SQLSTATE.iter();
        let codes = rows.flat_map(|(codes, row)| codes.iter().map(move |begin| (begin, row)));
        codes
            .filter(|(begin, _)| code.starts_with(**begin))
            .max_by_key(|(begin, _)| begin.len())
            .map_or(Self::OF_A_STATEMENT, |(_, row)| *row)
    }
}

/// Returns the SQLSTATE, or an empty string if PostgreSQL did not report the error.
fn sqlstate(error: &sqlx::Error) -> &str {
    error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<PgDatabaseError>())
        .map_or("", PgDatabaseError::code)
}

/// Returns true if PostgreSQL refuses the role, its password or the database.
fn is_refused(error: &sqlx::Error) -> bool {
    let code = sqlstate(error);
    code.starts_with("28") || code.starts_with("3D")
}

/// Returns true if PostgreSQL has no room for another connection (`too_many_connections`).
pub(super) fn is_full(error: &sqlx::Error) -> bool {
    sqlstate(error) == "53300"
}

/// Returns true if the server is not the one that the statement was prepared on.
pub(super) fn is_prepared_statement_mismatch(error: &sqlx::Error) -> bool {
    matches!(sqlstate(error), "26000" | "42P05" | "22P03")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_of_sqlstate_has_its_consequences() {
        use self::{
            Class::{Contended, Locked, Query, StatementTimedOut, Unavailable},
            Connections::{AllClosed, Closed, Reusable},
        };
        let of = |code: &str| {
            let row = Consequences::of_sqlstate(code);
            (row.class, row.connections, row.is_server_in_doubt)
        };
        for (codes, expected) in [
            (
                &[
                    "08000", "08006", "08P01", "57P01", "57P02", "57P03", "57P05",
                ][..],
                (Unavailable, Closed, true),
            ),
            (&["28000", "28P01", "3D000"], (Unavailable, AllClosed, true)),
            (&["25006"], (Unavailable, AllClosed, false)),
            (&["26000", "42P05", "22P03"], (Unavailable, Closed, false)),
            (
                &[
                    "53000", "53100", "53200", "53300", "55000", "57000", "58000", "58030",
                ],
                (Unavailable, Reusable, false),
            ),
            (&["57014"], (StatementTimedOut, Reusable, false)),
            (&["55P03"], (Locked, Reusable, false)),
            (&["40001", "40P01"], (Contended, Reusable, false)),
        ] {
            for code in codes {
                assert_eq!(of(code), expected, "{code}");
            }
        }
        // All other classes of appendix A.
        for class in [
            "00", "01", "02", "03", "09", "0A", "0B", "0F", "0L", "0P", "0Z", "20", "21", "22",
            "23", "24", "25", "26", "27", "2B", "2D", "2F", "34", "38", "39", "3B", "3F", "40",
            "42", "44", "54", "55", "72", "F0", "HV", "P0", "XX",
        ] {
            let code = format!("{class}999");
            assert_eq!(of(&code), (Query, Reusable, false), "{code}");
        }
        let refused = sqlx::Error::PoolTimedOut;
        assert_eq!(Consequences::of(&refused).class, Unavailable);
    }
}
