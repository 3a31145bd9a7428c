//! Reads the version of PostgreSQL.

use std::fmt;

use super::{connect::Connection, deadline::with_timeout, error::Error};

/// Returns the version of PostgreSQL.
pub async fn find(connection: &mut Connection) -> Result<ServerVersion, Error> {
    let query = sqlx::query_scalar("select current_setting('server_version_num')::int");
    with_timeout(query.fetch_one(connection))
        .await
        .map(ServerVersion)
}

/// Version of PostgreSQL, such as 150018 for 15.18.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion(i32);

impl ServerVersion {
    /// Oldest supported version.
    pub const OLDEST_SUPPORTED: Self = Self(130_000);
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 10_000, self.0 % 10_000)
    }
}
