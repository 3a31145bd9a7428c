//! What a command needs of the database: the configured one, or our own, joined or started for the
//! moment.

use super::Error;
use crate::{
    app::search_path,
    config::Config,
    db::{self, Database},
    local_postgres::{self, Joined},
};

/// A database in reach for the length of a command.
pub struct Session {
    options: db::ConnectOptions,
    local: Option<Joined>,
}

impl Session {
    /// Reaches the database that the configuration names, else the one of our own in its folder.
    pub async fn open(config: &Config) -> Result<Self, Error> {
        if let Some(url) = &config.database.url {
            return Ok(Self {
                options: db::parse_url(url)?,
                local: None,
            });
        }
        let directory = &config.local_postgres.directory;
        let local = local_postgres::join_or_start(directory, &search_path(config)).await?;
        Ok(Self {
            options: local.connect_options(),
            local: Some(local),
        })
    }

    /// How to reach it.
    pub const fn options(&self) -> &db::ConnectOptions {
        &self.options
    }

    /// Reaches it with an up-to-date schema.
    pub async fn database(&self, config: &Config) -> Result<Database, Error> {
        Box::pin(db::migrations::apply(&self.options)).await?;
        let database = Database::new(self.options.clone(), &config.database);
        database.look_for_pooler().await?;
        Ok(database)
    }

    /// Stops what was started for the moment.
    pub async fn close(self) -> Result<(), Error> {
        if let Some(local) = self.local {
            local.stop().await?;
        }
        Ok(())
    }
}

/// Runs `work` on the configured database, and leaves nothing behind whatever becomes of it.
pub async fn with_database<T>(
    config: &Config,
    work: impl AsyncFnOnce(&Database) -> Result<T, Error>,
) -> Result<T, Error> {
    let session = Session::open(config).await?;
    let result = async {
        let database = session.database(config).await?;
        let result = work(&database).await;
        database.close().await;
        result
    }
    .await;
    session.close().await?;
    result
}

/// A connection of its own for work that takes long.
pub async fn unhurried(database: &Database) -> Result<db::Connection, Error> {
    if database.is_behind_pooler() {
        return Err(
            "a pooler lies between: name a database URL that leads past it to PostgreSQL".into(),
        );
    }
    Ok(database.unhurried().await?)
}
