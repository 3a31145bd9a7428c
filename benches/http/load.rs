//! Writes scripts for wrk, runs them and parses the results.

use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

/// Panics with installation instructions if a program is missing.
pub fn require(program: &str, package: &str) {
    let version = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(
        version.is_ok(),
        "no {program} in PATH. On Debian and Ubuntu: apt-get install {package}"
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

/// Lua function that returns the cursor of the page after `n`.
const CURSOR: &str = r#"
local alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
local function cursor(n)
    local text, digits = tostring(n), {}
    for i = 1, #text, 3 do
        local a, b, c = text:byte(i, i + 2)
        local bits = a * 65536 + (b or 0) * 256 + (c or 0)
        for j = 0, c and 3 or b and 2 or 1 do
            local digit = math.floor(bits / 64 ^ (3 - j)) % 64 + 1
            digits[#digits + 1] = alphabet:sub(digit, digit)
        end
    end
    return table.concat(digits)
end
"#;

/// Variable that makes a script print the first response with a status of 400 or more.
const EXPLAIN: &str = "BENCH_EXPLAIN";

/// Lua function that prints such a response. Without it, wrk does not read responses.
const RESPONSE: &str = r#"
if os.getenv("BENCH_EXPLAIN") then
    function response(status, headers, body)
        if status > 399 then
            io.write("\nREFUSED ", status, " ", body, "\n")
            wrk.thread:stop()
        end
    end
end
"#;

/// Requests of wrk.
#[derive(Debug)]
pub struct Load {
    pub script: PathBuf,
    /// True if responses with a status of 400 or more are expected.
    pub refused: bool,
}

/// Requests of a load.
///
/// In `path` and `body`, `<expression>` is replaced by the value of a Lua expression over `n`, the number of the request,
/// and `key`, its credential. `cursor(n)` is the cursor of the page after `n`.
#[derive(Debug, Clone, Copy)]
pub struct Template<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub credential: Credential,
    /// Credentials, used in turn.
    pub keys: &'a [String],
    /// Further headers, as entries of a Lua table.
    pub headers: &'a str,
    pub body: &'a str,
    pub numbers: Numbers,
}

impl<'a> Template<'a> {
    /// Returns GET requests with API keys.
    pub fn get(path: &'a str, keys: &'a [String], last: u32) -> Self {
        Self {
            method: "GET",
            path,
            credential: Credential::ApiKey,
            keys,
            headers: "",
            body: "",
            numbers: Numbers::Random(last),
        }
    }
}

/// Place of the credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    ApiKey,
    Bearer,
    /// None, or in the body.
    Absent,
}

/// Numbers of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// Random numbers from 1 to this one. The requests are built in advance and sent in turn.
    Random(u32),
    /// Each number once, from the argument `first` of [`Load::run`].
    Consecutive,
}

/// Returns a Lua expression for a text with `<expression>` in it.
fn lua(template: &str) -> String {
    let parts = template.split(['<', '>']).enumerate();
    let parts = parts.map(|(place, part)| match place % 2 {
        0 => format!("{part:?}"),
        _ => format!("({part})"),
    });
    parts.collect::<Vec<_>>().join(" .. ")
}

impl Load {
    pub fn new(folder: &Path, name: &str, template: &Template<'_>) -> Self {
        let name = name.replace(['/', ' '], "_");
        let keys = folder.join(format!("{name}.keys"));
        fs::write(&keys, template.keys.join("\n")).expect("written");
        let credential = match template.credential {
            Credential::ApiKey => r#"["api_key"] = key,"#,
            Credential::Bearer => r#"["authorization"] = "Bearer " .. key,"#,
            Credential::Absent => "",
        };
        let (last, fixed) = match template.numbers {
            Numbers::Random(last) => (last, true),
            Numbers::Consecutive => (1, false),
        };
        let script = format!(
            r#"{CURSOR}
local keys, requests, at, n, step = {{}}, {{}}, 0, 0, 0
local threads = 0
function setup(thread)
    thread:set("index", threads)
    threads = threads + 1
end
local function build()
    local key = keys[at % #keys + 1]
    local headers = {{ {credential} {headers} }}
    local body = {body}
    return wrk.format("{method}", {path}, headers, body ~= "" and body or nil)
end
function init(args)
    math.randomseed(os.time() + index)
    for key in io.lines("{keys}") do keys[#keys + 1] = key end
    step = tonumber(args[2])
    n, at = tonumber(args[1]) + index - step, index * math.floor(#keys / step)
    -- As many as there are keys, so that each is used.
    for i = 1, {fixed} and math.max(20000, #keys) or 0 do
        at, n = at + 1, math.random(1, {last})
        requests[i] = build()
    end
end
function request()
    at = at + 1
    if {fixed} then return requests[at % #requests + 1] end
    n = n + step
    return build()
end
{RESPONSE}{DONE}"#,
            headers = template.headers,
            body = lua(template.body),
            method = template.method,
            path = lua(template.path),
            keys = keys.display(),
        );
        let file = folder.join(format!("{name}.lua"));
        fs::write(&file, script).expect("written");
        Self {
            script: file,
            refused: false,
        }
    }

    /// Allows responses with a status of 400 or more, which otherwise fail the benchmark.
    pub fn refused(mut self) -> Self {
        self.refused = true;
        self
    }

    /// Creates a load that sends a file, with another number in the bytes of `mark` each time.
    pub fn of_file(
        folder: &Path,
        name: &str,
        template: &Template<'_>,
        body: &Path,
        mark: Range<usize>,
    ) -> Self {
        let Numbers::Random(last) = template.numbers else {
            panic!("files are sent to random pets");
        };
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
    local n = math.random(1, {last})
    local headers = {{ ["api_key"] = "{key}", {headers} }}
    return wrk.format("{method}", {path}, headers, before .. string.format("%0{length}d", number) .. after)
end
{DONE}"#,
            body = body.display(),
            from = mark.start,
            to = mark.end,
            length = mark.len(),
            path = lua(template.path),
            key = template.keys[0],
            headers = template.headers,
            method = template.method,
        );
        let file = folder.join(format!("{name}.lua"));
        fs::write(&file, script).expect("written");
        Self {
            script: file,
            refused: false,
        }
    }

    /// Runs the load against a server. `first` is the first of consecutive numbers.
    pub async fn run(&self, address: &str, connections: u32, seconds: u32, first: u32) -> Run {
        let run = wrk(&self.script, address, (connections, seconds), first).await;
        let script = self.script.display();
        assert!(run.errors < 1.0, "{script}: {} errors", run.errors);
        if run.refused >= 1.0 && !self.refused {
            explain(&script.to_string(), address, first, run.refused).await;
        }
        run
    }
}

/// Panics with the first response that has a status of 400 or more.
async fn explain(script: &str, address: &str, first: u32, refused: f64) {
    let output = tokio::process::Command::new("wrk")
        .args(["-t1", "-c1", "-d1s", "-s", script])
        .arg(format!("http://{address}"))
        .args([&first.to_string(), "1"])
        .env(EXPLAIN, "1")
        .output()
        .await
        .expect("wrk");
    let text = String::from_utf8_lossy(&output.stdout);
    let response = text.lines().find(|line| line.starts_with("REFUSED"));
    let response = response.unwrap_or("another try had none");
    panic!("{script}: {refused:.0} responses with a status of 400 or more: {response}");
}

async fn wrk(script: &Path, address: &str, (connections, seconds): (u32, u32), first: u32) -> Run {
    let threads = if connections < 16 { 1 } else { 2 };
    let output = tokio::process::Command::new("wrk")
        .args([format!("-t{threads}"), format!("-c{connections}")])
        .args([format!("-d{seconds}s"), "--timeout".into(), "10s".into()])
        .arg("-s")
        .arg(script)
        .arg(format!("http://{address}"))
        .args([first.to_string(), threads.to_string()])
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
    Run {
        requests: number("requests"),
        rate: number("requests") / number("micros") * 1e6,
        p50: number("p50") / 1e3,
        p99: number("p99") / 1e3,
        errors: number("errors"),
        refused: number("other"),
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
    /// Failed connections, reads and writes.
    pub errors: f64,
    /// Responses with a status of 400 or more.
    pub refused: f64,
}
