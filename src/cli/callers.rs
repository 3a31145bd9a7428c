//! `callers`: lists callers, shows their use, sets their plans and scopes, disables and deletes them.

use clap::Subcommand;
use serde_json::json;

use super::{
    credentials::{keep_administrator, unknown_caller},
    output::{Error, print, table},
    session::{with_connection, with_database},
};
use crate::{
    config::{Config, Plans},
    db::{
        self, Administration, Connection,
        callers::{CallerChange, CallerRecord},
    },
    domain::{
        caller::{CallerId, CallerKey, CallerName, Scope, Scopes},
        change::Initiator,
        plan::Plan,
        user::Username,
    },
};

#[derive(Debug, Subcommand)]
pub enum Callers {
    /// List all callers
    ///
    /// With --json, an array of {"id":…,"name":…,"plan":…,"scopes":[…],"disabled":…,"credentials":…,"createdAt":…};
    /// those of users with "username"
    List,
    /// Show a caller and its requests of the UTC day
    ///
    /// With --json, an object as of: pet-inventory callers list, with "usedToday"
    Show {
        /// Name of the caller
        name: CallerName,
    },
    /// Show the requests of a caller on each of the last 30 UTC days, as bars
    ///
    /// With --json, an array of {"day":…,"admitted":…,"refused":…}
    Usage {
        /// Name of the caller
        name: CallerName,
    },
    /// Set the plan of a caller
    ///
    /// With --json: {"name":…,"plan":…}
    SetPlan {
        /// Name of the caller
        name: CallerName,
        /// New plan: free, pro or enterprise
        plan: Plan,
    },
    /// Replace the scopes of a caller, within a second
    ///
    /// They limit those of its keys, clients and tokens. To refuse all of them, use: pet-inventory callers disable. With
    /// --json: {"name":…,"scopes":[…]}
    SetScopes {
        /// Name of the caller
        name: CallerName,
        /// New scopes, all of them: read:pets, write:pets, read:orders, write:orders, read:changes, admin
        #[arg(required = true, value_name = "SCOPE")]
        scopes: Vec<Scope>,
        /// Do so even if no administrator is left
        #[arg(long)]
        force: bool,
    },
    /// Refuse all credentials of a caller, and an issuer's tokens for it, within a second
    ///
    /// Its requests get 401 until it is enabled again. A user cannot log in, and a client gets no tokens. With --json:
    /// {"name":…,"disabled":true}
    Disable {
        /// Name of the caller, as listed by: pet-inventory callers list
        name: CallerName,
        /// Do so even if no administrator is left
        #[arg(long)]
        force: bool,
    },
    /// Accept the credentials of a disabled caller again
    ///
    /// With --json: {"name":…,"disabled":false}
    Enable {
        /// Name of the caller
        name: CallerName,
    },
    /// Delete a caller with all of its credentials, permanently, within a second
    ///
    /// The account of a user is deleted too. Orders are kept. The caller of an issuer's subject can only be disabled,
    /// because the next token for it would create it again. With --json: {"name":…,"deleted":true}
    Delete {
        /// Name of the caller
        name: CallerName,
        /// Do so even if no administrator is left
        #[arg(long)]
        force: bool,
    },
}

impl Callers {
    pub async fn run(self, config: &Config, json: bool) -> Result<(), Error> {
        let plans = &config.plans;
        match self {
            Self::List => {
                let callers = with_connection(config, async |connection| {
                    Ok(db::callers::list(connection, "", None, usize::MAX).await?)
                })
                .await?;
                let rows = callers.iter().map(|caller| to_row(caller, plans));
                print(json, table(&HEADING, rows), &json!(callers))
            }
            Self::Show { name } => {
                let (used, caller) = with_caller(config, &name, async |connection, id| {
                    let key = CallerKey::Caller(id).to_string();
                    db::limits::used_today(connection, &key).await
                })
                .await?;
                let mut value = json!(caller);
                // Includes requests that replicas leased but have not used, for about a second.
                value["usedToday"] = json!(used);
                let text = format!(
                    "Name        {}\nUsername    {}\nPlan        {}\nScopes      {}\nDisabled    {}\nCredentials {}\nUsed today  {used} of {}",
                    caller.name,
                    username(&caller),
                    caller.plan,
                    caller.scopes,
                    if caller.disabled { "yes" } else { "no" },
                    caller.credentials,
                    or_unlimited(plans.limits(caller.plan).per_day)
                );
                print(json, text, &value)
            }
            Self::Usage { name } => usage(config, &name, json).await,
            Self::SetPlan { name, plan } => {
                let new = CallerChange {
                    plan: Some(plan),
                    ..CallerChange::default()
                };
                change(config, &name, new, true).await?;
                let value = json!({"name": name, "plan": plan});
                print(
                    json,
                    format_args!("caller {name} is on plan {plan}"),
                    &value,
                )
            }
            Self::SetScopes {
                name,
                scopes,
                force,
            } => {
                let scopes: Scopes = scopes.into_iter().collect();
                let new = CallerChange {
                    scopes: Some(scopes),
                    ..CallerChange::default()
                };
                change(config, &name, new, force).await?;
                let value = json!({"name": name, "scopes": scopes});
                let text = format!("caller {name} has the scopes: {scopes}");
                print(json, text, &value)
            }
            Self::Disable { name, force } => {
                set_disabled(config, &name, true, force).await?;
                let text = format!(
                    "caller {name} is disabled; to accept its credentials again: pet-inventory callers enable '{name}'"
                );
                print(
                    json,
                    text,
                    &json!({"name": name.as_str(), "disabled": true}),
                )
            }
            Self::Enable { name } => {
                set_disabled(config, &name, false, true).await?;
                let value = json!({"name": name.as_str(), "disabled": false});
                print(json, format_args!("caller {name} is enabled"), &value)
            }
            Self::Delete { name, force } => delete(config, &name, force, json).await,
        }
    }
}

/// Runs `work` with the id of a caller. Returns its result, and the caller.
async fn with_caller<T>(
    config: &Config,
    name: &CallerName,
    work: impl AsyncFnOnce(&mut Connection, CallerId) -> Result<T, db::Error>,
) -> Result<(T, CallerRecord), Error> {
    with_connection(config, async |connection| {
        let caller = db::callers::find(connection, name).await?;
        let caller = caller.ok_or_else(|| unknown_caller(name))?;
        Ok((work(connection, caller.id).await?, caller))
    })
    .await
}

async fn usage(config: &Config, name: &CallerName, json: bool) -> Result<(), Error> {
    let (days, _) = with_caller(config, name, async |connection, id| {
        db::usage::of_caller(connection, id).await
    })
    .await?;
    let most = days.iter().map(|day| day.admitted + day.refused).max();
    let scale = |number: i64| {
        let width = number * BAR_WIDTH / most.unwrap_or_default().max(1);
        // A day with any request has a bar.
        usize::try_from(width.max(number.min(1))).unwrap_or_default()
    };
    let rows = days.iter().map(|day| {
        let (admitted, refused) = (scale(day.admitted), scale(day.refused));
        vec![
            day.day.to_string(),
            day.admitted.to_string(),
            day.refused.to_string(),
            format!("{}{}", "█".repeat(admitted), "░".repeat(refused)),
        ]
    });
    let heading = ["DAY", "ADMITTED", "REFUSED", "█ admitted  ░ refused"];
    print(json, table(&heading, rows), &json!(days))
}

/// Width of the bar of the busiest day.
const BAR_WIDTH: i64 = 40;

async fn set_disabled(
    config: &Config,
    name: &CallerName,
    is_disabled: bool,
    force: bool,
) -> Result<(), Error> {
    let new = CallerChange {
        is_disabled: Some(is_disabled),
        ..CallerChange::default()
    };
    change(config, name, new, force).await
}

async fn change(
    config: &Config,
    name: &CallerName,
    new: CallerChange,
    force: bool,
) -> Result<(), Error> {
    transact(config, name, force, async |transaction, id| {
        db::callers::change(transaction, id, new, &Initiator::operator()).await
    })
    .await
}

/// Does `work` on the caller with this name in a transaction. Fails if `work` returns `None`: there is no such caller; and, unless
/// `force` is set, if no administrator would be left.
async fn transact(
    config: &Config,
    name: &CallerName,
    force: bool,
    work: impl AsyncFn(&mut Connection, CallerId) -> Result<Option<Administration>, db::Error>,
) -> Result<(), Error> {
    with_database(config, async |database| {
        let done = database.transact(async |transaction: &mut Connection| {
            let caller = db::callers::find(transaction, name).await?;
            let caller = caller.ok_or_else(|| unknown_caller(name))?;
            let administration = work(transaction, caller.id).await?;
            keep_administrator(administration.ok_or_else(|| unknown_caller(name))?, force)
        });
        done.await
    })
    .await
}

async fn delete(config: &Config, name: &CallerName, force: bool, json: bool) -> Result<(), Error> {
    if name.is_of_an_issuer() {
        return Err(format!(
            "the next token of its issuer would create caller {name} again; \
             refuse its tokens with: pet-inventory callers disable '{name}'"
        )
        .into());
    }
    transact(config, name, force, async |transaction, id| {
        let deleted = db::callers::delete(transaction, id, &Initiator::operator()).await?;
        Ok(deleted.map(|deleted| deleted.administration))
    })
    .await?;
    let text = format!("caller {name} and its credentials are deleted");
    print(json, text, &json!({"name": name.as_str(), "deleted": true}))
}

fn or_unlimited(limit: Option<u32>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}

const HEADING: [&str; 8] = [
    "NAME",
    "USERNAME",
    "PLAN",
    "PER MINUTE",
    "PER DAY",
    "CREDENTIALS",
    "DISABLED",
    "SCOPES",
];

fn username(caller: &CallerRecord) -> &str {
    caller.username.as_ref().map_or("-", Username::as_str)
}

fn to_row(caller: &CallerRecord, plans: &Plans) -> Vec<String> {
    let limits = plans.limits(caller.plan);
    vec![
        caller.name.to_string(),
        username(caller).to_owned(),
        caller.plan.to_string(),
        or_unlimited(limits.per_minute),
        or_unlimited(limits.per_day),
        caller.credentials.to_string(),
        if caller.disabled { "yes" } else { "-" }.to_owned(),
        caller.scopes.to_string(),
    ]
}
