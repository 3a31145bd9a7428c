//! Runs wrk and pgbench and parses their results.

use std::{
    fmt::Write as _,
    fs,
    ops::Range,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

/// Panics with installation instructions if wrk is missing.
pub fn require_wrk() {
    let there = Command::new("wrk")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok();
    assert!(
        there,
        "no wrk in PATH. On Debian and Ubuntu: apt-get install wrk; with Homebrew: brew install wrk"
    );
}

/// Lua function that prints wrk's results as JSON.
const DONE: &str = r#"function done(summary, latency)
    io.write(string.format(
        '\nRESULT {"requests":%d,"micros":%d,"p50":%d,"p99":%d,"errors":%d,"other":%d}\n',
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
        summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout,
        summary.errors.status))
end
"#;

/// A wrk script. It builds thousands of requests in advance and sends them in turn.
pub struct Load {
    script: PathBuf,
}

/// Requests of a load.
pub struct RequestTemplate<'a> {
    pub method: &'a str,
    /// Path; `{n}` is replaced by a random number from 1 to `pets`.
    pub path: &'a str,
    pub pets: u32,
    pub keys: &'a [String],
    pub headers: &'a str,
    pub body: &'a str,
}

impl Load {
    pub fn new(folder: &Path, name: &str, template: &RequestTemplate<'_>) -> Self {
        let keys = folder.join(format!("{name}.keys"));
        fs::write(&keys, template.keys.join("\n")).expect("written");
        let mut body = String::new();
        write!(body, "{:?}", template.body).expect("text");
        let script = format!(
            r#"
local method, path, pets, body = "{method}", "{path}", {pets}, {body}
local keys, requests, at = {{}}, {{}}, 0
local threads = 0
function setup(thread)
    threads = threads + 1
    thread:set("seed", threads)
end
function init(args)
    math.randomseed(seed)
    for key in io.lines("{keys}") do keys[#keys + 1] = key end
    -- As many as there are keys, so that each is used.
    for i = 1, math.max(20000, #keys) do
        local headers = {{ ["api_key"] = keys[(i - 1) % #keys + 1], {headers} }}
        local target = path:gsub("{{n}}", tostring(math.random(1, pets)))
        requests[i] = wrk.format(method, target, headers, body ~= "" and body or nil)
    end
    at = math.random(1, #requests)
end
function request()
    at = at % #requests + 1
    return requests[at]
end
{DONE}"#,
            method = template.method,
            path = template.path,
            pets = template.pets,
            keys = keys.display(),
            headers = template.headers,
        );
        let file = folder.join(format!("{name}.lua"));
        fs::write(&file, script).expect("written");
        Self { script: file }
    }

    /// Creates a load that sends a file, with another number in the bytes of `mark` each time.
    pub fn of_file(
        folder: &Path,
        name: &str,
        template: &RequestTemplate<'_>,
        body: &Path,
        mark: Range<usize>,
    ) -> Self {
        let script = format!(
            r#"
local threads, number = 0, 0
function setup(thread)
    threads = threads + 1
    thread:set("seed", threads)
end
function init(args)
    math.randomseed(seed + os.time())
    number = math.random(1, 1000000000) * 1000000
    local body = io.open("{body}", "rb"):read("*a")
    before, after = body:sub(1, {from}), body:sub({to} + 1)
end
function request()
    number = number + 1
    local target = string.gsub("{path}", "{{n}}", tostring(math.random(1, {pets})))
    local headers = {{ ["api_key"] = "{key}", {headers} }}
    return wrk.format("{method}", target, headers, before .. string.format("%0{length}d", number) .. after)
end
{DONE}"#,
            body = body.display(),
            from = mark.start,
            to = mark.end,
            length = mark.len(),
            path = template.path,
            pets = template.pets,
            key = template.keys[0],
            headers = template.headers,
            method = template.method,
        );
        let file = folder.join(format!("{name}.lua"));
        fs::write(&file, script).expect("written");
        Self { script: file }
    }

    /// Runs the load against a server.
    pub async fn run(&self, address: &str, connections: u32, seconds: u32) -> Run {
        let threads = if connections < 16 { 1 } else { 2 };
        let output = tokio::process::Command::new("wrk")
            .args([format!("-t{threads}"), format!("-c{connections}")])
            .args([format!("-d{seconds}s"), "--timeout".into(), "10s".into()])
            .arg("-s")
            .arg(&self.script)
            .arg(format!("http://{address}"))
            .output()
            .await
            .expect("wrk");
        let text = String::from_utf8_lossy(&output.stdout);
        let result = text.lines().find_map(|line| line.strip_prefix("RESULT "));
        let result: Value = serde_json::from_str(result.unwrap_or_else(|| {
            panic!("wrk: {text}{}", String::from_utf8_lossy(&output.stderr));
        }))
        .expect("JSON");
        let number = |name: &str| result[name].as_f64().expect("a number");
        assert!(number("errors") < 1.0, "wrk met errors: {result}");
        Run {
            requests: number("requests"),
            rate: number("requests") / number("micros") * 1e6,
            p50: number("p50") / 1e3,
            p99: number("p99") / 1e3,
            refused: number("other"),
        }
    }
}

/// Result of one run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Run {
    pub requests: f64,
    /// Requests per second.
    pub rate: f64,
    /// Milliseconds.
    pub p50: f64,
    pub p99: f64,
    /// Responses with a status of 400 or more.
    pub refused: f64,
}

/// Runs pgbench: clients that read the same rows by a prepared statement, without HTTP.
pub async fn pgbench(
    socket: &Path,
    database: &str,
    script: &Path,
    clients: u32,
    seconds: u32,
) -> Run {
    let output = tokio::process::Command::new("pgbench")
        .args([
            "-n", "-M", "prepared", "-j", "2", "-U", "postgres", "-p", "5432",
        ])
        .args(["-c", &clients.to_string(), "-T", &seconds.to_string()])
        .arg("-h")
        .arg(socket)
        .arg("-f")
        .arg(script)
        .arg(database)
        .output()
        .await;
    let Ok(output) = output else {
        println!("no pgbench in PATH: its row is left out");
        return Run::default();
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let of = |name: &str, unit: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.trim().split(unit).next()?.trim().parse().ok());
        number
            .unwrap_or_else(|| panic!("pgbench: {text}{}", String::from_utf8_lossy(&output.stderr)))
    };
    let rate: f64 = of("tps =", " (");
    Run {
        requests: rate * f64::from(seconds),
        rate,
        p50: of("latency average =", " ms"),
        ..Run::default()
    }
}
