//! Creation, listing and revocation of credentials, for `keys`, `clients` and `sessions`.

use chrono::{DateTime, SecondsFormat, Utc};
use clap::Args;
use serde_json::{Value, json};

use super::{
    output::{Error, say},
    session::with_database,
    table::table,
};
use crate::{
    auth::secret::{self, Secret},
    config::Config,
    db::{
        self, Connection, Database,
        callers::CallerRecord,
        credentials::{CredentialKind, CredentialRecord, NewCredential},
    },
    domain::{
        caller::{CallerId, CallerName, Scope, Scopes},
        plan::Plan,
    },
};

/// Owner and scopes of a new credential.
#[derive(Debug, Clone, Args)]
pub struct Owner {
    /// Caller that owns the credential; created if it does not exist
    #[arg(long, value_name = "NAME")]
    caller: CallerName,
    /// Plan of a new caller: free, pro or enterprise
    #[arg(long)]
    plan: Option<Plan>,
    /// Scope of the credential, can be repeated: read:pets, write:pets, read:orders, write:orders, admin; default: all
    /// scopes of the caller. A new caller gets the same scopes, by default all but admin
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<Scope>,
}

/// New credential; its secret is shown only once.
pub struct Made {
    pub caller: CallerName,
    pub plan: Plan,
    pub id: i64,
    pub client_id: Option<String>,
    pub secret: Secret,
}

/// Creates a credential, and its caller if it does not exist.
pub async fn make(
    database: &Database,
    owner: Owner,
    kind: secret::Kind,
    expires_at: Option<DateTime<Utc>>,
) -> Result<Made, Error> {
    let scopes: Option<Scopes> =
        (!owner.scopes.is_empty()).then(|| owner.scopes.iter().copied().collect());
    let mut transaction = database.begin().await?;
    let (caller, plan) = caller(&mut transaction, &owner, scopes).await?;
    let secret = Secret::generate(kind)?;
    let client_id = match kind {
        secret::Kind::ClientSecret => Some(secret::generate_client_id()?),
        secret::Kind::ApiKey | secret::Kind::AccessToken | secret::Kind::Session => None,
    };
    let credential = NewCredential {
        caller,
        hash: secret.hash(),
        hint: secret.hint(),
        client_id: client_id.clone(),
        scopes,
        expires_at,
    };
    let id = db::credentials::insert(&mut *transaction, credential)
        .await?
        .ok_or("failed to generate a unique secret; run the command again")?;
    transaction.commit().await?;
    Ok(Made {
        caller: owner.caller,
        plan,
        id,
        client_id,
        secret,
    })
}

async fn caller(
    transaction: &mut Connection,
    owner: &Owner,
    scopes: Option<Scopes>,
) -> Result<(CallerId, Plan), Error> {
    if let Some(known) = db::callers::find(&mut *transaction, &owner.caller).await? {
        agree(owner, scopes, &known)?;
        return Ok((known.id, known.plan));
    }
    if owner.caller.is_of_a_user() {
        return Err("names that start with user: are reserved; pass another --caller".into());
    }
    let plan = owner
        .plan
        .ok_or("a new caller needs a plan; add --plan free, --plan pro or --plan enterprise")?;
    let scopes = scopes.unwrap_or_else(Scopes::all_but_admin);
    let id = db::callers::insert(&mut *transaction, &owner.caller, plan, scopes)
        .await?
        .ok_or("another command has just created this caller; run the command again")?;
    Ok((id, plan))
}

/// Checks that the options match the plan and scopes of an existing caller.
fn agree(owner: &Owner, scopes: Option<Scopes>, known: &CallerRecord) -> Result<(), Error> {
    let (name, plan) = (&owner.caller, known.plan);
    if owner.plan.is_some_and(|wanted| wanted != plan) {
        return Err(format!(
            "caller {name} is on plan {plan} already; change it with: \
             pet-inventory callers set-plan {name} PLAN"
        )
        .into());
    }
    if scopes.is_some_and(|scopes| !known.scopes.contains_all(scopes)) {
        let scopes = known.scopes;
        return Err(format!(
            "caller {name} has only these scopes: {scopes}; omit --scope, or choose from them"
        )
        .into());
    }
    Ok(())
}

/// Prints the credentials of a kind, without their secrets.
pub async fn list(config: &Config, kind: CredentialKind, json: bool) -> Result<(), Error> {
    let records = with_database(config, async |database| {
        Ok(db::credentials::list(database.pool(), kind).await?)
    })
    .await?;
    say(if json {
        list_json(&records)
    } else {
        list_text(&records)
    })?;
    Ok(())
}

/// Revokes a credential of a kind. `what` is the kind's name in messages, such as "key".
pub async fn revoke(
    config: &Config,
    kind: CredentialKind,
    what: &str,
    id: i64,
) -> Result<(), Error> {
    let revoked = with_database(config, async |database| {
        let mut transaction = database.begin().await?;
        let revoked = db::credentials::revoke(&mut transaction, kind, id).await?;
        transaction.commit().await?;
        Ok(revoked)
    })
    .await?;
    if !revoked {
        return Err(format!(
            "{what} {id} does not exist or is already revoked; see: pet-inventory {what}s list"
        )
        .into());
    }
    say(format_args!("{what} {id} is revoked"))?;
    Ok(())
}

fn time(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

fn list_json(records: &[CredentialRecord]) -> String {
    let records: Vec<_> = records
        .iter()
        .map(|record| {
            let mut json = json!({
                "id": record.id,
                "hint": record.hint,
                "caller": record.caller,
                "plan": record.plan.as_str(),
                "scopes": record.scopes.iter().map(Scope::as_str).collect::<Vec<_>>(),
                "createdAt": time(record.created_at),
                "expiresAt": record.expires_at.map(time),
                "revokedAt": record.revoked_at.map(time),
            });
            if let Some(client_id) = &record.client_id {
                json["client_id"] = json!(client_id);
            }
            json
        })
        .collect();
    Value::from(records).to_string()
}

fn list_text(records: &[CredentialRecord]) -> String {
    let heading = [
        "ID", "NAME", "CALLER", "PLAN", "CREATED", "EXPIRES", "REVOKED", "SCOPES",
    ];
    let mut rows = vec![heading.map(str::to_owned)];
    rows.extend(records.iter().map(|record| {
        let or_dash = |moment: Option<DateTime<Utc>>| moment.map_or_else(|| "-".to_owned(), time);
        let name = record.client_id.clone();
        [
            record.id.to_string(),
            name.unwrap_or_else(|| format!("{}…", record.hint)),
            record.caller.clone(),
            record.plan.to_string(),
            time(record.created_at),
            or_dash(record.expires_at),
            or_dash(record.revoked_at),
            record.scopes.to_string(),
        ]
    }));
    table(&rows)
}
