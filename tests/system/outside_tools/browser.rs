//! Headless Chromium, driven over WebDriver (W3C).
//!
//! Invariants:
//! - However a test ends, it leaves no browser process and no file.

use std::process::{Child, Command};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use tempfile::TempDir;
use test_support::*;
use tokio::io::{AsyncBufReadExt as _, BufReader};

/// Key of an element's identifier in WebDriver responses.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one page, ended when dropped.
pub struct Browser {
    /// URL of the WebDriver session.
    url: String,
    client: Client,
    /// Shell that ends the browser when its standard input closes.
    _cleaner: Child,
}

impl Browser {
    pub async fn start() -> Self {
        let mut started = None;
        for _ in 0..3 {
            // Another program may take its free port before it listens.
            if started.is_none() {
                started = start_driver().await;
            }
        }
        let (cleaner, driver) =
            started.expect("Chromium or its driver is missing: run .ci/setup --all");
        let client = client();
        // All other hosts are unreachable; a request to one fails and is logged.
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-gpu",
            "--disable-quic",
            "--disable-sync",
            "--force-color-profile=srgb",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        ];
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
            // Timeout for finding an element and for running a script.
            "timeouts": { "implicit": PATIENCE.as_millis(), "script": PATIENCE.as_millis() },
        }}});
        let request = client.post(format!("{driver}/session")).json(&capabilities);
        let session = request.is(200).await.json();
        let id = session["value"]["sessionId"].as_str().expect("an id");
        Self {
            url: format!("{driver}/session/{id}"),
            client,
            _cleaner: cleaner,
        }
    }

    async fn command(&self, method: Method, path: &str, body: &Value) -> Value {
        let request = self.client.request(method, format!("{}{path}", self.url));
        let mut response = request.json(body).is(200).await.json();
        response["value"].take()
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        self.command(Method::POST, path, body).await
    }

    pub async fn open(&self, url: &str) {
        self.post("/url", &json!({ "url": url })).await;
    }

    /// Loads the page again, and waits until it is loaded.
    pub async fn reload(&self) {
        self.post("/refresh", &json!({})).await;
    }

    /// Returns the handles of the open tabs.
    pub async fn tabs(&self) -> Vec<Value> {
        let request = self.client.get(format!("{}/window/handles", self.url));
        let handles = request.is(200).await.json()["value"].take();
        handles.as_array().expect("handles").clone()
    }

    /// Runs commands in another tab from now on.
    pub async fn switch_to(&self, tab: &Value) {
        self.post("/window", &json!({ "handle": tab })).await;
    }

    /// Sets the size of the page and the preferred colour scheme.
    pub async fn set_viewport(&self, width: u32, height: u32, scheme: &str) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics)
            .await;
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.devtools(
            "Emulation.setEmulatedMedia",
            &json!({ "features": [feature] }),
        )
        .await;
    }

    /// Shows the page as it is printed, until the next viewport.
    pub async fn print(&self) {
        let media = json!({ "media": "print" });
        self.devtools("Emulation.setEmulatedMedia", &media).await;
    }

    /// Shows the page in colours of the system only, until the next viewport.
    pub async fn force_colours(&self) {
        let feature = json!({ "name": "forced-colors", "value": "active" });
        self.devtools(
            "Emulation.setEmulatedMedia",
            &json!({ "features": [feature] }),
        )
        .await;
    }

    /// Delays each response by some milliseconds from now on.
    pub async fn throttle(&self, latency: u32) {
        let conditions = json!({ "offline": false, "latency": latency, "downloadThroughput": -1, "uploadThroughput": -1 });
        self.devtools("Network.enable", &json!({})).await;
        self.devtools("Network.emulateNetworkConditions", &conditions)
            .await;
    }

    /// Uses what the browser has kept of former responses from now on, or nothing of it.
    pub async fn cache(&self, is_used: bool) {
        let setting = json!({ "cacheDisabled": !is_used });
        self.devtools("Network.setCacheDisabled", &setting).await;
    }

    async fn devtools(&self, command: &str, parameters: &Value) {
        let body = json!({ "cmd": command, "params": parameters });
        self.post("/goog/cdp/execute", &body).await;
    }

    /// Runs a function body in the page; returns its result, or that of its promise.
    pub async fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
            .await
    }

    /// Waits until an expression in the page is true.
    pub async fn until(&self, expression: &str) {
        let started = Instant::now();
        while self.run(&format!("return {expression}")).await != true {
            let page = self.run("return document.body.innerText").await;
            assert!(started.elapsed() < PATIENCE, "not {expression}: {page}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until a line of an element's text starts with `prefix`.
    pub async fn until_text(&self, selector: &str, prefix: &str) {
        let selector = json!(selector);
        let prefix = json!(prefix);
        let text = format!("document.querySelector({selector})?.innerText");
        self.until(&format!(
            "{text}.split('\\n').some(it => it.startsWith({prefix})) === true"
        ))
        .await;
    }

    /// Expands an operation of a Swagger UI, and waits until its references are resolved: before, the button to execute it does
    /// nothing.
    pub async fn expand_operation(&self, tag: &str, id: &str) {
        let operation = format!("#operations-{tag}-{id}");
        self.click(&format!("{operation} .opblock-summary-control"))
            .await;
        self.find(&format!("{operation} .opblock-body")).await;
        self.until(&format!(
            "document.querySelector('{operation} .opblock-loading-animation') === null"
        ))
        .await;
    }

    /// Returns the text of an element.
    pub async fn text(&self, selector: &str) -> String {
        let element = self.find(selector).await;
        let text = self
            .command(Method::GET, &format!("{element}/text"), &json!({}))
            .await;
        text.as_str().expect("text").to_owned()
    }

    /// Clicks on an element.
    pub async fn click(&self, selector: &str) {
        self.act(selector, "click", &json!({})).await;
    }

    /// Chooses an option by its text. Typing it would choose another one on a busy machine: a list of options begins a new search
    /// when a second passes between two letters.
    pub async fn choose(&self, selector: &str, option: &str) {
        self.find(selector).await;
        let options = format!(
            "return [...document.querySelector('{selector}').options].findIndex(it => it.text === '{option}')"
        );
        let place = self.run(&options).await.as_i64().expect("an index");
        self.click(&format!("{selector} option:nth-child({})", place + 1))
            .await;
    }

    /// Replaces the text of an input. A file input takes a path.
    pub async fn enter(&self, selector: &str, text: &str) {
        self.find(selector).await;
        self.run(&format!("document.querySelector('{selector}').select?.()"))
            .await;
        self.act(selector, "value", &json!({ "text": text })).await;
    }

    /// Acts on an element, once it is in the page and nothing covers it: a page that is still being laid out moves and replaces
    /// its elements.
    async fn act(&self, selector: &str, action: &str, body: &Value) {
        let started = Instant::now();
        loop {
            let element = self.find(selector).await;
            let request = self.client.post(format!("{}{element}/{action}", self.url));
            let acted = request.json(body).response().await;
            let text = acted.text();
            let is_moving = ["element click intercepted", "stale element reference"]
                .iter()
                .any(|it| text.contains(it));
            if !is_moving || started.elapsed() > PATIENCE {
                acted.is(200);
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn find(&self, selector: &str) -> String {
        let by = json!({ "using": "css selector", "value": selector });
        let found = self.post("/element", &by).await;
        format!("/element/{}", found[ELEMENT].as_str().expect("an element"))
    }

    /// Presses keys one after the other on the focused element.
    pub async fn press(&self, keys: &str) {
        let strokes: Vec<Value> = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key })))
            .collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": strokes });
        self.post("/actions", &json!({ "actions": [keyboard] }))
            .await;
    }

    /// Presses a key on the focused element while another one is held.
    pub async fn press_with(&self, held: &str, key: &str) {
        let stroke = |kind: &str, value: &str| json!({ "type": kind, "value": value });
        let strokes = [
            stroke("keyDown", held),
            stroke("keyDown", key),
            stroke("keyUp", key),
            stroke("keyUp", held),
        ];
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": strokes });
        self.post("/actions", &json!({ "actions": [keyboard] }))
            .await;
    }

    /// Saves a screenshot in cargo's folder for tests.
    pub async fn screenshot(&self, name: &str) {
        let screenshot = self.command(Method::GET, "/screenshot", &json!({})).await;
        let bytes = BASE64_STANDARD.decode(screenshot.as_str().expect("base64"));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(path, bytes.expect("base64")).expect("a file");
    }

    /// Checks the log since the last call: no request to another host, and no warning or error on the console except
    /// `expected`.
    pub async fn is_clean(&self, address: SocketAddr, expected: &[&str]) {
        let requests: Vec<String> = self
            .log("performance")
            .await
            .iter()
            .filter_map(|entry| {
                let message: Value = serde_json::from_str(entry["message"].as_str()?).ok()?;
                let message = &message["message"];
                let url = match message["method"].as_str()? {
                    "Network.requestWillBeSent" => &message["params"]["request"]["url"],
                    "Network.webSocketCreated" => &message["params"]["url"],
                    _ => return None,
                };
                Some(url.as_str()?.to_owned())
            })
            .collect();
        assert!(!requests.is_empty(), "it logs no requests");
        for url in requests {
            let ours = [&format!("http://{address}/"), "data:", "blob:"];
            assert!(ours.iter().any(|ours| url.starts_with(*ours)), "{url}");
        }
        self.has_no_errors(expected).await;
    }

    /// Checks the log since the last call: no warning or error on the console except `expected`.
    ///
    /// The browser also logs that the service is not ready, which the console shows to people: on a busy machine, PostgreSQL may not
    /// respond within the time limit of `/readyz`.
    pub async fn has_no_errors(&self, expected: &[&str]) {
        const NOT_READY: &str =
            "/readyz - Failed to load resource: the server responded with a status of 503";
        let expected = [expected, &[NOT_READY]].concat();
        for entry in self.log("browser").await {
            let message = entry["message"].as_str().expect("a message");
            let level = entry["level"].as_str().expect("a level");
            assert!(
                !["WARNING", "SEVERE"].contains(&level)
                    || expected.iter().any(|expected| message.contains(expected)),
                "{entry}"
            );
        }
    }

    async fn log(&self, kind: &str) -> Vec<Value> {
        let log = self.post("/se/log", &json!({ "type": kind })).await;
        log.as_array().expect("a log").clone()
    }
}

/// Starts the driver in a folder and a process group of its own; both end with this process. Returns its URL, too, or `None` if
/// it ends at once.
async fn start_driver() -> Option<(Child, String)> {
    use std::os::unix::process::CommandExt as _;
    const SCRIPT: &str = r#"
        trap '' INT TERM
        setsid chromedriver --port=0 </dev/null &
        exec >/dev/null
        read -r _
        kill -s KILL -- -$!
        wait
        while ! rm -rf "$1"; do sleep 0.1; done
    "#;
    let folder = tempfile::tempdir().map(TempDir::keep).expect("a folder");
    let mut cleaner = Command::new("/bin/sh")
        .args(["-c", SCRIPT, "cleaner"])
        .arg(&folder)
        // The browser writes to these folders only.
        .envs(["HOME", "TMPDIR"].map(|name| (name, &folder)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // The terminal's signals must not reach the cleaner.
        .process_group(0)
        .spawn()
        .expect("a shell");
    let stdout = cleaner.stdout.take().expect("piped");
    let stdout = tokio::process::ChildStdout::from_std(stdout).expect("a pipe");
    let mut lines = BufReader::new(stdout).lines();
    let port = async {
        while let Some(line) = lines.next_line().await.expect("text") {
            if let Some((_, port)) = line.split_once("started successfully on port ") {
                return Some(port.trim_end_matches('.').to_owned());
            }
        }
        None
    };
    let port = tokio::time::timeout(PATIENCE, port).await;
    let Some(port) = port.expect("it starts or ends") else {
        drop(cleaner.stdin.take());
        let _ = cleaner.wait();
        return None;
    };
    Some((cleaner, format!("http://127.0.0.1:{port}")))
}
