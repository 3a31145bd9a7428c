//! Tests of `/metrics`: it exposes exactly the metrics in `METRICS`, with the right values.

use pet_inventory::telemetry::{Described, Kind, METRICS};
use test_support::*;

/// Metrics that only a service with token issuers exposes.
const WITH_SETTINGS_ONLY: [&str; 1] = ["jwks_fetches_total"];

/// Parses the line `name{label="value",…} number`. Label values must not contain commas or quotes.
fn sample(line: &str) -> (&str, BTreeMap<&str, &str>, f64) {
    let (series, number) = line.rsplit_once(' ').expect("a number");
    let number = number
        .parse()
        .unwrap_or_else(|error| panic!("{line}: {error}"));
    let Some((name, labels)) = series.split_once('{') else {
        return (series, BTreeMap::new(), number);
    };
    let pairs = labels.trim_end_matches('}').split(',').map(|label| {
        let (label, value) = label.split_once('=').expect("a value");
        (label, value.trim_matches('"'))
    });
    (name, pairs.collect(), number)
}

/// Checks the name, labels and number of a sample line against its description; returns the labels without `le`.
fn labels_of_sample<'a>(line: &'a str, described: &Described) -> Vec<(&'a str, &'a str)> {
    let Described {
        name, kind, labels, ..
    } = described;
    let (of, mut actual, number) = sample(line);
    assert!(number.is_finite(), "{line}");
    let of = match kind {
        Kind::Histogram => {
            actual.remove("le");
            let parts = ["_bucket", "_sum", "_count"];
            parts
                .iter()
                .find_map(|part| of.strip_suffix(part))
                .unwrap_or(of)
        }
        Kind::Counter | Kind::Gauge => of,
    };
    assert_eq!(of, *name, "{line}");
    let expected: BTreeSet<&str> = labels.iter().map(|(label, _)| *label).collect();
    assert_eq!(
        actual.keys().copied().collect::<BTreeSet<_>>(),
        expected,
        "{line}"
    );
    for (label, values) in *labels {
        let value = actual[label];
        assert!(
            values.is_empty() || values.contains(&value),
            "{line}: {label}"
        );
    }
    actual.into_iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_match_their_descriptions() {
    let home = Home::new();
    let service = home.serve().await;
    service.exercise_all_metrics(1, &png(600, 400)).await;
    let url = format!("http://{}/metrics", service.operations);
    let response = client().get(url).is(200).await;
    assert_eq!(
        response.header("content-type"),
        "text/plain; version=0.0.4; charset=utf-8"
    );

    let text = response.text();
    let mut seen: BTreeMap<&str, BTreeSet<Vec<(&str, &str)>>> = BTreeMap::new();
    let mut current: Option<&Described> = None;
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').expect("a description");
            let described = METRICS.iter().find(|it| it.name == name);
            let described = described.unwrap_or_else(|| panic!("{name} is not described"));
            assert_eq!(help, described.help);
            assert!(
                seen.insert(name, BTreeSet::new()).is_none(),
                "{name} comes twice"
            );
            current = Some(described);
            continue;
        }
        let described = current.unwrap_or_else(|| panic!("no # HELP before {line}"));
        let Described { name, kind, .. } = described;
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let kind = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            assert_eq!(declared, format!("{name} {kind}"));
            continue;
        }
        let series = seen.entry(*name).or_default();
        series.insert(labels_of_sample(line, described));
    }
    let missing: Vec<_> = METRICS
        .iter()
        .map(|it| it.name)
        .filter(|name| !WITH_SETTINGS_ONLY.contains(name))
        .filter(|name| seen.get(name).is_none_or(BTreeSet::is_empty))
        .collect();
    assert!(
        missing.is_empty(),
        "described, and not there: {missing:?}\n{text}"
    );
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_what_was_done() {
    let home = Home::new();
    let service = home.serve().await;
    service.exercise_all_metrics(1, &png(600, 400)).await;
    let text = service.metrics().await;
    let value = |series: &str| -> f64 {
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{series} ")));
        sample(line.unwrap_or_else(|| panic!("no {series} in {text}"))).2
    };
    for (series, expected) in [
        ("idempotent_replays_total", 1.0),
        ("logins_total{result=\"ok\"}", 1.0),
        ("images_uploaded_total", 1.0),
        ("images_rendered_total{result=\"ok\"}", 1.0),
        ("images_rendering_seconds_count", 1.0),
        (
            "db_client_operation_batch_size_count{db_query_summary=\"SELECT pets\"}",
            3.0,
        ),
        (
            "db_client_operation_batch_size_sum{db_query_summary=\"INSERT pets\"}",
            1.0,
        ),
        ("db_client_breaker_open", 0.0),
        (
            "db_client_connection_pending_requests{db_client_connection_pool_name=\"requests\"}",
            0.0,
        ),
        ("http_server_active_requests", 0.0),
        ("http_server_active_requests_max", 1024.0),
        ("http_server_shed_requests_total", 0.0),
    ] {
        assert!(
            (value(series) - expected).abs() < f64::EPSILON,
            "{series}: {}",
            value(series)
        );
    }
    for series in [
        "db_client_connections{db_client_connection_pool_name=\"batches\",db_client_connection_state=\"idle\"}",
        "images_uploaded_bytes_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_cpu_seconds_total",
    ] {
        assert!(value(series) > 0.0, "{series}");
    }
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn series_of_deleted_webhooks_are_left_out() {
    let home = Home::new();
    let service = home.serve().await;
    // With a webhook and a receiver that fails.
    service.exercise_all_metrics(1, &png(600, 400)).await;
    let url = format!("http://{}/metrics", service.operations);
    let series = async || {
        let text = client().get(&url).is(200).await.text();
        let of_webhooks = text.lines().filter(|line| line.starts_with("webhooks_"));
        of_webhooks.count()
    };
    eventually(async || series().await >= 4).await;
    let request = |method, path: &str| {
        let path = format!("/admin/webhooks{path}");
        service.request(method, &path, "special-key")
    };
    // Also those of one that is deleted before its gauges are set.
    let webhook = json!({"url": "https://localhost/"});
    request(Method::POST, "").json(&webhook).is(201).await;
    let failed = async || request(Method::GET, "/2/attempts").is(200).await.json() != json!([]);
    eventually(failed).await;
    for webhook in ["/2", "/1"] {
        request(Method::DELETE, webhook).is(200).await;
    }
    eventually(async || series().await == 0).await;
    service.stop().await;
}
