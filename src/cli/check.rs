//! `check`: checks configuration, database, schema and image store, and suggests fixes.

use std::process::ExitCode;

use bytes::Bytes;

use super::{
    output::{Error, say},
    session::Session,
};
use crate::{
    blob_store::{self, BlobStore},
    config::Config,
    db::{self, Database, ServerVersion},
};

/// Result of the check of one part.
struct Finding {
    part: &'static str,
    /// Status, or the problem and its fix.
    result: Result<String, String>,
}

/// Prints one line per part; the exit code is a failure if any check fails.
pub async fn run(config: &Config) -> Result<ExitCode, Error> {
    // `Config` is always valid.
    let mut findings = vec![Finding {
        part: "configuration",
        result: Ok("valid; see: pet-inventory config show".to_owned()),
    }];
    match Session::open(config).await {
        Ok(session) => {
            findings.push(Finding {
                part: "database",
                result: database(config, &session).await,
            });
            findings.push(Finding {
                part: "schema",
                result: schema(&session).await,
            });
            session.close().await?;
        }
        Err(error) => findings.push(Finding {
            part: "database",
            result: Err(error.to_string()),
        }),
    }
    findings.push(Finding {
        part: "images",
        result: images(config).await.map_err(|error| error.to_string()),
    });
    let mut code = ExitCode::SUCCESS;
    for Finding { part, result } in findings {
        match result {
            Ok(text) => say(format_args!("ok      {part:<14} {text}"))?,
            Err(text) => {
                say(format_args!("FAILED  {part:<14} {text}"))?;
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

async fn database(config: &Config, session: &Session) -> Result<String, String> {
    const NEXT: &str = "check database.url (DATABASE_URL), the network and PostgreSQL's log";
    let database = Database::new(session.options().clone(), &config.database);
    let version = database.server_version().await;
    database.close().await;
    let version = version.map_err(|error| format!("{error}: {NEXT}"))?;
    let oldest = ServerVersion::OLDEST_SUPPORTED;
    if version < oldest {
        return Err(format!(
            "PostgreSQL {version} is too old: upgrade to {oldest} or newer"
        ));
    }
    Ok(match &config.database.url {
        Some(_) => format!("PostgreSQL {version} at database.url"),
        None => format!(
            "embedded PostgreSQL {version} in {}",
            config.local_postgres.directory.display()
        ),
    })
}

async fn schema(session: &Session) -> Result<String, String> {
    let pending = db::migrations::pending(session.options())
        .await
        .map_err(|error| error.to_string())?;
    match pending.len() {
        0 => Ok("up to date".to_owned()),
        count => Err(format!(
            "pending migrations: {count}; serve applies them at startup, or run: pet-inventory migrate"
        )),
    }
}

/// Writes a few bytes to the image store, and deletes them.
async fn images(config: &Config) -> Result<String, blob_store::Error> {
    let blobs = BlobStore::new(config)?;
    let mut upload = blobs.upload().await?;
    upload.write(Bytes::from_static(b"check")).await?;
    let key = upload.finish().await?;
    blobs.delete(&[key]).await?;
    Ok(match &config.images.url {
        Some(url) => format!("writable at {url}"),
        None => "writable in local_postgres.directory".to_owned(),
    })
}
