//! `migrate`: applies or lists the pending migrations.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::{
    output::{Error, print},
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
    pub async fn run(self, config: &Config, json: bool) -> Result<ExitCode, Error> {
        let session = Session::open(config).await?;
        let migrated = self.migrate(&session.options, config.database.pooler, json);
        let result = migrated.await;
        session.close().await?;
        result
    }

    async fn migrate(
        &self,
        options: &db::ConnectOptions,
        pooler: Pooler,
        json: bool,
    ) -> Result<ExitCode, Error> {
        let pending = db::migrations::pending(options, pooler).await?;
        if !self.check {
            db::migrations::apply(options, pooler).await?;
        }
        let verb = if self.check { "missing" } else { "applied" };
        let lines = pending
            .iter()
            .map(|migration| format!("{verb} {:04} {}", migration.version, migration.description));
        let lines = match pending.len() {
            0 => "the schema is up to date".to_owned(),
            _ => lines.collect::<Vec<_>>().join("\n"),
        };
        let listed: Value = (pending.iter())
            .map(|it| json!({"version": it.version, "description": it.description}))
            .collect();
        print(json, lines, &json!({ verb: listed }))?;
        if self.check && !pending.is_empty() {
            eprintln!("apply the missing migrations with: pet-inventory migrate");
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }
}
