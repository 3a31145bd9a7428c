//! Demo keys on an embedded PostgreSQL, for evaluation without setup.
//!
//! Invariant: demo keys do not have the format of generated keys, so a process looks them up in the database only if it
//! admits them explicitly; elsewhere their rows have no effect.

use crate::{
    auth::secret::Secret,
    db::{
        self, Connection, Database,
        credentials::{self, NewCredential},
    },
    domain::{
        caller::{CallerId, CallerName, Scopes},
        plan::Plan,
    },
};

/// Demo keys and their plans.
pub const DEMO_KEYS: [(&str, Plan); 3] = [
    ("special-key", Plan::Enterprise),
    ("pro-key", Plan::Pro),
    ("free-key", Plan::Free),
];

/// Stores the demo keys that are not stored yet, and returns all of them.
pub async fn store_keys(database: &Database) -> Result<Vec<Secret>, db::Error> {
    let mut transaction = database.begin().await?;
    let mut keys = Vec::new();
    for (key, plan) in DEMO_KEYS {
        let key = Secret::custom(key);
        let scopes = match plan {
            Plan::Enterprise => Scopes::all(),
            Plan::Free | Plan::Pro => Scopes::all_but_admin(),
        };
        let name: CallerName = format!("demo-{plan}")
            .parse()
            .map_err(|reason| db::Error::Corrupt(format!("name of a demo caller {reason}")))?;
        if let Some(caller) = db::callers::insert(&mut *transaction, &name, plan, scopes).await? {
            store(&mut transaction, caller, &key).await?;
        }
        keys.push(key);
    }
    transaction.commit().await?;
    Ok(keys)
}

/// Stores a key that has all scopes of its caller and does not expire.
pub async fn store(
    connection: &mut Connection,
    caller: CallerId,
    key: &Secret,
) -> Result<(), db::Error> {
    credentials::insert(
        connection,
        NewCredential {
            caller,
            hash: key.hash(),
            hint: key.hint(),
            client_id: None,
            scopes: None,
            expires_at: None,
        },
    )
    .await?;
    Ok(())
}
