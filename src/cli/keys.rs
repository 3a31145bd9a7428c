//! `keys`: make, list and revoke API keys.

use chrono::{DateTime, SecondsFormat, Utc};
use clap::Subcommand;
use serde_json::json;

use super::{Error, session::with_database, table::table};
use crate::{
    auth::api_key::ApiKey,
    config::Config,
    db::{
        self, Database,
        credentials::{CredentialRecord, NewCredential},
    },
    domain::{
        caller::{CallerId, CallerName, Scope, Scopes},
        plan::Plan,
    },
};

/// Make, list and revoke API keys.
#[derive(Debug, Subcommand)]
pub enum Keys {
    /// Make an API key, and its caller if there is none of that name. The key is shown once.
    Create {
        /// Whose key it is.
        #[arg(long, value_name = "NAME")]
        caller: CallerName,
        /// The plan of a new caller: free, pro or enterprise.
        #[arg(long)]
        plan: Option<Plan>,
        /// What the key may do, repeated: read:pets, write:pets, read:orders, write:orders, admin. A new
        /// caller may do the same; without it, all but admin. A key never may more than its caller.
        #[arg(long = "scope", value_name = "SCOPE")]
        scopes: Vec<Scope>,
        /// How long the key lasts, as in 90d or 12h; without it, until it is revoked.
        #[arg(long, value_name = "DURATION")]
        expires: Option<humantime::Duration>,
        /// Print {"caller":…,"plan":…,"id":…,"key":…} and nothing else.
        #[arg(long)]
        json: bool,
    },
    /// List all API keys, without their secrets.
    List {
        /// Print a JSON array.
        #[arg(long)]
        json: bool,
    },
    /// Revoke an API key, by its id in the list, for good.
    Revoke {
        /// The key's id.
        id: i64,
    },
}

impl Keys {
    /// Runs the command.
    pub async fn run(self, config: &Config) -> Result<(), Error> {
        match self {
            Self::Create {
                caller,
                plan,
                scopes,
                expires,
                json,
            } => {
                let expires_at = expires.map(expiry).transpose()?;
                let scopes = (!scopes.is_empty()).then(|| scopes.into_iter().collect());
                let request = Request {
                    caller,
                    plan,
                    scopes,
                    expires_at,
                };
                let made =
                    with_database(config, async |database| create(database, request).await).await?;
                println!("{}", if json { made.to_json() } else { made.to_text() });
            }
            Self::List { json } => {
                let keys = with_database(config, async |database| {
                    Ok(db::credentials::list_api_keys(database.pool()).await?)
                })
                .await?;
                println!(
                    "{}",
                    if json {
                        list_json(&keys)
                    } else {
                        list_text(&keys)
                    }
                );
            }
            Self::Revoke { id } => {
                let revoked = with_database(config, async |database| {
                    Ok(db::credentials::revoke_api_key(database.pool(), id).await?)
                })
                .await?;
                if !revoked {
                    return Err(format!(
                        "no key {id} that is not revoked yet; see: pet-inventory keys list"
                    )
                    .into());
                }
                println!("key {id} is revoked");
            }
        }
        Ok(())
    }
}

fn expiry(expires: humantime::Duration) -> Result<DateTime<Utc>, Error> {
    chrono::Duration::from_std(*expires)
        .ok()
        .and_then(|duration| now().checked_add_signed(duration))
        .ok_or_else(|| "--expires is too far away".into())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a command begins at the time it is called"
)]
fn now() -> DateTime<Utc> {
    Utc::now()
}

struct Request {
    caller: CallerName,
    plan: Option<Plan>,
    scopes: Option<Scopes>,
    expires_at: Option<DateTime<Utc>>,
}

struct Made {
    caller: CallerName,
    plan: Plan,
    id: i64,
    key: ApiKey,
}

async fn create(database: &Database, request: Request) -> Result<Made, Error> {
    let Request {
        caller,
        plan,
        scopes,
        expires_at,
    } = request;
    let mut transaction = database.begin().await?;
    let (caller_id, plan) = match db::callers::find(&mut *transaction, &caller).await? {
        Some(known) => {
            existing(&caller, plan, scopes, &known)?;
            (known.id, known.plan)
        }
        None => {
            let plan = plan.ok_or("--plan is needed for a new caller: free, pro or enterprise")?;
            let scopes = scopes.unwrap_or_else(all_but_admin);
            let id: CallerId = db::callers::insert(&mut *transaction, &caller, plan, scopes)
                .await?
                .ok_or("another command made a caller of that name right now; try again")?;
            (id, plan)
        }
    };
    let key = ApiKey::generate()?;
    let id = db::credentials::insert_api_key(
        &mut *transaction,
        NewCredential {
            caller: caller_id,
            hash: key.hash(),
            hint: key.hint(),
            scopes,
            expires_at,
        },
    )
    .await?
    .ok_or("the same key was made twice; try again")?;
    Database::commit(transaction).await?;
    Ok(Made {
        caller,
        plan,
        id,
        key,
    })
}

/// A key of a caller that is there already: the command line must not say otherwise of that caller.
fn existing(
    name: &CallerName,
    plan: Option<Plan>,
    scopes: Option<Scopes>,
    known: &db::callers::CallerRecord,
) -> Result<(), Error> {
    if plan.is_some_and(|plan| plan != known.plan) {
        let plan = known.plan;
        return Err(format!(
            "caller {name} is on plan {plan} already; change it with: pet-inventory callers set-plan {name} PLAN"
        )
        .into());
    }
    if scopes.is_some_and(|scopes| !known.scopes.contains_all(scopes)) {
        let scopes = known.scopes;
        return Err(
            format!("caller {name} may only: {scopes}; a key of its own may not do more").into(),
        );
    }
    Ok(())
}

fn all_but_admin() -> Scopes {
    Scope::ALL
        .into_iter()
        .filter(|scope| *scope != Scope::Admin)
        .collect()
}

impl Made {
    fn to_json(&self) -> String {
        json!({
            "caller": self.caller.as_str(),
            "plan": self.plan.as_str(),
            "id": self.id,
            "key": self.key.expose(),
        })
        .to_string()
    }

    fn to_text(&self) -> String {
        format!(
            "Caller  {} (plan {})\nKey id  {}\nKey     {}\n\nThis is the only time the key is shown. \
             Send it in the header api_key, or as Authorization: Bearer.",
            self.caller,
            self.plan,
            self.id,
            self.key.expose()
        )
    }
}

fn time(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

fn list_json(keys: &[CredentialRecord]) -> String {
    let keys: Vec<_> = keys
        .iter()
        .map(|key| {
            json!({
                "id": key.id,
                "hint": key.hint,
                "caller": key.caller,
                "plan": key.plan.as_str(),
                "scopes": key.scopes.iter().map(Scope::as_str).collect::<Vec<_>>(),
                "createdAt": time(key.created_at),
                "expiresAt": key.expires_at.map(time),
                "revokedAt": key.revoked_at.map(time),
            })
        })
        .collect();
    serde_json::Value::from(keys).to_string()
}

fn list_text(keys: &[CredentialRecord]) -> String {
    let heading = [
        "ID", "KEY", "CALLER", "PLAN", "CREATED", "EXPIRES", "REVOKED", "SCOPES",
    ];
    let mut rows = vec![heading.map(str::to_owned)];
    rows.extend(keys.iter().map(|key| {
        let or_dash = |moment: Option<DateTime<Utc>>| moment.map_or_else(|| "-".to_owned(), time);
        [
            key.id.to_string(),
            format!("{}…", key.hint),
            key.caller.clone(),
            key.plan.to_string(),
            time(key.created_at),
            or_dash(key.expires_at),
            or_dash(key.revoked_at),
            key.scopes.to_string(),
        ]
    }));
    table(&rows)
}
