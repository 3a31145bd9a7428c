//! `callers`: lists callers, shows their use and sets their plans.

use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    output::{Error, say, table},
    session::with_connection,
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
        let plans = &config.plans;
        match self {
            Self::List { json } => {
                let callers = with_connection(config, async |connection| {
                    Ok(db::callers::list(connection).await?)
                })
                .await?;
                let rows = callers.iter();
                say(if json {
                    let callers: Value = rows.map(|caller| to_json(caller, plans)).collect();
                    callers.to_string()
                } else {
                    table(HEADING, rows.map(|caller| to_row(caller, plans)))
                })
            }
            Self::Show { name, json } => {
                let (used, caller) = with_connection(config, async |connection| {
                    let found = db::callers::find(connection, &name).await?;
                    let caller = found.ok_or_else(|| unknown(&name))?;
                    let key = CallerKey::Caller(caller.id).to_string();
                    Ok((db::limits::used_today(connection, &key).await?, caller))
                })
                .await?;
                if json {
                    let mut json = to_json(&caller, plans);
                    // Includes requests that replicas leased but have not used, for about a second.
                    json["usedToday"] = json!(used);
                    return say(json);
                }
                say(format_args!(
                    "Name        {}\nPlan        {}\nScopes      {}\nCredentials {}\nUsed today  {used} of {}",
                    caller.name,
                    caller.plan,
                    caller.scopes,
                    caller.live_credentials,
                    or_unlimited(plans.limits(caller.plan).per_day)
                ))
            }
            Self::SetPlan { name, plan } => {
                let is_found = with_connection(config, async |connection| {
                    Ok(db::callers::set_plan(connection, &name, plan).await?)
                })
                .await?;
                if !is_found {
                    return Err(unknown(&name));
                }
                say(format_args!("caller {name} is on plan {plan}"))
            }
        }
    }
}

fn unknown(name: &CallerName) -> Error {
    format!("no caller {name}; see: pet-inventory callers list").into()
}

fn or_unlimited(limit: Option<u32>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
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

const HEADING: [&str; 6] = [
    "NAME",
    "PLAN",
    "PER MINUTE",
    "PER DAY",
    "CREDENTIALS",
    "SCOPES",
];

fn to_row(caller: &CallerRecord, plans: &Plans) -> [String; 6] {
    let limits = plans.limits(caller.plan);
    [
        caller.name.clone(),
        caller.plan.to_string(),
        or_unlimited(limits.per_minute),
        or_unlimited(limits.per_day),
        caller.live_credentials.to_string(),
        caller.scopes.to_string(),
    ]
}
