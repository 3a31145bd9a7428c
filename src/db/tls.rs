//! Checks the protection of connections to PostgreSQL.

use std::net::IpAddr;

use sqlx::postgres::PgSslMode;

use super::connect::ConnectOptions;

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
    let host = options.get_host().trim_matches(['[', ']']);
    let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
    let is_local = options.get_socket().is_some()
        || host.starts_with('/')
        || host == "localhost"
        || host.parse().is_ok_and(is_loopback);
    (!is_local).then_some(mode)
}
