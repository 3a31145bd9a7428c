//! `migrate`: applies or lists the pending migrations.

use std::process::ExitCode;

use clap::Args;

use super::{
    output::{Error, say},
    session::Session,
};
use crate::{
    config::{Config, Pooler},
    db,
};

#[derive(Debug, Args)]
pub struct Migrate {
    /// Change nothing; list the pending migrations, and exit with 1 if there are any
    #[arg(long)]
    check: bool,
}

impl Migrate {
    pub async fn run(self, config: &Config) -> Result<ExitCode, Error> {
        let session = Session::open(config).await?;
        let result = self.migrate(&session.options, config.database.pooler).await;
        session.close().await?;
        result
    }

    async fn migrate(
        &self,
        options: &db::ConnectOptions,
        pooler: Pooler,
    ) -> Result<ExitCode, Error> {
        let pending = db::migrations::pending(options, pooler).await?;
        if !self.check {
            db::migrations::apply(options, pooler).await?;
        }
        let verb = if self.check { "missing" } else { "applied" };
        for migration in &pending {
            say(format_args!(
                "{verb} {:04} {}",
                migration.version, migration.description
            ))?;
        }
        if pending.is_empty() {
            say("the schema is up to date")?;
        } else if self.check {
            eprintln!("apply the missing migrations with: pet-inventory migrate");
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }
}
