//! Configuration: its layers, issuers, and errors that name the key and its origin.

use std::{error::Error as _, io::Write as _, time::Duration};

use pet_inventory::{
    config::{Algorithm, CommandLine, Config, Error, Issuer, Sampler},
    domain::{caller::Scope, plan::Plan},
};
use secrecy::{ExposeSecret as _, SecretString};

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

/// Loads a file, and variables by their keys, which may also be the names of established variables.
fn load(file: &str, variables: &[(&str, &str)]) -> Result<Config, Error> {
    load_with(file, variables, CommandLine::default())
}

/// Loads the same below options.
fn load_with(
    file: &str,
    variables: &[(&str, &str)],
    options: CommandLine,
) -> Result<Config, Error> {
    let mut layer = tempfile::NamedTempFile::with_suffix(".test").expect("a temporary file");
    layer.write_all(file.as_bytes()).expect("write");
    let variables = variables.iter().map(|(key, value)| {
        let variable = format!("PET_INVENTORY__{}", key.replace('.', "__").to_uppercase());
        let is_key = key.contains('.');
        let name = if is_key { variable.as_str() } else { key };
        (name.into(), value.into())
    });
    let file = Some(layer.path().to_owned());
    Config::from_layers(&CommandLine { file, ..options }, variables)
}

#[test]
fn the_environment_is_over_the_file_and_the_file_over_the_defaults() {
    let file = "[server]\nlisten = '127.0.0.1:1'\n[operations]\nlisten = '127.0.0.1:2'\n";
    let variables = [
        ("server.listen", "127.0.0.1:3"),
        ("plans.free.per_minute", "unlimited"),
        ("auth.anonymous_scopes", "read:pets,read:orders"),
        ("DATABASE_URL", "postgres://secret@host/db"),
    ];
    let config = load(file, &variables).expect("valid");
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:3");
    assert_eq!(config.operations.listen.to_string(), "127.0.0.1:2");
    assert_eq!(config.plans.free.per_minute, None);
    assert!(config.auth.anonymous_scopes.contains(Scope::ReadPets));
    for list in [
        "read:pets read:orders",
        r#"["read:pets", "read:orders"]"#,
        "['read:pets','read:orders']",
    ] {
        let listed = load("", &[("auth.anonymous_scopes", list)]).expect("valid");
        assert_eq!(
            listed.auth.anonymous_scopes, config.auth.anonymous_scopes,
            "{list}"
        );
    }
    assert!(config.database.url.is_some());
    let printed = format!("{config:?}");
    assert!(!printed.contains("secret@"), "a secret can be printed");
}

#[test]
fn standard_variables_say_where_traces_go() {
    let headers = "authorization=Bearer%20hunter2, x-a=b";
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318"),
        ("OTEL_EXPORTER_OTLP_HEADERS", headers),
        ("OTEL_SERVICE_NAME", "pets"),
        ("telemetry.otlp_sampling", "0.25"),
    ];
    let telemetry = load("", &variables).expect("valid").telemetry;
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
fn variables_of_opentelemetry_set_their_keys() {
    let variables = [
        ("OTEL_SDK_DISABLED", "true"),
        (
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "http://collector:1/spans",
        ),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "7000"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "250"),
        ("OTEL_TRACES_SAMPLER", "traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "0.5"),
        ("OTEL_BSP_SCHEDULE_DELAY", "40"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "100"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=b"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "c=d,e=f"),
        ("RUST_LOG", "debug"),
    ];
    let telemetry = load("", &variables).expect("valid").telemetry;
    assert!(telemetry.otlp_disabled);
    let endpoint = telemetry.otlp_traces_endpoint.as_ref();
    assert_eq!(
        endpoint.expect("an endpoint").as_str(),
        "http://collector:1/spans"
    );
    assert_eq!(telemetry.otlp_timeout, Duration::from_millis(250));
    assert_eq!(telemetry.otlp_sampler, Sampler::TraceIdRatio);
    assert!((telemetry.otlp_sampling - 0.5).abs() < f64::EPSILON);
    assert_eq!(telemetry.otlp_delay, Duration::from_millis(40));
    assert_eq!(telemetry.otlp_max_queue.get(), 100);
    assert_eq!(telemetry.otlp_max_batch.get(), 10);
    assert_eq!(telemetry.otlp_headers.expect("headers").iter().count(), 1);
    assert_eq!(telemetry.log, "debug");
    let own = [("RUST_LOG", "debug"), ("telemetry.log", "warn")];
    assert_eq!(load("", &own).expect("valid").telemetry.log, "warn");

    let ignored = [
        ("OTEL_PROPAGATORS", "b3"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_METRICS_EXPORTER", "none"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "GZIP"),
        ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "zstd"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=b"),
        ("OTEL_SERVICE_NAME", "pets"),
    ];
    let mut ignored = load("", &ignored).expect("valid").environment.ignored;
    ignored.sort();
    let expected = [
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
        "OTEL_PROPAGATORS",
    ];
    assert_eq!(ignored, expected);
}

#[test]
fn port_replaces_the_port_of_the_api_alone() {
    let listen = |file: &str, variables: &[(&str, &str)]| {
        let config = load(file, variables)?;
        assert_eq!(config.operations.listen.to_string(), "127.0.0.1:9090");
        Ok::<_, Error>(config.server.listen.to_string())
    };
    let file = "[server]\nlisten = '0.0.0.0:80'";
    let port = ("PORT", "8123");
    for (file, variables, expected) in [
        ("", &[port][..], "127.0.0.1:8123"),
        (file, &[port], "0.0.0.0:8123"),
        (file, &[port, ("server.listen", "[::1]:80")], "[::1]:8123"),
        (file, &[("PORT", "")], "0.0.0.0:80"),
    ] {
        let listen = listen(file, variables).expect("valid");
        assert_eq!(listen, expected, "{file} {variables:?}");
    }
    for (variables, words) in [
        ([("PORT", "http"), ("server.listen", "127.0.0.1:1")], "PORT"),
        (
            [("PORT", "65536"), ("server.listen", "127.0.0.1:1")],
            "PORT",
        ),
        ([port, ("server.listen", "unix:/a")], "Unix socket"),
        ([port, ("server.listen", "nowhere")], "127.0.0.1:8080"),
    ] {
        let error = listen("", &variables).expect_err(words).to_string();
        assert!(error.contains("server.listen"), "{error}");
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn options_are_over_variables_and_are_no_variables() {
    let options = |url: &str| CommandLine {
        listen: "127.0.0.2:5".parse().ok(),
        database_url: Some(url.into()),
        ..CommandLine::default()
    };
    let variables = [
        ("PORT", "8123"),
        ("server.listen", "127.0.0.1:3"),
        ("DATABASE_URL", "postgres://variable"),
    ];
    let file = "[server]\nlisten = '0.0.0.0:80'";
    let config = load_with(file, &variables, options("postgres://option")).expect("valid");
    assert_eq!(config.server.listen.to_string(), "127.0.0.2:5");
    let url = config.database.url.expect("a URL");
    assert_eq!(url.expose_secret(), "postgres://option");
    let error = load_with(file, &variables, options("")).expect_err("empty");
    let error = error.to_string();
    assert!(
        error.contains("database.url") && error.contains("--database-url"),
        "{error}"
    );

    let named = [
        ("--listen", "127.0.0.2:5"),
        ("--database-url", "postgres://a"),
    ];
    let config = load("", &named).expect("valid");
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:8080");
    assert!(config.database.url.is_none());
}

#[test]
fn sockets_of_a_service_manager_are_those_for_this_process() {
    let own = std::process::id().to_string();
    let sockets = |pid: &str, count: &str, names: &str| {
        let variables = [
            ("LISTEN_PID", pid),
            ("LISTEN_FDS", count),
            ("LISTEN_FDNAMES", names),
        ];
        load("", &variables).expect("valid").environment.sockets
    };
    assert_eq!(sockets(&own, "2", "api:operations"), ["api", "operations"]);
    assert_eq!(sockets(&own, "1", "api:more"), ["api"]);
    assert_eq!(sockets(&own, "2", ""), ["", ""]);
    for (pid, count) in [
        ("", "1"),
        ("1", "1"),
        (&*own, ""),
        (&*own, "-1"),
        (&*own, "0"),
    ] {
        assert!(sockets(pid, count, "api").is_empty(), "{pid} {count}");
    }
}

/// As Docker Compose writes variables that are not set.
#[test]
fn empty_variables_are_not_set() {
    let none = CommandLine::default();
    let defaults = Config::settings(&none).expect("valid");
    let names = defaults.iter().map(|setting| {
        let name = setting.key.replace('.', "__").to_uppercase();
        format!("PET_INVENTORY__{name}")
    });
    let others = [
        "PORT",
        "DATABASE_URL",
        "RUST_LOG",
        "BOOTSTRAP_API_KEY",
        "POSTGRES_BIN_DIR",
    ];
    let more = [
        "PET_INVENTORY__SERVER__PUBLIC_URL",
        "PET_INVENTORY__DATABASE__PASSWORD",
        "PET_INVENTORY__NO__SUCH",
        "OTEL_TRACES_SAMPLER",
        "DATABASE_URL_FILE",
    ];
    let names: Vec<_> = names
        .chain(others.into_iter().chain(more).map(str::to_owned))
        .collect();
    assert!(names.len() > 60, "{names:?}");
    let variables: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
    let config = load("", &variables).expect("valid");
    let without = load("", &[]).expect("valid");
    assert_eq!(format!("{config:?}"), format!("{without:?}"));
}

#[test]
fn unknown_values_of_opentelemetry_are_ignored() {
    let variables = [
        ("OTEL_SDK_DISABLED", "perhaps"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
        ("OTEL_TRACES_SAMPLER", "xray"),
        ("OTEL_TRACES_SAMPLER_ARG", "endpoint=http://localhost:2000"),
        ("OTEL_BSP_SCHEDULE_DELAY", "-1"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
    ];
    let config = load("", &variables).expect("valid");
    let defaults = load("", &[]).expect("valid");
    assert_eq!(
        format!("{:?}", config.telemetry),
        format!("{:?}", defaults.telemetry)
    );
    let mut ignored = config.environment.ignored;
    ignored.sort();
    let mut names = variables.map(|(name, _)| name);
    names.sort_unstable();
    assert_eq!(ignored, names);
    // A variable of ours is for this program.
    load("", &[("telemetry.otlp_sampler", "xray")]).expect_err("unknown");
}

#[test]
fn networks_of_proxies_are_compared_as_addresses_are() {
    for (text, network) in [
        ("::ffff:127.0.0.1", "127.0.0.1/32"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("10.1.0.0/16", "10.1.0.0/16"),
        ("2001:db8::/32", "2001:db8::/32"),
        ("::/0", "::/0"),
    ] {
        let config = load("", &[("limits.trusted_proxies", text)]).expect("valid");
        let networks = config
            .limits
            .trusted_proxies
            .iter()
            .map(ToString::to_string);
        assert_eq!(networks.collect::<Vec<_>>(), [network], "{text}");
    }
}

#[test]
fn listeners_can_be_unix_sockets() {
    let variables = [
        ("server.listen", "unix:/run/pets/api.sock"),
        ("operations.listen", "unix:/run/pets/private.sock"),
    ];
    let config = load("", &variables).expect("valid");
    assert_eq!(config.server.listen.to_string(), variables[0].1);
    assert_eq!(config.operations.listen.to_string(), variables[1].1);
    assert!(config.server.listen.tcp().is_none() && !config.server.listen.is_loopback());
}

#[test]
fn errors_name_the_key() {
    let message = |key: &str, value: &str| {
        let error = load("", &[(key, value)]).expect_err(key);
        let text = format!("{error} {:?}", error.source().map(ToString::to_string));
        assert!(!text.contains("hunter2"), "{key}: {text}");
        text
    };
    for (key, value) in [
        ("server.listen", "nowhere"),
        ("server.listen", "unix:"),
        ("operations.listen", "unix:relative.sock"),
        ("server.request_timeout", "soon"),
        ("server.request_timeout", "0s"),
        ("database.max_connections", "many"),
        ("database.pooler", "session"),
        // Without a URL.
        ("database.password", "hunter2"),
        ("plans.free.per_day", "0"),
        ("auth.anonymous_scopes", "root"),
        ("auth.anonymous_plan", "gold"),
        ("auth.anonymous_scopes", "admin"),
        ("server.public_url", "ftp://x"),
        ("server.cors_origins", "shop.example.com"),
        ("server.cors_origins", "https://shop.example.com/pets"),
        ("server.cors_origins", "https://user@shop.example.com"),
        ("server.cors_origins", "*,https://shop.example.com"),
        ("server.cors_origins", "null"),
        ("server.cors_origins", "https://*.example.com"),
        ("images.url", "https://example.com/images"),
        ("images.url", "file://relative"),
        ("images.url", "s3://"),
        ("images.max_size", "0"),
        ("telemetry.otlp_endpoint", "http://user:hunter2@x"),
        ("telemetry.otlp_headers", "hunter2"),
        ("telemetry.otlp_traces_endpoint", "http://user:hunter2@x"),
        ("telemetry.otlp_sampler", "sometimes"),
        ("telemetry.otlp_timeout", "0s"),
        ("telemetry.otlp_delay", "0s"),
        ("changes.retention", "0s"),
        ("webhooks.max_deliveries", "0"),
        ("webhooks.max_deliveries", "9"),
        ("telemetry.otlp_max_queue", "0"),
        ("telemetry.otlp_sampling", "1.1"),
    ] {
        let text = message(key, value);
        assert!(text.contains(key), "{key}={value}: {text}");
    }
    assert!(message("auth.anonymous_scopes", "read:pets;write:pets").contains("by commas"));
    // It was the default, with another meaning.
    assert!(message("webhooks.max_deliveries", "32").contains("to each webhook"));
    assert!(message("server.listne", "127.0.0.1:1").contains("listne"));
    assert!(message("nosuch.key", "1").contains("nosuch"));
}

#[test]
fn errors_name_the_file() {
    for (text, key) in [
        ("[server]\nlisten = 5", "server.listen"),
        ("[server]\nlistne = '127.0.0.1:1'", "listne"),
        ("[server]\nrequest_timeout = '0s'", "server.request_timeout"),
        ("[plans.free]\nper_day = 0", "plans.free.per_day"),
        (
            "[database]\nmax_connections = 'many'",
            "database.max_connections",
        ),
    ] {
        let message = load(text, &[]).expect_err(text).to_string();
        assert!(message.contains(key), "{text}: {message}");
        assert!(message.contains(".test"), "{text}: {message}");
    }
}

fn issuers_in(file: &str) -> Result<Vec<Issuer>, Error> {
    Ok(load(file, &[])?.auth.issuers)
}

/// Loads one issuer, with keys separated by `; `.
fn issuer(keys: &str) -> Result<Vec<Issuer>, Error> {
    let keys = keys.replace("; ", "\n");
    issuers_in(&format!("[[auth.issuers]]\n{keys}"))
}

const SHORTEST: &str = "issuer = 'https://a.example'; audience = 'us'";

#[test]
fn what_is_left_out_has_its_default() {
    let issuers = issuer(SHORTEST).expect("valid");
    let [issuer] = issuers.as_slice() else {
        panic!("{issuers:?}");
    };
    assert_eq!(issuer.algorithms, [Algorithm::Rs256, Algorithm::Es256]);
    assert_eq!(issuer.leeway, Duration::from_secs(30));
    assert_eq!(issuer.scope_claim, "scope");
    assert!(issuer.plan_claim.is_none() && issuer.jwks_url.is_none() && !issuer.allow_admin);
    assert!(Config::defaults().expect("valid").auth.issuers.is_empty());
}

/// The example in `config/default.toml`, without its first `# `.
#[test]
fn the_example_is_valid() {
    let example: Vec<&str> = include_str!("../../config/default.toml")
        .lines()
        .skip_while(|line| *line != "# [[auth.issuers]]")
        .map_while(|line| line.strip_prefix("# "))
        .collect();
    let example = example.join("\n");
    let issuers = issuers_in(&example).unwrap_or_else(|error| panic!("{error}: {example}"));
    assert_eq!(issuers.len(), 1, "{example}");
}

#[test]
fn errors_name_the_key_and_the_issuer() {
    let check = |keys: &str, parts: &[&str]| {
        let message = issuer(keys).expect_err(keys).to_string();
        for part in parts {
            assert!(message.contains(part), "{keys}: {message}");
        }
    };
    for (more, key) in [
        ("jwks_url = 'http://a.example/keys'", "jwks_url"),
        ("jwks_url = 'ftp://127.0.0.1/keys'", "jwks_url"),
        ("jwks_url = 'https://a:b@a.example/keys'", "jwks_url"),
        ("jwks_url = 'keys'", "jwks_url"),
        ("algorithms = ['HS256']", "algorithms"),
        ("algorithms = ['none']", "algorithms"),
        ("algorithms = ['rs256']", "algorithms"),
        ("algorithms = []", "algorithms"),
        ("scope_claim = ''", "scope_claim"),
        ("plan_claim = ''", "plan_claim"),
        ("leeway = '61s'", "leeway"),
        ("audeince = 'us'", "audeince"),
    ] {
        let keys = format!("{SHORTEST}; {more}");
        check(&keys, &[key, "auth.issuers[0]", ".test"]);
    }
    check("issuer = 'http://a.example'; audience = 'us'", &["issuer"]);
    check(
        "issuer = 'https://a.example?x'; audience = 'us'",
        &["issuer"],
    );
    check("issuer = 'https://a.example'; audience = ''", &["audience"]);
    check("issuer = 'https://a.example'", &["audience"]);
    let twice = format!("{SHORTEST}; [[auth.issuers]]; {SHORTEST}");
    check(&twice, &["auth.issuers"]);
}

#[test]
fn http_is_for_this_machine_alone() {
    let read = |host: &str| {
        let url = format!("'http://{host}/keys'");
        issuer(&format!(
            "issuer = {url}; audience = 'us'; jwks_url = {url}"
        ))
    };
    for host in ["localhost:1", "127.0.0.1:1", "127.9.9.9", "[::1]:1"] {
        read(host).unwrap_or_else(|error| panic!("{host}: {error}"));
    }
    for host in "localhost.example 127.0.0.1.example 10.0.0.1 [::2]".split(' ') {
        assert!(read(host).is_err(), "{host}");
    }
}

/// Writes a secret to a file.
fn secret_file(content: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(content.as_bytes()).expect("write");
    file
}

#[test]
fn variables_can_be_in_files() {
    let url = secret_file("postgres://secret@host/db\n");
    let key = secret_file("first key, with spaces \r\n\n");
    let headers = secret_file("authorization=hunter2");
    let path = |file: &tempfile::NamedTempFile| file.path().to_str().expect("text").to_owned();
    let (url, key, headers) = (path(&url), path(&key), path(&headers));
    for variable in ["DATABASE_URL_FILE", "PET_INVENTORY__DATABASE__URL_FILE"] {
        let variables = [
            (variable, url.as_str()),
            ("BOOTSTRAP_API_KEY_FILE", &key),
            ("PET_INVENTORY__TELEMETRY__OTLP_HEADERS_FILE", &headers),
            // Without a name there is no file.
            ("OTEL_SERVICE_NAME_FILE", ""),
            ("PET_INVENTORY__SERVER__LISTEN_FILE", ""),
            // An empty variable is not set.
            ("BOOTSTRAP_API_KEY", ""),
            // Not a variable of this program.
            ("AWS_WEB_IDENTITY_TOKEN_FILE", "/nowhere"),
        ];
        let config = load("", &variables).expect("valid");
        let secret =
            |secret: &Option<SecretString>| secret.as_ref().map(|it| it.expose_secret().to_owned());
        assert_eq!(
            secret(&config.database.url).as_deref(),
            Some("postgres://secret@host/db")
        );
        let key = secret(&config.environment.bootstrap_api_key);
        assert_eq!(key.as_deref(), Some("first key, with spaces "));
        let headers = config.telemetry.otlp_headers.as_ref().expect("headers");
        assert_eq!(headers.iter().count(), 1);
        let aws = &config.environment.aws;
        assert_eq!(aws[0].1.expose_secret(), "/nowhere");
        let printed = format!("{config:?}");
        assert!(!printed.contains("secret@") && !printed.contains("first key"));
    }
}

#[test]
fn errors_name_the_variable_of_the_file_but_no_content() {
    let (good, empty) = (secret_file("hunter2"), secret_file("\n"));
    let not_text = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(not_text.path(), b"hunter2\xff").expect("write");
    let path = |file: &tempfile::NamedTempFile| file.path().to_str().expect("text").to_owned();
    let (good, empty, not_text) = (path(&good), path(&empty), path(&not_text));
    for variable in [
        "DATABASE_URL",
        "BOOTSTRAP_API_KEY",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "PET_INVENTORY__DATABASE__URL",
    ] {
        let named = format!("{variable}_FILE");
        let both = [(named.as_str(), good.as_str()), (variable, "hunter2")];
        let cases: [&[(&str, &str)]; 5] = [
            &[(&named, "/no/such/file")],
            &[(&named, "/")],
            &[(&named, &empty)],
            &[(&named, &not_text)],
            &both,
        ];
        for variables in cases {
            let error = load("", variables).expect_err(&named).to_string();
            assert!(error.contains(&named), "{variables:?}: {error}");
            assert!(!error.contains("hunter2"), "{variables:?}: {error}");
        }
    }
    let unknown = [("PET_INVENTORY__SERVER__LISTNE_FILE", good.as_str())];
    let error = load("", &unknown).expect_err("unknown").to_string();
    assert!(
        error.contains("listne") && !error.contains("hunter2"),
        "{error}"
    );
}
