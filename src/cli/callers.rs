//! `callers`: list them and put them on plans.

use clap::Subcommand;
use serde_json::json;

use super::{Error, session::with_database, table::table};
use crate::{
    config::{Config, Plans},
    db::{self, callers::CallerRecord},
    domain::{
        caller::{CallerName, Scope},
        plan::Plan,
    },
};

/// List callers and put them on plans.
#[derive(Debug, Subcommand)]
pub enum Callers {
    /// List all callers.
    List {
        /// Print a JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Put a caller on another plan.
    SetPlan {
        /// The caller.
        name: CallerName,
        /// free, pro or enterprise.
        plan: Plan,
    },
}

impl Callers {
    /// Runs the command.
    pub async fn run(self, config: &Config) -> Result<(), Error> {
        match self {
            Self::List { json } => {
                let callers = with_database(config, async |database| {
                    Ok(db::callers::list(database.pool()).await?)
                })
                .await?;
                let list = if json { list_json } else { list_text };
                println!("{}", list(&callers, &config.plans));
            }
            Self::SetPlan { name, plan } => {
                let found = with_database(config, async |database| {
                    Ok(db::callers::set_plan(database.pool(), &name, plan).await?)
                })
                .await?;
                if !found {
                    return Err(format!("no caller {name}; see: pet-inventory callers list").into());
                }
                println!("caller {name} is on plan {plan}");
            }
        }
        Ok(())
    }
}

fn list_json(callers: &[CallerRecord], plans: &Plans) -> String {
    let callers: Vec<_> = callers
        .iter()
        .map(|caller| {
            let limits = plans.limits(caller.plan);
            json!({
                "name": caller.name,
                "plan": caller.plan.as_str(),
                "perMinute": limits.per_minute,
                "perDay": limits.per_day,
                "scopes": caller.scopes.iter().map(Scope::as_str).collect::<Vec<_>>(),
                "liveKeys": caller.live_credentials,
            })
        })
        .collect();
    serde_json::Value::from(callers).to_string()
}

fn list_text(callers: &[CallerRecord], plans: &Plans) -> String {
    let heading = [
        "NAME",
        "PLAN",
        "PER MINUTE",
        "PER DAY",
        "LIVE KEYS",
        "SCOPES",
    ];
    let mut rows = vec![heading.map(str::to_owned)];
    rows.extend(callers.iter().map(|caller| {
        let limits = plans.limits(caller.plan);
        let limit =
            |limit: Option<u32>| limit.map_or_else(|| "unlimited".to_owned(), |n| n.to_string());
        [
            caller.name.clone(),
            caller.plan.to_string(),
            limit(limits.per_minute),
            limit(limits.per_day),
            caller.live_credentials.to_string(),
            caller.scopes.to_string(),
        ]
    }));
    table(&rows)
}
