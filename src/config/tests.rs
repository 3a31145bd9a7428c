//! Tests of the layers and of error messages.

use std::{error::Error as _, io::Write};

use super::*;
use crate::domain::plan::Plan;

fn with(variables: &[(&str, &str)]) -> Result<Config, Error> {
    Config::from_layers(None, variables.iter().map(|(k, v)| (k.into(), v.into())))
}

#[test]
fn the_defaults_stand() {
    let config = Config::defaults().expect("config/default.toml is valid");
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.operations.listen.to_string(), "127.0.0.1:9090");
    assert_eq!(config.server.max_header_size.0, 16 * 1024);
    assert_eq!(config.plans.limits(Plan::Free).per_minute, Some(60));
    assert_eq!(config.plans.limits(Plan::Pro).per_day, Some(50_000));
    assert_eq!(config.plans.limits(Plan::Enterprise).per_minute, None);
    assert!(config.database.url.is_none());
}

#[test]
fn the_environment_is_over_the_file_and_the_file_over_the_defaults() {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(b"[server]\nlisten = \"127.0.0.1:1\"\n[operations]\nlisten = \"127.0.0.1:2\"\n")
        .expect("write");
    let config = Config::from_layers(
        Some(file.path()),
        [
            ("PET_INVENTORY__SERVER__LISTEN".into(), "127.0.0.1:3".into()),
            (
                "PET_INVENTORY__PLANS__FREE__PER_MINUTE".into(),
                "unlimited".into(),
            ),
            (
                "PET_INVENTORY__AUTH__ANONYMOUS_SCOPES".into(),
                "read:pets,read:orders".into(),
            ),
            ("DATABASE_URL".into(), "postgres://secret@host/db".into()),
        ],
    )
    .expect("valid");
    assert_eq!(config.server.listen.port(), 3);
    assert_eq!(config.operations.listen.port(), 2);
    assert_eq!(config.plans.free.per_minute, None);
    assert!(config.auth.anonymous_scopes.contains(Scope::ReadPets));
    assert!(config.database.url.is_some());
    assert!(
        !format!("{config:?}").contains("secret@"),
        "a secret can be printed"
    );
}

#[test]
fn standard_variables_say_where_traces_go() {
    let config = with(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"),
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "authorization=Bearer%20hunter2, x-a=b",
        ),
        ("OTEL_SERVICE_NAME", "pets"),
        ("PET_INVENTORY__TELEMETRY__OTLP_SAMPLING", "0.25"),
    ]);
    let telemetry = config.expect("valid").telemetry;
    assert_eq!(telemetry.service_name, "pets");
    assert!((telemetry.otlp_sampling - 0.25).abs() < f64::EPSILON);
    let endpoint = telemetry.otlp_endpoint.as_ref().expect("an endpoint");
    assert_eq!(endpoint.as_str(), "http://collector:4318/");
    let headers = telemetry.otlp_headers.as_ref().expect("headers");
    let values: Vec<_> = headers.iter().map(|(_, value)| value).collect();
    assert_eq!(values, ["Bearer hunter2", "b"]);
    assert!(!format!("{telemetry:?} {values:?}").contains("hunter2"));
}

#[test]
fn errors_name_the_key() {
    for (name, value, key) in [
        ("PET_INVENTORY__SERVER__LISTNE", "127.0.0.1:1", "listne"),
        ("PET_INVENTORY__SERVER__LISTEN", "nowhere", "server.listen"),
        (
            "PET_INVENTORY__SERVER__REQUEST_TIMEOUT",
            "soon",
            "server.request_timeout",
        ),
        (
            "PET_INVENTORY__SERVER__REQUEST_TIMEOUT",
            "0s",
            "server.request_timeout",
        ),
        (
            "PET_INVENTORY__DATABASE__MAX_CONNECTIONS",
            "many",
            "database.max_connections",
        ),
        (
            "PET_INVENTORY__PLANS__FREE__PER_DAY",
            "0",
            "plans.free.per_day",
        ),
        (
            "PET_INVENTORY__AUTH__ANONYMOUS_SCOPES",
            "root",
            "auth.anonymous_scopes",
        ),
        (
            "PET_INVENTORY__AUTH__ANONYMOUS_SCOPES",
            "admin",
            "auth.anonymous_scopes",
        ),
        (
            "PET_INVENTORY__SERVER__PUBLIC_URL",
            "ftp://x",
            "server.public_url",
        ),
        (
            "PET_INVENTORY__IMAGES__URL",
            "https://example.com/images",
            "images.url",
        ),
        (
            "PET_INVENTORY__IMAGES__URL",
            "file://relative",
            "images.url",
        ),
        ("PET_INVENTORY__IMAGES__URL", "s3://", "images.url"),
        ("PET_INVENTORY__IMAGES__MAX_SIZE", "0", "images.max_size"),
        (
            "PET_INVENTORY__TELEMETRY__OTLP_ENDPOINT",
            "http://user:hunter2@collector",
            "telemetry.otlp_endpoint",
        ),
        (
            "PET_INVENTORY__TELEMETRY__OTLP_HEADERS",
            "hunter2",
            "telemetry.otlp_headers",
        ),
        (
            "PET_INVENTORY__TELEMETRY__OTLP_SAMPLING",
            "1.1",
            "telemetry.otlp_sampling",
        ),
        ("PET_INVENTORY__NOSUCH__KEY", "1", "nosuch"),
    ] {
        let error = with(&[(name, value)]).expect_err(name);
        let text = format!("{error} {:?}", error.source().map(ToString::to_string));
        assert!(text.contains(key), "{name}={value}: {text}");
        assert!(!text.contains("hunter2"), "{name}: {text}");
    }
}

#[test]
fn errors_name_the_file() {
    for (text, key) in [
        ("[server]\nlisten = 5", "server.listen"),
        ("[server]\nlistne = \"127.0.0.1:1\"", "listne"),
        (
            "[server]\nrequest_timeout = \"0s\"",
            "server.request_timeout",
        ),
        ("[plans.free]\nper_day = 0", "plans.free.per_day"),
        (
            "[database]\nmax_connections = \"many\"",
            "database.max_connections",
        ),
    ] {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(text.as_bytes()).expect("write");
        let error = Config::from_layers(Some(file.path()), []).expect_err(text);
        let name = file.path().file_name().and_then(|name| name.to_str());
        let message = error.to_string();
        assert!(
            message.contains(key) && message.contains(name.expect("a name")),
            "{text}: {message}"
        );
    }
}
