//! Database access of commands: at the configured URL, or on the embedded PostgreSQL.

use super::output::Error;
use crate::{
    app::search_path,
    config::{Config, Pooler},
    db::{self, Database},
    embedded_postgres::EmbeddedPostgres,
};

/// Access to the database for the duration of a command.
pub struct Session {
    pub options: db::ConnectOptions,
    embedded: Option<EmbeddedPostgres>,
}

impl Session {
    /// Uses the configured URL, or else joins the running embedded PostgreSQL or starts it.
    pub async fn open(config: &Config) -> Result<Self, Error> {
        let (options, embedded) = match &config.database.url {
            Some(url) => (
                db::DatabaseUrl::parse(url, config.database.password.as_ref())?.options,
                None,
            ),
            None => {
                let directory = &config.local_postgres.directory;
                let search = search_path(config);
                let embedded = EmbeddedPostgres::join_or_start(directory, &search).await?;
                (embedded.connect_options(), Some(embedded))
            }
        };
        Ok(Self { options, embedded })
    }

    /// Stops the embedded PostgreSQL if [`Session::open`] started it.
    pub async fn close(self) -> Result<(), Error> {
        if let Some(embedded) = self.embedded {
            embedded.stop().await?;
        }
        Ok(())
    }
}

/// Runs `work` on the configured database, after pending migrations, and closes the session even if `work` fails.
pub async fn with_database<T>(
    config: &Config,
    work: impl AsyncFnOnce(&Database) -> Result<T, Error>,
) -> Result<T, Error> {
    let session = Session::open(config).await?;
    let result = async {
        Box::pin(db::migrations::apply(
            &session.options,
            config.database.pooler,
        ))
        .await?;
        let database = Database::new(session.options.clone(), &config.database);
        let result = work(&database).await;
        database.close().await;
        result
    }
    .await;
    session.close().await?;
    result
}

/// Runs `work`, which needs no transaction, on a connection, like [`with_database`].
pub async fn with_connection<T>(
    config: &Config,
    work: impl AsyncFnOnce(&mut db::Connection) -> Result<T, Error>,
) -> Result<T, Error> {
    with_database(config, async |database| database.run(work).await).await
}

/// Opens a dedicated connection without timeouts, for long work. Fails behind a connection pooler.
pub async fn connect_without_timeout(
    config: &Config,
    database: &Database,
) -> Result<db::Connection, Error> {
    if config.database.pooler == Pooler::Transaction {
        return Err(
            "this command cannot use a connection pooler; set DATABASE_URL to PostgreSQL itself, \
             and PET_INVENTORY__DATABASE__POOLER=none"
                .into(),
        );
    }
    Ok(database.connect_without_timeout().await?)
}
