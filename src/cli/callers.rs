//! `callers`: lists callers, shows their use and sets their plans.

use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    output::{Error, say},
    session::with_database,
    table::table,
};
use crate::{
    config::{Config, Plans},
    db::{self, callers::CallerRecord},
    domain::{
        caller::{CallerKey, CallerName, Scope},
        plan::Plan,
    },
};

#[derive(Debug, Subcommand)]
pub enum Callers {
    /// List all callers
    List {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Show a caller and its requests of the UTC day
    Show {
        /// Name of the caller
        name: CallerName,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Set the plan of a caller
    SetPlan {
        /// Name of the caller
        name: CallerName,
        /// New plan: free, pro or enterprise
        plan: Plan,
    },
}

impl Callers {
    pub async fn run(self, config: &Config) -> Result<(), Error> {
        match self {
            Self::List { json } => {
                let callers = with_database(config, async |database| {
                    Ok(db::callers::list(database.pool()).await?)
                })
                .await?;
                let list = if json { list_json } else { list_text };
                say(list(&callers, &config.plans))?;
            }
            Self::Show { name, json } => {
                let found = with_database(config, async |database| {
                    let pool = database.pool();
                    let Some(caller) = db::callers::find(pool, &name).await? else {
                        return Ok(None);
                    };
                    let key = CallerKey::Caller(caller.id).to_string();
                    Ok(Some((db::limits::used_today(pool, &key).await?, caller)))
                })
                .await?;
                let Some((used, caller)) = found else {
                    return Err(unknown(&name));
                };
                let show = if json { show_json } else { show_text };
                say(show(&caller, used, &config.plans))?;
            }
            Self::SetPlan { name, plan } => {
                let found = with_database(config, async |database| {
                    Ok(db::callers::set_plan(database.pool(), &name, plan).await?)
                })
                .await?;
                if !found {
                    return Err(unknown(&name));
                }
                say(format_args!("caller {name} is on plan {plan}"))?;
            }
        }
        Ok(())
    }
}

fn unknown(name: &CallerName) -> Error {
    format!("no caller {name}; see: pet-inventory callers list").into()
}

/// Formats a caller as JSON. `usedToday` includes requests that replicas leased but have not used, for about a second.
fn show_json(caller: &CallerRecord, used: u32, plans: &Plans) -> String {
    let mut json = to_json(caller, plans);
    json["usedToday"] = json!(used);
    json.to_string()
}

fn show_text(caller: &CallerRecord, used: u32, plans: &Plans) -> String {
    let per_day = plans.limits(caller.plan).per_day;
    format!(
        "Name        {}\nPlan        {}\nScopes      {}\nCredentials {}\nUsed today  {used} of {}",
        caller.name,
        caller.plan,
        caller.scopes,
        caller.live_credentials,
        limit(per_day)
    )
}

fn limit(limit: Option<u32>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}

fn list_json(callers: &[CallerRecord], plans: &Plans) -> String {
    let callers: Vec<_> = callers
        .iter()
        .map(|caller| to_json(caller, plans))
        .collect();
    Value::from(callers).to_string()
}

fn to_json(caller: &CallerRecord, plans: &Plans) -> Value {
    let limits = plans.limits(caller.plan);
    json!({
        "name": caller.name,
        "plan": caller.plan.as_str(),
        "perMinute": limits.per_minute,
        "perDay": limits.per_day,
        "scopes": caller.scopes.iter().map(Scope::as_str).collect::<Vec<_>>(),
        "credentials": caller.live_credentials,
    })
}

fn list_text(callers: &[CallerRecord], plans: &Plans) -> String {
    let heading = [
        "NAME",
        "PLAN",
        "PER MINUTE",
        "PER DAY",
        "CREDENTIALS",
        "SCOPES",
    ];
    let mut rows = vec![heading.map(str::to_owned)];
    rows.extend(callers.iter().map(|caller| {
        let limits = plans.limits(caller.plan);
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
