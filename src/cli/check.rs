//! `check`: checks configuration, database, schema and image store, suggests fixes, and warns of insecure settings.

use std::{num::NonZeroU32, process::ExitCode, time::Duration};

use bytes::Bytes;
use clap::Args;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use url::Url;

use super::{
    output::{Error, print, progress},
    session::Session,
    stored_images,
};
use crate::{
    blob_store::BlobStore,
    config::{Config, CorsOrigins, Pooler},
    db::{self, Conditions, ConnectOptions, Database, DatabaseUrl, Server, backups::Backup},
    domain::{address::is_loopback, caller::Scopes},
    http_client,
    limits::open_files::OpenFiles,
    maintenance::orphaned_blobs,
};

/// Arguments of the command.
#[derive(Debug, Args)]
pub struct Check {
    /// Number of processes of the service: also add up their connections to PostgreSQL
    #[arg(long, value_name = "NUMBER")]
    replicas: Option<NonZeroU32>,
    /// Also read all images, and list those that are missing or damaged
    #[arg(long)]
    images: bool,
}

/// Prints one line per part and one per warning; the exit code is a failure if any check fails.
pub async fn run(command: &Check, config: &Config, json: bool) -> Result<ExitCode, Error> {
    // `Config` is always valid.
    let files = OpenFiles::divide(config);
    let valid = files.map(|_| "valid; see: pet-inventory config show".to_owned());
    let mut results = vec![("configuration", valid.map_err(Error::from))];
    let mut warnings = warnings(config);
    match Session::open(config).await {
        Ok(session) => {
            let pooler = config.database.pooler;
            let conditions = db::migrations::conditions(&session.options, pooler).await;
            let server = match (database(config, &session.options).await, &conditions) {
                (Ok(_), Ok(it)) if !it.server.is_empty() => Err(it.server.join(". Also, ").into()),
                (server, _) => server,
            };
            // Then its failure would be that of the database, once more.
            let has_schema = server.is_ok() || conditions.is_ok();
            match server {
                Ok(server) => {
                    results.push(("database", Ok(description(config, &server))));
                    if config.database.url.is_some() {
                        let (status, of_cluster) = cluster(&server).await;
                        results.push(("cluster", Ok(status)));
                        warnings.extend(of_cluster.into_iter().map(|it| ("database", it)));
                    }
                    if let Some(replicas) = command.replicas {
                        results.push(("connections", connections(config, replicas, &server)));
                    }
                }
                Err(error) => results.push(("database", Err(error))),
            }
            let schema = conditions.map_err(Error::from).and_then(schema);
            let current = schema.is_ok().then_some(&session);
            if current.is_some() && is_administration_ending(config, &session.options).await {
                warnings.push(("database", ADMINISTRATION.to_owned()));
            }
            let images = images(config, current).await;
            let stored_images = match current {
                Some(session) if command.images => Some(stored_images(config, session).await),
                _ => None,
            };
            results.extend(has_schema.then_some(("schema", schema)));
            results.push(("images", images));
            results.extend(stored_images.map(|result| ("stored images", result)));
            session.close().await?;
        }
        Err(error) => {
            results.push(("database", Err(error)));
            results.push(("images", images(config, None).await));
        }
    }
    let is_ok = results.iter().all(|(_, result)| result.is_ok());
    let checks = results.into_iter().map(|(part, result)| match result {
        Ok(status) => ("ok", part, status),
        Err(problem) => ("FAILED", part, problem.to_string()),
    });
    let warnings = warnings.into_iter();
    let warnings = warnings.map(|(part, warning)| ("WARNING", part, warning));
    let (checks, warnings): (Vec<_>, Vec<_>) = (checks.collect(), warnings.collect());
    let lines = checks.iter().chain(&warnings);
    let lines = lines.map(|(kind, part, message)| format!("{kind:<7} {part:<14} {message}"));
    let value = json!({
        "ok": is_ok,
        "checks": checks
            .iter()
            .map(|(kind, part, message)| json!({"part": part, "ok": *kind == "ok", "message": message}))
            .collect::<Value>(),
        "warnings": warnings
            .iter()
            .map(|(_, part, message)| json!({"part": part, "message": message}))
            .collect::<Value>(),
    });
    print(json, lines.collect::<Vec<_>>().join("\n"), &value)?;
    Ok(if is_ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Warning of [`is_administration_ending`].
const ADMINISTRATION: &str = "no administrator has a key that is valid for another day: create one with \
    pet-inventory keys create --caller NAME --scope admin";

/// Returns settings that work but may be insecure, with their parts.
fn warnings(config: &Config) -> Vec<(&'static str, String)> {
    /// Logarithm of the number of addresses in the largest network that plausibly has proxies only.
    const MAX_HOST_BITS: u8 = 8;
    let mut warnings = Vec::new();
    let (listen, proxies) = (&config.server.listen, &config.limits.trusted_proxies);
    if (listen.tcp()).is_some_and(|address| !address.ip().is_loopback()) && proxies.is_empty() {
        warnings.push(("configuration", format!(
            "server.listen is {listen}, but limits.trusted_proxies is empty: put a proxy with TLS in front of the service \
             and list its address, otherwise credentials are sent in the clear or all clients share one address"
        )));
    }
    let wide = (proxies.iter()).filter(|it| it.max_prefix_len() - it.prefix_len() > MAX_HOST_BITS);
    for net in wide {
        warnings.push(("configuration", format!(
            "limits.trusted_proxies has {net}: every client in it can forge its address; list only the proxies"
        )));
    }
    let plan = config.auth.anonymous_plan;
    let is_anonymous = config.auth.anonymous_scopes != Scopes::default();
    if is_anonymous && config.plans.limits(plan).per_minute.is_none() {
        warnings.push(("configuration", format!(
            "auth.anonymous_plan is {plan}, which has no limit per minute: one client without a credential can use the \
             service without a limit; set another plan"
        )));
    }
    let logged = logged_warnings(config).into_iter();
    warnings.extend(logged.map(|warning| ("configuration", warning)));
    let url = (config.database.url.as_ref()).and_then(|url| DatabaseUrl::parse(url, None).ok());
    let Some(DatabaseUrl {
        options,
        warnings: of_url,
    }) = url
    else {
        return warnings;
    };
    warnings.extend(of_url.into_iter().map(|warning| ("database", warning)));
    if let Some(mode) = db::weak_tls_mode(&options) {
        warnings.push((
            "database",
            format!(
                "sslmode is {mode}: an attacker in the network can pretend to be PostgreSQL; \
                 add sslmode=verify-full&sslrootcert=FILE to the query of database.url (DATABASE_URL)"
            ),
        ));
    }
    warnings
}

/// Returns true if someone without a credential can use the service.
fn is_open(config: &Config) -> bool {
    config.users.sign_up || config.auth.anonymous_scopes != Scopes::default()
}

/// Returns the warnings that `serve` logs, too: of variables without effect, of few open files, and of origins that may be
/// insecure.
pub fn logged_warnings(config: &Config) -> Vec<String> {
    let ignored = config.environment.ignored.iter();
    let ignored = ignored.map(|name| {
        format!("{name}, or its value, has no effect; unset it, or see: pet-inventory config show")
    });
    let files = OpenFiles::divide(config).ok().and_then(|it| it.warning());
    ignored.chain(files).chain(cors_warnings(config)).collect()
}

fn cors_warnings(config: &Config) -> Vec<String> {
    let origins = match &config.server.cors_origins {
        CorsOrigins::Any if !is_open(config) => return Vec::new(),
        CorsOrigins::Any => {
            return vec![
                "server.cors_origins is *, and the service can be used without a credential (auth.anonymous_scopes) or \
                 by new users (users.sign_up): any web page can do so from the browser of a visitor, also where only \
                 this browser can reach the service; list the origins"
                    .to_owned(),
            ];
        }
        CorsOrigins::Listed(origins) => origins.iter().filter_map(|it| it.to_str().ok()),
    };
    let insecure = origins.filter(|origin| {
        let url = Url::parse(origin).ok().filter(|url| url.scheme() == "http");
        url.is_some_and(|url| !url.host_str().is_some_and(is_loopback))
    });
    let warnings = insecure.map(|origin| {
        format!(
            "server.cors_origins has {origin}: an attacker in the network can change its pages, and use the API as \
             their visitors; serve them with TLS, and list the https origin"
        )
    });
    warnings.collect()
}

/// Returns what the server and Patroni say about the cluster, and warnings: a failover may lose acknowledged writes, or
/// writes wait.
async fn cluster(server: &Server) -> (String, Vec<String>) {
    let Server {
        standbys,
        needed_standbys: needed,
        answering_standbys: answering,
        ..
    } = server;
    let mut warnings = Vec::new();
    if *needed == 0 && *standbys > 0 {
        warnings.push(format!(
            "{standbys} standbys are connected, but synchronous_standby_names is empty: a failover loses acknowledged \
             writes; see config/cluster/README.md"
        ));
    }
    if answering < needed {
        warnings.push(format!(
            "a commit waits for {needed} standbys of synchronous_standby_names, but {answering} answer: writes wait, and get \
             503; start the standbys, or see their log and set their clock"
        ));
    }
    let patroni = patroni_version(server).await;
    if let Some(version) = patroni.as_ref().filter(|version| is_old(version)) {
        warnings.push(format!(
            "Patroni is {version}: versions before 4.1.5 lose acknowledged writes when a frozen primary goes on; upgrade it"
        ));
    }
    let patroni = patroni.map_or("no Patroni found".to_owned(), |version| {
        format!("Patroni {version}")
    });
    let status = format!("standbys connected: {standbys}, a commit waits for: {needed}; {patroni}");
    (status, warnings)
}

/// Asks Patroni beside the server for its version. `None` if there is none, or if it does not respond within a second.
async fn patroni_version(server: &Server) -> Option<String> {
    if server.cluster.is_empty() {
        return None;
    }
    let client = http_client::builder().ok()?.timeout(Duration::from_secs(1));
    let host = match server.address.as_deref()? {
        address if address.contains(':') => format!("[{address}]"),
        address => address.to_owned(),
    };
    let request = client
        .build()
        .ok()?
        .get(format!("http://{host}:8008/patroni"));
    let state = request.send().await.ok()?.bytes().await.ok()?;
    let state: Value = serde_json::from_slice(&state).ok()?;
    Some(state["patroni"]["version"].as_str()?.to_owned())
}

/// Returns true if a version of Patroni is less than 4.1.5.
fn is_old(version: &str) -> bool {
    let numbers = version
        .split('.')
        .map(|number| number.parse::<u32>().unwrap_or_default());
    numbers.lt([4, 1, 5])
}

/// Adds up the connections of all processes, and compares them with what the server admits.
fn connections(config: &Config, replicas: NonZeroU32, server: &Server) -> Result<String, Error> {
    let workers = OpenFiles::divide(config)?.workers;
    let each = Database::max_connections(&config.database, workers);
    let all = each.saturating_mul(replicas.get().into());
    let sum = format!("{replicas} × {each} = {all}");
    if config.database.pooler == Pooler::Transaction {
        return Ok(format!(
            "{sum} to the connection pooler: compare with its max_client_conn"
        ));
    }
    let max = server.max_connections;
    if all > u64::try_from(max).unwrap_or_default() {
        return Err(format!(
            "{sum}, but PostgreSQL admits {max}: raise its max_connections, or lower database.max_connections or \
             server.workers, or use a connection pooler"
        )
        .into());
    }
    Ok(format!("{sum} of the {max} that PostgreSQL admits"))
}

async fn database(config: &Config, options: &ConnectOptions) -> Result<Server, Error> {
    const NEXT: &str = "check its URL (DATABASE_URL), the network and PostgreSQL's log";
    let database = Database::new(options.clone(), &config.database);
    let opened = database.open().await.map(drop);
    let pooler = database.check_pooler().await;
    let server = match (opened, pooler) {
        // First, since prepared statements fail behind a pooler that is not declared.
        (Ok(()), Ok(Some(correction))) => Err(correction.into()),
        (Ok(()), Ok(None)) => database.run(Server::read).await.map_err(Error::from),
        (Err(error), _) | (_, Err(error)) => Err(format!("{error}: {NEXT}").into()),
    };
    database.close().await;
    server
}

fn description(config: &Config, Server { version, .. }: &Server) -> String {
    match &config.database.url {
        Some(_) => format!("PostgreSQL {version} at database.url"),
        None => format!(
            "embedded PostgreSQL {version} in {}",
            config.local_postgres.directory.display()
        ),
    }
}

/// Returns true if the keys of all administrators have expired, or will within a day. An error is reported by another check.
async fn is_administration_ending(config: &Config, options: &ConnectOptions) -> bool {
    let database = Database::new(options.clone(), &config.database);
    let is_ending = database.run(db::administration::is_ending).await;
    database.close().await;
    is_ending.is_ok_and(|it| it)
}

fn schema(
    Conditions {
        schema, pending, ..
    }: Conditions,
) -> Result<String, Error> {
    if !schema.is_empty() {
        return Err(schema.join(". Also, ").into());
    }
    match pending.len() {
        0 => Ok("up to date".to_owned()),
        count => Err(format!(
            "pending migrations: {count}; serve applies them at startup, or run: pet-inventory migrate"
        )
        .into()),
    }
}

/// Reads all images. Fails with a list of those that are missing or damaged.
async fn stored_images(config: &Config, session: &Session) -> Result<String, Error> {
    let blobs = BlobStore::new(config)?;
    let database = Database::new(session.options.clone(), &config.database);
    let bar = progress(ProgressBar::no_length(), "{spinner} {msg}")?;
    let found = async {
        let mut snapshot = Backup::begin(database.connect_without_timeout().await?).await?;
        stored_images::find_faults(&mut snapshot, &blobs, &bar).await
    };
    let found = found.await;
    bar.finish_and_clear();
    database.close().await;
    let (number, faults) = found?;
    if faults.is_empty() {
        return Ok(format!("{number}, all of them intact"));
    }
    let lines = faults
        .iter()
        .map(|fault| format!("\n{:23}{}", "", fault.text));
    Err(format!(
        "{} of {number} are missing or damaged; copy their files back from a backup of the image store, or delete the \
         images:{}",
        faults.len(),
        lines.collect::<String>()
    )
    .into())
}

/// Checks that the image store is that of the database, if one is given. Writes a few bytes to it, and deletes them.
async fn images(config: &Config, session: Option<&Session>) -> Result<String, Error> {
    const NEXT: &str =
        "check the folder or bucket of images.url: its rights, its free space and its credentials";
    let blobs = BlobStore::new(config)?;
    blobs.refuse_root()?;
    if let Some(session) = session {
        let database = Database::new(session.options.clone(), &config.database);
        let is_lost = orphaned_blobs::is_lost(&database, &blobs).await;
        let owner = orphaned_blobs::find_owner(&database, &blobs).await;
        database.close().await;
        if is_lost? {
            return Err(orphaned_blobs::LOST.into());
        }
        let owner = owner.map_err(|error| format!("{error}; {NEXT}"))?;
        if owner.is_some_and(|(marker, owner)| !owner.matches(&marker.owner)) {
            return Err(orphaned_blobs::CONFLICT.into());
        }
    }
    let written = async {
        let mut upload = blobs.upload().await?;
        upload.write(Bytes::from_static(b"check")).await?;
        let key = upload.finish().await?;
        blobs.delete(&[key]).await
    };
    let written = written.await;
    written.map_err(|error| format!("{error}; {NEXT}"))?;
    Ok(match &config.images.url {
        Some(url) => format!("writable at {url}"),
        None => "writable in local_postgres.directory".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_patroni_are_compared_by_their_numbers() {
        for old in ["3.0.2", "4.0.7", "4.1.4", "4.1", "3.10.12"] {
            assert!(is_old(old), "{old}");
        }
        for new in ["4.1.5", "4.1.10", "4.2", "5.0.0"] {
            assert!(!is_old(new), "{new}");
        }
    }
}
