//! `serve`: runs the service, prints its addresses, and tells a service manager its state.

use std::{borrow::Cow, slice};

use sd_notify::NotifyState;
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::{
    check,
    output::{Error, print},
};
use crate::{
    app::{App, DEMO_KEYS},
    config::Config,
    domain::address::ListenAddress,
    server::Shutdown,
    telemetry::build::BUILD,
};

/// Serves until SIGINT or SIGTERM.
pub async fn run(config: Config, json: bool) -> Result<(), Error> {
    let shutdown = Shutdown::on_signals(config.server.shutdown_grace)?;
    tracing::info!("pet-inventory {} starts", *BUILD);
    for warning in check::logged_warnings(&config) {
        tracing::warn!("{warning}");
    }
    let database = match &config.database.url {
        Some(_) => "PostgreSQL at database.url".to_owned(),
        None => format!(
            "embedded PostgreSQL in {}",
            config.local_postgres.directory.display()
        ),
    };
    let app = tokio::select! {
        app = App::build(config) => app?,
        // Dropping the future stops everything that it has started.
        () = shutdown.graceful() => return Ok(()),
    };
    // A closed stdout must not end the service.
    let _ = print(json, greeting(&app, &database), &summary(&app, &database));
    notify(&NotifyState::Ready);
    tokio::spawn(watch(app.runtimes()));
    let stopping = shutdown.clone();
    tokio::spawn(async move {
        stopping.graceful().await;
        notify(&NotifyState::Stopping);
    });
    Ok(app.run(shutdown).await?)
}

/// Tells the service manager a state, if it asks for states (`NOTIFY_SOCKET`).
fn notify(state: &NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(slice::from_ref(state)) {
        tracing::warn!(%error, "failed to notify the service manager");
    }
}

/// Tells the service manager twice in each of its periods that no worker hangs, if it asks for that (`WATCHDOG_USEC`).
async fn watch(workers: Vec<Handle>) {
    let period = sd_notify::watchdog_enabled().filter(|period| !period.is_zero());
    while let Some(period) = period {
        for worker in &workers {
            let _ = worker.spawn(async {}).await;
        }
        notify(&NotifyState::Watchdog);
        tokio::time::sleep(period / 2).await;
    }
}

/// Returns the URL of a path.
fn url(address: &ListenAddress, path: &str) -> String {
    match address {
        ListenAddress::Tcp(address) => format!("http://{address}{path}"),
        ListenAddress::Unix(_) => format!("http://localhost{path}"),
    }
}

/// Returns the path of a Unix socket.
fn socket(address: &ListenAddress) -> Option<Cow<'_, str>> {
    match address {
        ListenAddress::Tcp(_) => None,
        ListenAddress::Unix(path) => Some(path.to_string_lossy()),
    }
}

/// Returns the URL of a path for people, with the Unix socket if the listener is one.
fn location(address: &ListenAddress, path: &str) -> String {
    let at = socket(address).map(|_| format!(" at {address}"));
    format!("{}{}", url(address, path), at.unwrap_or_default())
}

fn summary(app: &App, database: &str) -> Value {
    let keys = if app.has_demo_keys() {
        &DEMO_KEYS[..]
    } else {
        &[]
    };
    let keys = keys.iter();
    let (api, operations) = (app.local_addr(), app.operations_addr());
    json!({
        "api": url(api, "/api/v3"),
        "docs": url(api, "/docs"),
        "socket": socket(api),
        "metrics": url(operations, "/metrics"),
        "operationsSocket": socket(operations),
        "data": database,
        "demoKeys": keys
            .map(|(key, plan)| json!({"key": key, "plan": plan.as_str()}))
            .collect::<Value>(),
    })
}

fn greeting(app: &App, database: &str) -> String {
    let address = app.local_addr();
    let keys = if app.has_demo_keys() {
        let keys = DEMO_KEYS
            .map(|(key, plan)| format!("{key} ({plan})"))
            .join(", ");
        let [(key, _), ..] = DEMO_KEYS;
        let find = "/api/v3/pet/findByStatus?status=available";
        // Demo keys are accepted at loopback hosts only.
        let target = match address {
            ListenAddress::Tcp(tcp) if tcp.ip().is_loopback() => format!("'http://{tcp}{find}'"),
            ListenAddress::Tcp(tcp) => format!("'http://localhost:{}{find}'", tcp.port()),
            ListenAddress::Unix(path) => {
                format!("--unix-socket {} 'http://localhost{find}'", path.display())
            }
        };
        format!(
            "Demo keys  {keys}\n\
             \x20 Try        curl -H 'api_key: {key}' {target}\n\
             \x20 Samples    pet-inventory seed, or the console, adds 30 pets with pictures"
        )
    } else {
        "Keys       pet-inventory keys create --caller NAME --plan free|pro|enterprise".to_owned()
    };
    format!(
        "pet-inventory {version} is ready\n\
         \x20 Console    {console}\n\
         \x20 API        {api}\n\
         \x20 Docs       {docs}\n\
         \x20 Metrics    {metrics}\n\
         \x20 Data       {database}\n\
         \x20 {keys}",
        version = *BUILD,
        console = location(address, "/"),
        api = location(address, "/api/v3"),
        docs = location(address, "/docs"),
        metrics = location(app.operations_addr(), "/metrics"),
    )
}
