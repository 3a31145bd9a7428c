//! First keys of a database: `BOOTSTRAP_API_KEY`, and demo keys on an embedded PostgreSQL.
//!
//! Invariant: neither has the format of generated keys, so a process looks them up in the database only if it admits
//! them explicitly; elsewhere their rows have no effect.

use super::error::Error;
use crate::{
    auth::secret::Secret,
    db::{self, Connection, Database, credentials::NewCredential},
    domain::{Invalid, caller::Scopes, change::Initiator, plan::Plan},
};

/// Demo keys and their plans, for evaluation without setup.
pub const DEMO_KEYS: [(&str, Plan); 3] = [
    ("special-key", Plan::Enterprise),
    ("pro-key", Plan::Pro),
    ("free-key", Plan::Free),
];

/// Stores the demo keys that are not stored yet, and returns all of them.
pub async fn store_demo_keys(database: &Database) -> Result<Vec<Secret>, Error> {
    let keys = database.transact(async |transaction| {
        let mut keys = Vec::new();
        for (key, plan) in DEMO_KEYS {
            let key = Secret::custom(key);
            let scopes = match plan {
                Plan::Enterprise => Scopes::all(),
                Plan::Free | Plan::Pro => Scopes::of_new_callers(),
            };
            let name = format!("demo-{plan}");
            store(transaction, &name, plan, scopes, &key).await?;
            keys.push(key);
        }
        Ok::<_, db::Error>(keys)
    });
    Ok(keys.await?)
}

/// Stores the first key of a database without keys, for a caller `bootstrap` with all scopes, and returns it.
pub async fn bootstrap(database: &Database, key: &str) -> Result<Secret, Error> {
    const REASON: Invalid = Invalid::because(
        "must be 32 to 256 visible ASCII characters; for an empty database, generate one with: openssl rand -hex 32; for \
         one that has keys, unset it and create a key with: pet-inventory keys create --caller bootstrap",
    );
    if !(32..=256).contains(&key.len()) || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::BootstrapKey(REASON));
    }
    let key = Secret::custom(key);
    let stored = database.transact(async |transaction| {
        let (plan, scopes) = (Plan::Enterprise, Scopes::all());
        Ok::<_, db::Error>(
            !db::credentials::any_stored(transaction).await?
                && store(transaction, "bootstrap", plan, scopes, &key).await?,
        )
    });
    if stored.await? {
        tracing::info!("stored BOOTSTRAP_API_KEY as the first key, of caller bootstrap");
    }
    Ok(key)
}

/// Stores a caller, and a key that has all of its scopes and does not expire. Returns false if the caller is stored.
async fn store(
    transaction: &mut Connection,
    name: &str,
    plan: Plan,
    scopes: Scopes,
    key: &Secret,
) -> Result<bool, db::Error> {
    let operator = Initiator::operator();
    let name = name
        .parse()
        .map_err(|reason| db::Error::Corrupt(format!("caller name {name} {reason}")))?;
    let Some(caller) = db::callers::insert(transaction, &name, plan, scopes, &operator).await?
    else {
        return Ok(false);
    };
    let credential = NewCredential {
        caller,
        hash: key.hash(),
        // The first characters of a chosen key make the rest easier to guess.
        hint: String::new(),
        client_id: None,
        name: None,
        scopes: None,
        expires_at: None,
    };
    db::credentials::insert(transaction, credential, &operator).await?;
    Ok(true)
}
