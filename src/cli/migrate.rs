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
    db::{self, migrations::Schema},
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
        let mut databases = vec![(Schema::Store, session.options.clone())];
        if let Some(url) = &config.limits.database_url {
            databases.push((Schema::Limits, db::parse_url(url)?));
        }
        let migrated = self.migrate(&databases, config.database.pooler, json);
        let result = migrated.await;
        session.close().await?;
        result
    }

    async fn migrate(
        &self,
        databases: &[(Schema, db::ConnectOptions)],
        pooler: Pooler,
        json: bool,
    ) -> Result<ExitCode, Error> {
        let mut pending = Vec::new();
        for (schema, options) in databases {
            pending.extend(db::migrations::pending(*schema, options, pooler).await?);
            if !self.check {
                db::migrations::apply(*schema, options, pooler).await?;
            }
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
