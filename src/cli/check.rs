//! `check`: checks configuration, database, schema and image store, suggests fixes, and warns of insecure settings.

use std::process::ExitCode;

use bytes::Bytes;
use serde_json::{Value, json};
use url::Url;

use super::{
    output::{Error, print},
    session::Session,
};
use crate::{
    blob_store::BlobStore,
    config::{Config, CorsOrigins},
    db::{self, Database, ServerVersion},
    domain::{address::is_loopback, caller::Scopes},
    maintenance::orphaned_blobs,
};

/// Prints one line per part and one per warning; the exit code is a failure if any check fails.
pub async fn run(config: &Config, json: bool) -> Result<ExitCode, Error> {
    // `Config` is always valid.
    let valid = Ok("valid; see: pet-inventory config show".to_owned());
    let mut results = vec![("configuration", valid)];
    match Session::open(config).await {
        Ok(session) => {
            results.push(("database", database(config, &session).await));
            let schema = schema(config, &session).await;
            let current = schema.is_ok().then_some(&session);
            let images = images(config, current).await;
            results.extend([("schema", schema), ("images", images)]);
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
    let warnings = warnings(config).into_iter();
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
    for name in &config.environment.ignored {
        let warning = format!("{name} has no effect; unset it, or see: pet-inventory config show");
        warnings.push(("configuration", warning));
    }
    let cors = cors_warnings(config).into_iter();
    warnings.extend(cors.map(|warning| ("configuration", warning)));
    let url = config.database.url.as_ref();
    let options = url.and_then(|url| db::parse_url(url).ok());
    if let Some(mode) = options.as_ref().and_then(db::weak_tls_mode) {
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

/// Returns the warnings of origins that may be insecure.
pub fn cors_warnings(config: &Config) -> Vec<String> {
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

async fn database(config: &Config, session: &Session) -> Result<String, Error> {
    const NEXT: &str = "check database.url (DATABASE_URL), the network and PostgreSQL's log";
    let database = Database::new(session.options.clone(), &config.database);
    let version = database.run(db::server_version).await;
    let pooler = database.check_pooler().await;
    database.close().await;
    let version = version.map_err(|error| format!("{error}: {NEXT}"))?;
    if let Some(correction) = pooler.map_err(|error| format!("{error}: {NEXT}"))? {
        return Err(correction.into());
    }
    let oldest = ServerVersion::OLDEST_SUPPORTED;
    if version < oldest {
        return Err(
            format!("PostgreSQL {version} is too old: upgrade to {oldest} or newer").into(),
        );
    }
    Ok(match &config.database.url {
        Some(_) => format!("PostgreSQL {version} at database.url"),
        None => format!(
            "embedded PostgreSQL {version} in {}",
            config.local_postgres.directory.display()
        ),
    })
}

async fn schema(config: &Config, session: &Session) -> Result<String, Error> {
    let pooler = config.database.pooler;
    match db::migrations::pending(&session.options, pooler).await?.len() {
        0 => Ok("up to date".to_owned()),
        count => Err(format!(
            "pending migrations: {count}; serve applies them at startup, or run: pet-inventory migrate"
        )
        .into()),
    }
}

/// Writes a few bytes to the image store, and deletes them. Checks the owner of the store if a database is given.
async fn images(config: &Config, session: Option<&Session>) -> Result<String, Error> {
    let blobs = BlobStore::new(config)?;
    blobs.refuse_root()?;
    let mut upload = blobs.upload().await?;
    upload.write(Bytes::from_static(b"check")).await?;
    let key = upload.finish().await?;
    blobs.delete(&[key]).await?;
    if let Some(session) = session {
        let database = Database::new(session.options.clone(), &config.database);
        let found = orphaned_blobs::find_owner(&database, &blobs).await;
        database.close().await;
        if found?.is_some_and(|(marker, owner)| !owner.matches(&marker.owner)) {
            return Err(orphaned_blobs::CONFLICT.into());
        }
    }
    Ok(match &config.images.url {
        Some(url) => format!("writable at {url}"),
        None => "writable in local_postgres.directory".to_owned(),
    })
}
