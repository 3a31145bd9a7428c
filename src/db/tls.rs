//! Checks the protection of connections to PostgreSQL.

use sqlx::postgres::PgSslMode;

use super::connect::ConnectOptions;
use crate::domain::address::is_loopback;

/// Returns the `sslmode` of connections to another host if it is weaker than `verify-full`: then an attacker in the network
/// can pretend to be PostgreSQL.
pub fn weak_mode(options: &ConnectOptions) -> Option<&'static str> {
    let mode = match options.get_ssl_mode() {
        PgSslMode::Disable => "disable",
        PgSslMode::Allow => "allow",
        PgSslMode::Prefer => "prefer",
        PgSslMode::Require => "require",
        PgSslMode::VerifyCa => "verify-ca",
        PgSslMode::VerifyFull => return None,
    };
    let host = options.get_host();
    let is_local = options.get_socket().is_some() || host.starts_with('/') || is_loopback(host);
    (!is_local).then_some(mode)
}
