//! Creation, rotation, listing and revocation of credentials, for `keys`, `clients` and `sessions`.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    output::{Error, narrow_table, print},
    session::{with_connection, with_database},
};
use crate::{
    auth::secret::{NewSecret, Secret},
    config::Config,
    db::{
        self, Administration, Connection,
        credentials::{
            CredentialKind, CredentialRecord, NewCredential, ReplacedKey, RotateOutcome,
        },
    },
    domain::{
        caller::{CallerId, CallerName, KeyName, Scope, Scopes},
        change::Initiator,
        clock::rfc3339,
        id::CredentialId,
        plan::Plan,
    },
};

/// Owner and scopes of a new credential.
#[derive(Debug, Args)]
pub struct Owner {
    /// Caller that owns the credential; created if it does not exist
    #[arg(long, value_name = "NAME")]
    caller: CallerName,
    /// Plan of a new caller: free, pro or enterprise
    #[arg(long)]
    plan: Option<Plan>,
    /// Scope of the credential, can be repeated: read:pets, write:pets, read:orders, write:orders, read:changes, admin; default: all
    /// scopes of the caller. A new caller gets the same scopes, by default all but admin and read:changes
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<Scope>,
}

/// New credential; its secret is shown only once.
#[derive(Serialize)]
pub struct Created {
    pub caller: String,
    pub plan: &'static str,
    pub id: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    #[serde(rename = "expiresAt", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced: Option<Replaced>,
    #[serde(skip)]
    pub secret: Secret,
}

/// API key that a new one replaces.
#[derive(Serialize)]
pub struct Replaced {
    pub id: i64,
    #[serde(rename = "expiresAt")]
    pub expires_at: String,
}

impl Created {
    /// Formats it as JSON, with the secret as the member `name`.
    pub fn to_json(&self, name: &str) -> Result<Value, Error> {
        #[derive(Serialize)]
        struct Json<'a> {
            #[serde(flatten)]
            created: &'a Created,
            #[serde(flatten)]
            secret: BTreeMap<&'a str, &'a str>,
        }
        let secret = BTreeMap::from([(name, self.secret.expose())]);
        let created = self;
        Ok(serde_json::to_value(Json { created, secret })?)
    }
}

impl Owner {
    /// Creates a credential, and its caller if it does not exist.
    pub async fn create(
        self,
        config: &Config,
        kind: CredentialKind,
        key_name: Option<KeyName>,
        expires_at: Option<DateTime<Utc>>,
    ) -> Result<Created, Error> {
        let new = NewSecret::generate(kind)?;
        let scopes: Option<Scopes> =
            (!self.scopes.is_empty()).then(|| self.scopes.iter().copied().collect());
        let created = with_database(config, async |database| {
            let created = database.transact(async |transaction: &mut Connection| {
                let (caller, plan) = self.caller(transaction, scopes).await?;
                let credential = NewCredential {
                    name: key_name.clone(),
                    ..new.credential(caller, scopes, expires_at)
                };
                let initiator = Initiator::operator();
                let id = db::credentials::insert(transaction, credential, &initiator).await?;
                Ok::<_, Error>((id.ok_or(NOT_UNIQUE)?, plan))
            });
            created.await
        });
        let (id, plan) = created.await?;
        Ok(Created {
            caller: self.caller.to_string(),
            plan: plan.as_str(),
            id: id.get(),
            client_id: new.client_id,
            expires_at: expires_at.map(rfc3339),
            replaced: None,
            secret: new.secret,
        })
    }

    /// Creates the caller, or checks that the options match the existing one.
    async fn caller(
        &self,
        transaction: &mut Connection,
        scopes: Option<Scopes>,
    ) -> Result<(CallerId, Plan), Error> {
        let name = &self.caller;
        if let Some(known) = db::callers::find(&mut *transaction, name).await? {
            let kept = db::callers::keep(&mut *transaction, known.id).await?;
            let known =
                kept.ok_or("another command has just deleted this caller; run the command again")?;
            let plan = known.plan;
            if let Some(wanted) = self.plan.filter(|wanted| *wanted != plan) {
                return Err(format!(
                    "caller {name} exists and is on plan {plan}; omit --plan to keep it, or first change it with: \
                     pet-inventory callers set-plan '{name}' {wanted}"
                )
                .into());
            }
            if let Some(wanted) = scopes.filter(|scopes| !known.scopes.contains_all(*scopes)) {
                return Err(format!(
                    "caller {name} exists and has only these scopes: {}. Choose --scope from them, or omit it for \
                     all of them. To give the caller the other scopes too, first run: \
                     pet-inventory callers set-scopes '{name}' {}",
                    known.scopes,
                    known.scopes.iter().chain(wanted.iter()).collect::<Scopes>()
                )
                .into());
            }
            return Ok((known.id, plan));
        }
        let name = &CallerName::new(name.as_str()).map_err(|reason| {
            format!("the name of a new caller {reason}; pass another --caller")
        })?;
        let plan = self
            .plan
            .ok_or("a new caller needs a plan; add --plan free, --plan pro or --plan enterprise")?;
        let scopes = scopes.unwrap_or_else(Scopes::of_new_callers);
        let id = db::callers::insert(transaction, name, plan, scopes, &Initiator::operator())
            .await?
            .ok_or("another command has just created this caller; run the command again")?;
        Ok((id, plan))
    }
}

const NOT_UNIQUE: &str = "failed to generate a unique secret; run the command again";

/// Expiry of a key that replaces another.
#[derive(Debug, Clone, Copy)]
pub enum Expiry {
    /// It has the lifetime of the other.
    AsBefore,
    /// It does not expire.
    Never,
    /// It expires then.
    At(DateTime<Utc>),
}

/// Creates an API key with the caller, the name and the scopes of another, which expires at `until`.
pub async fn rotate(
    config: &Config,
    id: CredentialId,
    until: DateTime<Utc>,
    expiry: Expiry,
    force: bool,
) -> Result<Created, Error> {
    let secret = NewSecret::generate(CredentialKind::ApiKey)?;
    let rotated = with_database(config, async |database| {
        let rotated = database.transact(async |transaction: &mut Connection| {
            let new = |old: &ReplacedKey| {
                let replacement = secret.replacement(old, None);
                let expires_at = match expiry {
                    Expiry::AsBefore => replacement.expires_at,
                    Expiry::Never => None,
                    Expiry::At(time) => Some(time),
                };
                NewCredential {
                    expires_at,
                    ..replacement
                }
            };
            let initiator = Initiator::operator();
            match db::credentials::rotate(transaction, id, until, new, &initiator).await? {
                RotateOutcome::Rotated(old, new, administration) => {
                    keep_administrator(administration, force)?;
                    Ok((old, new))
                }
                RotateOutcome::NotFound => Err(Error::from(format!(
                    "key {id} does not exist, or is revoked or expired; see: pet-inventory keys list"
                ))),
                RotateOutcome::AlreadyRotated => Err(format!(
                    "key {id} has been replaced by another; see: pet-inventory keys list"
                )
                .into()),
                RotateOutcome::NotUnique => Err(NOT_UNIQUE.into()),
            }
        });
        rotated.await
    });
    let (old, new) = rotated.await?;
    Ok(Created {
        caller: old.caller_name,
        plan: old.plan.as_str(),
        id: new.id.get(),
        client_id: None,
        expires_at: new.expires_at.map(rfc3339),
        replaced: Some(Replaced {
            id: id.get(),
            expires_at: rfc3339(old.expires_at),
        }),
        secret: secret.secret,
    })
}

/// Fails if a command takes away the last administrator, unless `force` is set.
pub fn keep_administrator(administration: Administration, force: bool) -> Result<(), Error> {
    if administration == Administration::Kept || force {
        return Ok(());
    }
    Err(
        "this would leave no administrator: a caller that is enabled, and has the scope admin and a key or client that stays valid \
         for a day. Create another first: pet-inventory keys create --caller administrator --plan enterprise --scope admin; or \
         repeat the command with --force"
            .into(),
    )
}

pub fn unknown_caller(name: &CallerName) -> Error {
    format!("no caller {name}; see: pet-inventory callers list").into()
}

/// Prints the credentials of a kind, or those of one caller, without their secrets.
pub async fn list(
    config: &Config,
    kind: CredentialKind,
    caller: Option<&CallerName>,
    json: bool,
) -> Result<(), Error> {
    let records = with_connection(config, async |connection| {
        let caller = match caller {
            Some(name) => {
                let found = db::callers::find(connection, name).await?;
                Some(found.ok_or_else(|| unknown_caller(name))?.id)
            }
            None => None,
        };
        Ok(db::credentials::list(connection, kind, caller, None, usize::MAX).await?)
    })
    .await?;
    #[expect(
        clippy::disallowed_methods,
        reason = "keys are valid by the time of the system"
    )]
    let now = Utc::now();
    let is_key = kind == CredentialKind::ApiKey;
    let heading = if is_key {
        &[
            "ID",
            "SECRET",
            "NAME",
            "CALLER",
            "LAST USED",
            "VALID",
            "SCOPES",
        ][..]
    } else {
        &["ID", "CLIENT ID", "CALLER", "VALID", "SCOPES"]
    };
    let rows = records.iter().map(|record| to_row(record, is_key, now));
    print(json, narrow_table(heading, rows), &json!(records))
}

/// Revokes a credential of a kind. `what` is the kind's name in messages, such as "key".
pub async fn revoke(
    config: &Config,
    kind: CredentialKind,
    (what, id): (&str, CredentialId),
    force: bool,
    json: bool,
) -> Result<(), Error> {
    with_database(config, async |database| {
        let revoked = database.transact(async |transaction: &mut Connection| {
            let initiator = Initiator::operator();
            let revoked = db::credentials::revoke(transaction, kind, id, &initiator).await?;
            let administration = revoked.ok_or_else(|| {
                format!("{what} {id} does not exist or is already revoked; see: pet-inventory {what}s list")
            })?;
            keep_administrator(administration, force)
        });
        revoked.await
    })
    .await?;
    let value = json!({"id": id.get(), "revoked": true});
    print(json, format_args!("{what} {id} is revoked"), &value)
}

/// Formats a time with [`rfc3339`], and none as a dash.
pub fn time_or_dash(moment: Option<DateTime<Utc>>) -> String {
    moment.map_or_else(|| "-".to_owned(), rfc3339)
}

fn to_row(record: &CredentialRecord, is_key: bool, now: DateTime<Utc>) -> Vec<String> {
    let secret = match (&record.client_id, record.hint.as_str()) {
        (Some(client_id), _) => client_id.clone(),
        (None, "") => "(chosen)".to_owned(),
        (None, hint) => format!("{hint}…"),
    };
    let valid = match (record.revoked_at, record.expires_at) {
        (Some(time), _) => format!("revoked {}", rfc3339(time)),
        (None, Some(time)) if time <= now => format!("expired {}", rfc3339(time)),
        (None, Some(time)) => format!("until {}", rfc3339(time)),
        (None, None) => "without end".to_owned(),
    };
    let (id, caller, scopes) = (
        record.id.to_string(),
        record.caller.clone(),
        record.scopes.to_string(),
    );
    if !is_key {
        return vec![id, secret, caller, valid, scopes];
    }
    let name = record.name.clone().unwrap_or_else(|| "-".to_owned());
    let last_used = time_or_dash(record.last_used_at);
    vec![id, secret, name, caller, last_used, valid, scopes]
}
