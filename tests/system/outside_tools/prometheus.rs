//! Prometheus and promtool read the metrics, the dashboard's queries and the alerts.

use std::net::TcpListener;

use test_support::*;
use tokio::process::{Child, Command};

const MISSING: &str = "Prometheus is missing: run .ci/setup --all";
/// Panels without data unless requests fail or issuers are configured.
const EMPTY: [&str; 2] = ["5xx responses by operation", "Fetches of issuers' keys"];
pub const ALERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/alerts.yaml");
const DASHBOARD: &str = include_str!("../../../config/grafana-dashboard.json");

/// Runs promtool, which must succeed; returns its output.
async fn promtool(arguments: &[&str], input: &str) -> String {
    let mut command = Command::new("promtool");
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect(MISSING);
    let mut stdin = child.stdin.take().expect("piped");
    let bytes = input.as_bytes();
    // promtool may end without reading its input.
    let _ = stdin.write_all(bytes).await;
    drop(stdin);
    let output = child.wait_with_output().await.expect("its end");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{arguments:?}: {text}");
    text
}

/// A Prometheus that scrapes services every second, killed when dropped.
pub struct Prometheus {
    _running: Child,
    targets: PathBuf,
    url: String,
    client: Client,
}

impl Prometheus {
    pub fn start(home: &Home) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("its address");
        drop(free);
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
             rule_files: ['{ALERTS}']\n\
             scrape_configs:\n\
             - {{job_name: pet-inventory, file_sd_configs: [{{files: [targets.json]}}]}}\n"
        );
        let file = home.path().join("prometheus.yaml");
        fs::write(&file, config).expect("its settings");
        let log = fs::File::create(home.path().join("prometheus.log")).expect("a log");
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                home.path().join("prometheus").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stderr(log)
            .kill_on_drop(true);
        Self {
            _running: command.spawn().expect(MISSING),
            targets: home.path().join("targets.json"),
            url: format!("http://{address}/api/v1"),
            client: client(),
        }
    }

    /// Replaces the services that are scraped.
    pub fn scrape(&self, operations: &[SocketAddr]) {
        let targets = json!([{"targets": operations}]).to_string();
        let new = self.targets.with_extension("new");
        fs::write(&new, targets).expect("a file");
        fs::rename(new, &self.targets).expect("its name");
    }

    async fn get(&self, path: &str, query: &[(&str, &str)]) -> Option<Value> {
        let request = self.client.get(format!("{}{path}", self.url)).query(query);
        let response: Value = request.send().await.ok()?.json().await.ok()?;
        assert_eq!(response["status"], "success", "{query:?}: {response}");
        Some(response["data"].clone())
    }

    /// Returns the current values of an expression.
    pub async fn values(&self, expression: &str) -> Vec<f64> {
        let data = self.get("/query", &[("query", expression)]).await;
        let data = data.unwrap_or_default();
        let results = data["result"].as_array().cloned().unwrap_or_default();
        let value = |result: &Value| result["value"][1].as_str()?.parse().ok();
        results.iter().filter_map(value).collect()
    }
}

pub async fn within(time: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < time, "{what}: not within {time:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Returns each query of the dashboard with the title of its panel.
fn queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut ids: Vec<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), panels.len(), "two panels have one id");
    let targets = panels.iter().flat_map(|panel| {
        let title = panel["title"].as_str().expect("a title");
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        targets
            .into_iter()
            .map(move |target| (title.to_owned(), target))
    });
    let expression = |target: &Value| {
        let text = target["expr"].as_str().expect("an expression");
        text.replace("$instance", ".*")
            .replace("$__rate_interval", "1m")
    };
    targets
        .map(|(title, target)| (title, expression(&target)))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_accepts_metrics_dashboard_queries_and_alerts() {
    let home = Home::new();
    let service = home.serve().await;
    let prometheus = Prometheus::start(&home);
    prometheus.scrape(&[service.operations]);
    within(PATIENCE, "a first scrape", async || {
        prometheus.values("up").await == [1.0]
    })
    .await;
    // Rates need events between two scrapes, and some series appear only after their first event.
    for round in [1, 2] {
        service
            .exercise_all_metrics(round, &png(600 + round, 400))
            .await;
        let is_scraped = async || {
            prometheus.values("images_rendering_seconds_count").await == [f64::from(round)]
        };
        within(PATIENCE, "the next scrape", is_scraped).await;
    }

    let metrics = format!("http://{}/metrics", service.operations);
    let metrics = client().get(metrics).is(200).await.text();
    let text = promtool(&["check", "metrics"], &metrics).await;
    assert!(text.is_empty(), "{text}");

    let queries = queries();
    assert!(queries.len() > 40, "{queries:?}");
    for (title, expression) in &queries {
        let is_empty = EMPTY.contains(&title.as_str());
        let finite = async || {
            let values = prometheus.values(expression).await;
            values.iter().any(|value| value.is_finite()) != is_empty
        };
        within(PATIENCE, &format!("{title}: {expression}"), finite).await;
    }

    let rules = prometheus.get("/rules", &[]).await.expect("rules");
    let rules = rules["groups"][0]["rules"].as_array().expect("rules");
    assert!(rules.len() > 10, "{rules:?}");
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
        // A busy machine may be slow for a while, too.
        assert_ne!(rule["state"], "firing", "{rule}");
        for annotation in ["summary", "description", "action"] {
            assert!(rule["annotations"][annotation].is_string(), "{rule}");
        }
    }
    service.stop().await;
    let down = async || {
        let query = [("query", "ALERTS{alertname=\"PetInventoryDown\"}")];
        let pending = prometheus.get("/query", &query).await.expect("a response");
        !pending["result"].as_array().expect("alerts").is_empty()
    };
    within(PATIENCE, "an alert", down).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_fire_only_under_their_conditions() {
    promtool(&["check", "rules", ALERTS], "").await;
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/outside_tools/alerts.yaml");
    promtool(&["test", "rules", tests], "").await;
}
