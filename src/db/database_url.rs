//! Reads the URL of a database as libpq does (PostgreSQL documentation, section 34.1.1.2), in place of sqlx: that ignores the scheme,
//! does not know all forms, and logs parameters with their values.
//!
//! Invariant: errors and warnings contain no part of a password and no value of a parameter, except the names of missing files. A
//! password with a delimiter that is not encoded may be anywhere in the URL.

use std::{borrow::Cow, collections::BTreeMap, fs::File, net::IpAddr, str::FromStr as _};

use percent_encoding::percent_decode_str;
use secrecy::{ExposeSecret, SecretString};
use sqlx::postgres::PgConnectOptions;
use url::form_urlencoded;

use super::error::Error;

/// Parameters of libpq that the service uses.
const USED: [&str; 11] = [
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "user",
];

/// Other parameters of libpq, up to version 18.
const UNUSED: &str = "\
    application_name authtype channel_binding client_encoding connect_timeout fallback_application_name gssdelegation gssencmode \
    gsslib keepalives keepalives_count keepalives_idle keepalives_interval krbsrvname load_balance_hosts max_protocol_version \
    min_protocol_version oauth_client_id oauth_client_secret oauth_issuer oauth_scope passfile replication require_auth \
    requirepeer requiressl scram_client_key scram_server_key service servicefile ssl_max_protocol_version \
    ssl_min_protocol_version sslcertmode sslcompression sslcrl sslcrldir sslkeylogfile sslnegotiation sslpassword sslsni \
    target_session_attrs tcp_user_timeout tty";

/// Values of `sslmode`.
const MODES: [&str; 6] = [
    "disable",
    "allow",
    "prefer",
    "require",
    "verify-ca",
    "verify-full",
];

/// Why a URL is refused, in words that follow its name.
type Reason = Cow<'static, str>;

/// Options of connections, and what of the URL they leave out.
#[derive(Debug, Clone)]
pub struct DatabaseUrl {
    /// Options of connections.
    pub options: PgConnectOptions,
    /// Sentences about parameters that have no effect.
    pub warnings: Vec<String>,
}

/// Parts of a URL, decoded, by the names of their parameters. A parameter of the query replaces the same part before it.
type Parts = BTreeMap<&'static str, String>;

impl DatabaseUrl {
    /// Reads a `postgres://` URL, with a password in place of its own if there is one. The error names what to change.
    pub fn parse(url: &SecretString, password: Option<&SecretString>) -> Result<Self, Error> {
        read(url, password).map_err(Error::Url)
    }
}

fn read(url: &SecretString, password: Option<&SecretString>) -> Result<DatabaseUrl, Reason> {
    let (mut parts, mut unused) = split(url.expose_secret())?;
    if let Some(password) = password {
        parts.insert("password", password.expose_secret().to_owned());
    }
    check_address(&mut parts, &mut unused)?;
    let missing_certificate = check_tls(&mut parts)?;
    let warnings = (unused.into_iter())
        .map(|name| {
            format!("the parameter {name} of database.url (DATABASE_URL) has no effect; remove it")
        })
        .chain(missing_certificate)
        .collect();
    let query = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(&parts)
        .finish();
    // It has only parameters that sqlx knows, so that nothing is logged. sqlx takes the rest from `PG…` variables and `.pgpass`.
    let options = PgConnectOptions::from_str(&format!("postgres://?{query}"));
    // The error may contain a value.
    let options = options.map_err(|_| "is not usable")?;
    Ok(DatabaseUrl { options, warnings })
}

/// Splits a URL into its parts, and the names of parameters of libpq that are not used.
fn split(url: &str) -> Result<(Parts, Vec<&'static str>), Reason> {
    let rest = ["postgres://", "postgresql://"]
        .iter()
        .find_map(|scheme| url.strip_prefix(scheme));
    let rest = rest.ok_or("must begin with postgres:// or postgresql://")?;
    let mut parts = Parts::new();
    // Delimiters of the query are allowed in a user and a password.
    let end = rest.find(['@', '/']).unwrap_or(rest.len());
    let (credentials, rest) = match rest[end..].strip_prefix('@') {
        Some(after) => (&rest[..end], after),
        None => ("", rest),
    };
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    let (before_query, query) = rest.split_once('?').unwrap_or((rest, ""));
    if before_query.contains('@') {
        return Err(
            "has an @ or / in the user or the password; write @ as %40, / as %2F and % as %25"
                .into(),
        );
    }
    let (authority, database) = before_query.split_once('/').unwrap_or((before_query, ""));
    let (host, port) = split_authority(authority)?;
    for (name, text) in [
        ("user", user),
        ("password", password),
        ("host", host),
        ("port", port),
        ("dbname", database),
    ] {
        if !text.is_empty() {
            parts.insert(name, decode(text)?);
        }
    }
    let mut unused = Vec::new();
    for parameter in query.split('&').filter(|it| !it.is_empty()) {
        let (name, value) = parameter.split_once('=').filter(|(_, value)| !value.contains('=')).ok_or(
            "has a parameter that is not NAME=VALUE; write = in a value as %3D, ? and & in the password as %3F and %26",
        )?;
        let (name, value) = (decode(name)?, decode(value)?);
        // As of JDBC, which libpq accepts.
        let (name, value) = match (name.as_str(), value.as_str()) {
            ("ssl", "true") => ("sslmode", "require"),
            pair => pair,
        };
        if let Some(name) = USED.iter().find(|it| **it == name) {
            parts.insert(name, value.to_owned());
        } else if let Some(name) = UNUSED.split(' ').find(|it| *it == name) {
            unused.push(name);
        } else if query.contains('@') {
            return Err(
                "has an unknown parameter, or a password in which /, ? or @ is not encoded".into(),
            );
        } else {
            return Err(format!(
                "has the parameter {name}, which PostgreSQL's clients do not have"
            )
            .into());
        }
    }
    Ok((parts, unused))
}

/// Splits a host, which may be an IPv6 address in brackets, and a port.
fn split_authority(authority: &str) -> Result<(&str, &str), Reason> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or("has a [ without a ]")?;
            if address.is_empty() || !(port.is_empty() || port.starts_with([':', ','])) {
                return Err("has an invalid address in brackets".into());
            }
            (address, port)
        }
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    Ok((host, port.strip_prefix(':').unwrap_or(port)))
}

/// Decodes percent-encoding. Unlike in HTML forms, `+` is a plus sign.
fn decode(text: &str) -> Result<String, Reason> {
    let mut hex = text.split('%').skip(1).map(|it| it.as_bytes().get(..2));
    let is_encoded = |digits: Option<&[u8]>| {
        digits.is_some_and(|it| it.iter().all(u8::is_ascii_hexdigit) && it != b"00")
    };
    let decoded = percent_decode_str(text).decode_utf8();
    match decoded {
        Ok(decoded) if hex.all(is_encoded) => Ok(decoded.into_owned()),
        _ => Err("has an invalid percent-encoding; write % as %25".into()),
    }
}

/// Checks host and port.
fn check_address(
    parts: &mut Parts,
    unused_parameters: &mut Vec<&'static str>,
) -> Result<(), Reason> {
    parts
        .retain(|name, value| !(matches!(*name, "host" | "hostaddr" | "port") && value.is_empty()));
    let has_comma = |name| parts.get(name).is_some_and(|value| value.contains(','));
    if ["host", "hostaddr", "port"].into_iter().any(has_comma) {
        return Err(
            "has several hosts; name one that leads to the primary, such as that of a proxy".into(),
        );
    }
    if (parts.get("port")).is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port > 0)) {
        return Err(
            "has an invalid port; write : / ? and @ in the password as %3A, %2F, %3F and %40"
                .into(),
        );
    }
    if let Some(address) = parts.get("hostaddr") {
        if address.parse::<IpAddr>().is_err() {
            return Err("has a hostaddr that is not an IP address".into());
        }
        // sqlx knows one of both, and verifies a certificate with the name.
        let unused = match parts.get("sslmode").map(String::as_str) {
            Some("verify-full") if parts.contains_key("host") => "hostaddr",
            _ => "host",
        };
        if parts.remove(unused).is_some() && unused == "hostaddr" {
            unused_parameters.push(unused);
        }
    }
    Ok(())
}

/// Checks the mode and the files of TLS, and does with missing files what libpq does. Returns a warning of a missing certificate.
fn check_tls(parts: &mut Parts) -> Result<Option<String>, Reason> {
    let is_system = parts.get("sslrootcert").is_some_and(|it| it == "system");
    if is_system {
        // Without a file, sqlx trusts public certificate authorities.
        parts.remove("sslrootcert");
        parts
            .entry("sslmode")
            .or_insert_with(|| "verify-full".to_owned());
    }
    let mode = parts
        .get("sslmode")
        .map_or("prefer", String::as_str)
        .to_owned();
    if !MODES.contains(&mode.as_str()) {
        return Err(format!("has an invalid sslmode; it is one of {}", MODES.join(", ")).into());
    }
    if is_system && mode != "verify-full" {
        return Err("has sslrootcert=system, which needs sslmode=verify-full".into());
    }
    if matches!(mode.as_str(), "disable" | "allow") {
        return Ok(None);
    }
    let error = |name: &str| {
        let path = parts.get(name)?;
        let error = File::open(path).err()?;
        Some(format!(
            "names a file in {name} that cannot be read, {path}: {error}"
        ))
    };
    let (root, certificate, key) = (error("sslrootcert"), error("sslcert"), error("sslkey"));
    match root {
        Some(reason) if mode.starts_with("verify") => return Err(reason.into()),
        Some(_) => drop(parts.remove("sslrootcert")),
        None if mode == "require" && parts.contains_key("sslrootcert") => {
            parts.insert("sslmode", "verify-ca".to_owned());
        }
        None => {}
    }
    if certificate.is_some() {
        parts.remove("sslcert");
        parts.remove("sslkey");
    } else if let Some(reason) = key {
        return Err(reason.into());
    }
    Ok(certificate.map(|reason| {
        format!("database.url (DATABASE_URL) {reason}; connecting without a client certificate")
    }))
}
