//! Sections of the configuration, one struct each.

#![expect(missing_docs, reason = "config/default.toml describes every key")]

use std::{
    ffi::OsString,
    fmt::Display,
    net::IpAddr,
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use bytesize::ByteSize;
use http::{HeaderName, HeaderValue};
use ipnet::{IpNet, Ipv4Net};
use percent_encoding::percent_decode_str;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, de};
use url::Url;

use super::{
    files::UrlFiles,
    issuers::{self, Issuer},
};
use crate::domain::{
    address::ListenAddress,
    caller::{Scope, Scopes},
    plan::{Plan, PlanLimits},
};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    #[serde(deserialize_with = "parsed")]
    pub listen: ListenAddress,
    pub reuse_port: bool,
    pub public_url: Option<Url>,
    #[serde(deserialize_with = "cors_origins")]
    pub cors_origins: CorsOrigins,
    pub workers: Option<NonZeroUsize>,
    #[serde(with = "humantime_serde")]
    pub header_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub body_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub shutdown_grace: Duration,
    pub max_connections: usize,
    pub max_connections_per_address: usize,
    pub max_requests: usize,
    pub max_response_memory: ByteSize,
    pub max_header_size: ByteSize,
    pub max_body_size: ByteSize,
}

/// Origins of the web pages that may use the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CorsOrigins {
    /// Any origin: `*`.
    Any,
    /// These origins, as browsers write them.
    Listed(Vec<HeaderValue>),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operations {
    #[serde(deserialize_with = "parsed")]
    pub listen: ListenAddress,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Database {
    pub url: Option<SecretString>,
    /// In place of that of the URL.
    pub password: Option<SecretString>,
    pub max_connections: u32,
    #[serde(with = "humantime_serde")]
    pub acquire_timeout: Duration,
    pub pooler: Pooler,
    /// Files of the URL or the password, if variables name some.
    #[serde(skip)]
    pub files: Option<UrlFiles>,
}

/// Connection pooler between this process and PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooler {
    /// No pooler, or one that gives each client a session.
    None,
    /// Pooler that gives each transaction any server connection, such as PgBouncer in transaction mode.
    Transaction,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalPostgres {
    pub directory: PathBuf,
    pub demo_keys: DemoKeys,
}

/// Condition under which the publicly known demo keys are valid, only ever on an embedded PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DemoKeys {
    /// Valid while the API listens on a loopback address.
    Loopback,
    /// Always valid; for containers, where clients cannot reach a loopback address.
    Always,
    /// Never valid.
    Never,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Images {
    pub url: Option<Url>,
    pub max_size: ByteSize,
    pub max_uploads: usize,
    #[serde(with = "humantime_serde")]
    pub upload_timeout: Duration,
    pub rendering_memory: ByteSize,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plans {
    #[serde(with = "PlanSection")]
    pub free: PlanLimits,
    #[serde(with = "PlanSection")]
    pub pro: PlanLimits,
    #[serde(with = "PlanSection")]
    pub enterprise: PlanLimits,
}

impl Plans {
    /// Returns the limits of `plan`.
    pub const fn limits(&self, plan: Plan) -> &PlanLimits {
        match plan {
            Plan::Free => &self.free,
            Plan::Pro => &self.pro,
            Plan::Enterprise => &self.enterprise,
        }
    }
}

/// `[plans.*]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, remote = "PlanLimits")]
struct PlanSection {
    #[serde(deserialize_with = "limit")]
    per_minute: Option<u32>,
    #[serde(deserialize_with = "limit")]
    per_day: Option<u32>,
    #[serde(deserialize_with = "limit")]
    in_flight: Option<u32>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    #[serde(deserialize_with = "networks")]
    pub trusted_proxies: Vec<IpNet>,
    pub failed_authentication_per_minute: NonZeroU32,
    pub idempotency_bytes_per_day: ByteSize,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Auth {
    #[serde(deserialize_with = "scopes")]
    pub anonymous_scopes: Scopes,
    #[serde(deserialize_with = "parsed")]
    pub anonymous_plan: Plan,
    #[serde(with = "humantime_serde")]
    pub access_token_lifetime: Duration,
    #[serde(default, with = "humantime_serde")]
    pub api_key_lifetime: Option<Duration>,
    #[serde(deserialize_with = "issuers::distinct")]
    pub issuers: Vec<Issuer>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changes {
    #[serde(with = "humantime_serde")]
    pub retention: Duration,
    pub max_streams: usize,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhooks {
    pub max_deliveries: usize,
    pub allow_private: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Users {
    pub sign_up: bool,
    #[serde(with = "humantime_serde")]
    pub session_lifetime: Duration,
    pub max_sessions: NonZeroU32,
    pub logins_per_minute: NonZeroU32,
    pub hashes_at_once: Option<NonZeroUsize>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Telemetry {
    pub log: String,
    pub format: LogFormat,
    pub access_details: bool,
    pub otlp_disabled: bool,
    pub otlp_endpoint: Option<Url>,
    pub otlp_traces_endpoint: Option<Url>,
    pub otlp_headers: Option<OtlpHeaders>,
    #[serde(with = "humantime_serde")]
    pub otlp_timeout: Duration,
    pub otlp_sampler: Sampler,
    pub otlp_sampling: f64,
    #[serde(with = "humantime_serde")]
    pub otlp_delay: Duration,
    pub otlp_max_queue: NonZeroUsize,
    pub otlp_max_batch: NonZeroUsize,
    pub service_name: String,
}

/// Choice of the traces that are sent, by its name in `OTEL_TRACES_SAMPLER`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// All traces.
    AlwaysOn,
    /// No trace.
    AlwaysOff,
    /// A share of the traces.
    #[serde(rename = "traceidratio")]
    TraceIdRatio,
    /// As the caller decided; all traces that begin here.
    #[serde(rename = "parentbased_always_on")]
    ParentBasedAlwaysOn,
    /// As the caller decided; no trace that begins here.
    #[serde(rename = "parentbased_always_off")]
    ParentBasedAlwaysOff,
    /// As the caller decided; a share of the traces that begin here.
    #[serde(rename = "parentbased_traceidratio")]
    ParentBasedTraceIdRatio,
}

/// Headers of OTLP requests, in the format of `OTEL_EXPORTER_OTLP_HEADERS`: `name=value,name=value`, with
/// percent-encoded values. Treated as a secret, since most contain a credential.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "SecretString")]
pub struct OtlpHeaders(SecretString);

impl OtlpHeaders {
    /// Iterates over the names and values; values are marked sensitive.
    pub fn iter(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        self.0.expose_secret().split(',').filter_map(header)
    }
}

impl TryFrom<SecretString> for OtlpHeaders {
    type Error = &'static str;

    fn try_from(text: SecretString) -> Result<Self, &'static str> {
        let mut parts = text.expose_secret().split(',');
        if parts.all(|part| part.trim().is_empty() || header(part).is_some()) {
            Ok(Self(text))
        } else {
            // The error must not contain the text, which may be a secret.
            Err("must be name=value, separated by commas")
        }
    }
}

fn header(part: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = part.split_once('=')?;
    let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
    let mut value = HeaderValue::from_str(&value).ok()?;
    value.set_sensitive(true);
    Some((HeaderName::from_str(name.trim()).ok()?, value))
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// `Human` on a terminal, `Json` elsewhere.
    Auto,
    /// Text for people.
    Human,
    /// One JSON object per line.
    Json,
}

/// Settings that only the environment provides, under established names.
#[derive(Debug, Clone, Default)]
pub struct FromEnvironment {
    /// `BOOTSTRAP_API_KEY`: first API key of an empty database.
    pub bootstrap_api_key: Option<SecretString>,
    /// `POSTGRES_BIN_DIR`: directory of `initdb` and `postgres`.
    pub postgres_bin_dir: Option<PathBuf>,
    /// `PATH`: searched for these programs if `POSTGRES_BIN_DIR` is not set.
    pub path: Option<OsString>,
    /// `AWS_*`: credentials, region and endpoint of an `s3://` bucket.
    pub aws: Vec<(String, SecretString)>,
    /// `TMPDIR`: directory for temporary files of uploads to a bucket.
    pub temporary_directory: Option<PathBuf>,
    /// `LISTEN_FDNAMES`: names of the sockets that a service manager has passed to this process, in their order.
    pub sockets: Vec<String>,
    /// Names of the variables of OpenTelemetry that have no effect.
    pub ignored: Vec<String>,
}

/// Deserializes a text.
fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(value: D) -> Result<T, D::Error> {
    String::deserialize(value)?
        .parse()
        .map_err(de::Error::custom)
}

/// Deserializes a number of requests from 1, or "unlimited".
fn limit<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u32>, D::Error> {
    const EXPECTED: &str = "a number of requests from 1, or \"unlimited\"";
    let text = String::deserialize(value)?;
    match text.parse() {
        _ if text == "unlimited" => Ok(None),
        Ok(number @ 1..) => Ok(Some(number)),
        _ => {
            let unexpected = de::Unexpected::Str(&text);
            Err(de::Error::invalid_value(unexpected, &EXPECTED))
        }
    }
}

fn scopes<'de, D: Deserializer<'de>>(value: D) -> Result<Scopes, D::Error> {
    list(value, str::parse::<Scope>)
}

/// Deserializes a list of networks or addresses.
fn networks<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<IpNet>, D::Error> {
    list(value, |text| {
        let address = text.parse::<IpAddr>().map(IpNet::from);
        address.or_else(|_| text.parse()).map(canonical)
    })
}

/// Returns the IPv4 network for one of IPv4-mapped addresses (RFC 4291, section 2.5.5.2), as addresses of clients are compared.
fn canonical(network: IpNet) -> IpNet {
    const MAPPED_PREFIX: u8 = 96;
    let IpNet::V6(mapped) = network else {
        return network;
    };
    let address = mapped.addr().to_ipv4_mapped();
    let length = mapped.prefix_len().checked_sub(MAPPED_PREFIX);
    let network_v4 = address
        .zip(length)
        .map(|(address, length)| Ipv4Net::new(address, length));
    network_v4.and_then(Result::ok).map_or(network, IpNet::V4)
}

/// Deserializes `*`, or a list of origins.
fn cors_origins<'de, D: Deserializer<'de>>(value: D) -> Result<CorsOrigins, D::Error> {
    const EXPECTED: &str = "must be \"*\" alone, or http and https origins such as https://shop.example.com, without a path and without *";
    let names: Vec<String> = list(value, str::parse::<String>)?;
    if names == ["*"] {
        return Ok(CorsOrigins::Any);
    }
    let origins = names.iter().map(|name| {
        let url = Url::parse(name).ok()?;
        // As browsers write it: in lower case, and without the default port.
        let origin = url.origin().ascii_serialization();
        let is_origin = name.trim_end_matches('/').eq_ignore_ascii_case(&origin);
        // Browsers compare whole origins: a pattern would never match.
        let is_origin = is_origin && !name.contains('*');
        HeaderValue::try_from(origin).ok().filter(|_| is_origin)
    });
    let origins: Option<Vec<_>> = origins.collect();
    let origins = origins.ok_or_else(|| de::Error::custom(EXPECTED))?;
    Ok(CorsOrigins::Listed(origins))
}

/// Deserializes a list, or text separated by commas or spaces, also in the brackets and quotes of JSON: environment variables cannot
/// hold lists.
fn list<'de, D: Deserializer<'de>, T, E: Display, C: FromIterator<T>>(
    value: D,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<C, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    let names = match OneOrMany::deserialize(value)? {
        OneOrMany::One(names) => {
            let listed = names.trim().strip_prefix('[');
            let listed = listed.and_then(|it| it.strip_suffix(']'));
            vec![listed.map_or(names.clone(), |it| it.replace(['"', '\''], ""))]
        }
        OneOrMany::Many(names) => names,
    };
    names
        .iter()
        .flat_map(|names| names.split([',', ' ']))
        .filter(|name| !name.is_empty())
        .map(|name| {
            parse(name).map_err(|error| {
                de::Error::custom(format!(
                    "{error}; in the environment, separate the elements of a list by commas"
                ))
            })
        })
        .collect()
}
