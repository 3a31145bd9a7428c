//! `serve`: runs the service and prints its addresses.

use super::output::{Error, say};
use crate::{
    app::{App, DEMO_KEYS},
    config::Config,
    server::{Shutdown, listener::raise_file_limit},
};

/// Serves until SIGINT or SIGTERM.
pub async fn run(config: Config) -> Result<(), Error> {
    let shutdown = Shutdown::on_signals(config.server.shutdown_grace)?;
    raise_file_limit(config.server.max_connections);
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
    let _ = say(greeting(&app, &database));
    Ok(app.run(shutdown).await?)
}

fn greeting(app: &App, database: &str) -> String {
    let api = format!("http://{}", app.local_addr());
    let keys = if app.has_demo_keys() {
        let keys = DEMO_KEYS
            .map(|(key, plan)| format!("{key} ({plan})"))
            .join(", ");
        let [(key, _), ..] = DEMO_KEYS;
        let address = app.local_addr();
        // Demo keys are accepted at loopback hosts only.
        let host = if address.ip().is_loopback() {
            address.to_string()
        } else {
            format!("localhost:{}", address.port())
        };
        format!(
            "Demo keys  {keys}\n\
             \x20 Try        curl -H 'api_key: {key}' 'http://{host}/api/v3/pet/findByStatus?status=available'"
        )
    } else {
        "Keys       pet-inventory keys create --caller NAME --plan free|pro|enterprise".to_owned()
    };
    format!(
        "pet-inventory {version} is ready\n\
         \x20 API        {api}/api/v3\n\
         \x20 Docs       {api}/docs\n\
         \x20 Metrics    http://{operations}/metrics\n\
         \x20 Data       {database}\n\
         \x20 {keys}",
        version = env!("CARGO_PKG_VERSION"),
        operations = app.operations_addr(),
    )
}
