//! Facts about the server, for `check`.

use std::fmt;

use sqlx::Row as _;

use super::{connect::Connection, deadline::with_timeout, error::Error};

/// Version of PostgreSQL, such as 150018 for 15.18.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion(pub(super) i32);

impl ServerVersion {
    /// Oldest supported version.
    pub const OLDEST_SUPPORTED: Self = Self(130_000);
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 10_000, self.0 % 10_000)
    }
}

/// Facts that a server reports about itself.
#[derive(Debug)]
pub struct Server {
    /// Version.
    pub version: ServerVersion,
    /// Number of connected standbys, and other programs that receive the write-ahead log.
    pub standbys: i64,
    /// Number of standbys that a commit waits for.
    pub needed_standbys: i64,
    /// Number of standbys that a commit may wait for and that have answered in the last 20 s, by their clock. All that are
    /// connected count if the user may not see more, for which it needs the role `pg_monitor`.
    pub answering_standbys: i64,
    /// Name of its cluster, which Patroni sets; often empty.
    pub cluster: String,
    /// Its own address, unless the connection uses a Unix socket.
    pub address: Option<String>,
    /// Maximum number of connections, without those for superusers.
    pub max_connections: i64,
}

impl Server {
    /// Reads it in one statement. A user without the role `pg_monitor` may do so.
    pub async fn read(connection: &mut Connection) -> Result<Self, Error> {
        let query = sqlx::query(
            "select current_setting('server_version_num')::int as version,
                    (select count(*) from pg_stat_replication) as standbys,
                    case trim(current_setting('synchronous_standby_names')) when '' then 0
                         else coalesce(substring(current_setting('synchronous_standby_names')
                                                 from '(?i)^\\s*(?:any|first)?\\s*(\\d+)\\s*[(]'), '1')::bigint
                    end as needed_standbys,
                    (select count(*) from pg_stat_replication
                     where coalesce(state = 'streaming' and sync_state in ('sync', 'quorum')
                                    and reply_time > clock_timestamp() - interval '20 s', true)) as answering_standbys,
                    current_setting('cluster_name') as cluster,
                    host(inet_server_addr()) as address,
                    current_setting('max_connections')::bigint
                        - current_setting('superuser_reserved_connections')::bigint
                        - coalesce(current_setting('reserved_connections', true)::bigint, 0) as max_connections",
        );
        let row = with_timeout(query.fetch_one(connection)).await?;
        Ok(Self {
            version: ServerVersion(row.try_get("version")?),
            standbys: row.try_get("standbys")?,
            needed_standbys: row.try_get("needed_standbys")?,
            answering_standbys: row.try_get("answering_standbys")?,
            cluster: row.try_get("cluster")?,
            address: row.try_get("address")?,
            max_connections: row.try_get("max_connections")?,
        })
    }
}
