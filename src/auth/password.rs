//! Hashes and verifies passwords with argon2id. A hash takes 19 MiB and about 20 ms of one core.
//!
//! Invariants:
//! - A fixed number of hashes run at once, on blocking threads, so that other requests keep their cores. The API bounds
//!   the number of requests that wait, in total and by client address.
//! - A hash is not started after its request was cancelled.
//! - Verification of a wrong password computes one hash for each of its [`Password::candidates`], with a stored hash and
//!   without. It takes equally long, unless the stored hash has outdated parameters.

use argon2::{
    Algorithm, Argon2, Params, PasswordHasher, PasswordVerifier, Version,
    password_hash::{self, phc},
};
use futures_util::{StreamExt, TryStreamExt, stream};
use secrecy::{ExposeSecret, SecretString};
use tracing::Instrument;

use crate::{
    domain::{address::AddressKey, caller::CallerKey, user::Password},
    trace_context,
    turns::Turns,
};

/// OWASP's first recommendation for argon2id: 19 MiB, two passes, one lane.
const PARAMS: Params = Params::DEFAULT;
/// Prefix of hashes with these parameters.
const CURRENT: &str = "$argon2id$v=19$m=19456,t=2,p=1$";

/// Failure to hash or verify a password.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system returned no random numbers.
    #[error("failed to generate random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// The stored hash is malformed, or this module has a bug.
    #[error("failed to hash or verify a password: {0}")]
    Hash(#[from] phc::Error),
    /// This module has a bug.
    #[error("failed to hash or verify a password: {0}")]
    Argon2(#[from] password_hash::Error),
    /// The process is stopping.
    #[error("password hashing was interrupted: {0}")]
    Interrupted(#[from] tokio::task::JoinError),
}

/// Password hasher. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Passwords {
    /// Permits for hashes in progress.
    running: Turns,
    concurrency: usize,
}

/// Result of a verification.
#[derive(Debug)]
pub enum Verification {
    /// The password is wrong, or there is no stored hash.
    Mismatch,
    /// The password is right.
    Match {
        /// New hash, if the stored one has outdated parameters, or is of a text that was not prepared.
        renewed: Option<SecretString>,
    },
}

impl Passwords {
    /// Creates a hasher that runs at most `concurrency` hashes at a time.
    pub fn new(concurrency: usize) -> Self {
        let concurrency = concurrency.max(1);
        Self {
            running: Turns::new(concurrency),
            concurrency,
        }
    }

    /// Hashes a password for storage, in the turn of a client address.
    pub async fn hash(
        &self,
        client: Option<AddressKey>,
        password: Password,
    ) -> Result<SecretString, Error> {
        self.run_in_turn(client, move || hash(password.expose()))
            .await
    }

    /// Hashes many passwords, in order. Each waits for its own turn.
    pub async fn hash_all(
        &self,
        client: Option<AddressKey>,
        passwords: Vec<Option<Password>>,
    ) -> Result<Vec<Option<SecretString>>, Error> {
        let hashes = passwords.into_iter().map(|password| async move {
            let Some(password) = password else {
                return Ok(None);
            };
            let hash = self
                .run_in_turn(client, move || hash(password.expose()))
                .await?;
            Ok(Some(hash))
        });
        stream::iter(hashes)
            .buffered(self.concurrency)
            .try_collect()
            .await
    }

    /// Verifies a password. Without a stored hash, the result is [`Verification::Mismatch`] after the same time.
    pub async fn verify(
        &self,
        client: Option<AddressKey>,
        password: Password,
        stored: Option<SecretString>,
    ) -> Result<Verification, Error> {
        self.run_in_turn(client, move || verify(&password, stored.as_ref()))
            .await
    }

    /// Runs `work` on a blocking thread, in the turn of a client address: one that sends many requests at a time delays another by one
    /// hash. `work` keeps its permit until it ends, even if this future is dropped.
    async fn run_in_turn<T: Send + 'static>(
        &self,
        client: Option<AddressKey>,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let span = tracing::debug_span!(target: trace_context::TARGET, "hash a password");
        let result = async {
            let permit = self.running.acquire(CallerKey::Anonymous(client)).await;
            tokio::task::spawn_blocking(move || {
                let result = work();
                drop(permit);
                result
            })
            .await?
        };
        result.instrument(span).await
    }
}

fn argon2() -> Argon2<'static> {
    Argon2::new(Algorithm::Argon2id, Version::V0x13, PARAMS)
}

fn hash(password: &str) -> Result<SecretString, Error> {
    let mut salt = [0; 16];
    getrandom::fill(&mut salt)?;
    let hash: phc::PasswordHash = argon2().hash_password_with_salt(password.as_bytes(), &salt)?;
    Ok(hash.to_string().into())
}

fn verify(password: &Password, stored: Option<&SecretString>) -> Result<Verification, Error> {
    let Some(stored) = stored else {
        for candidate in password.candidates() {
            hash(candidate)?;
        }
        return Ok(Verification::Mismatch);
    };
    let parsed = phc::PasswordHash::new(stored.expose_secret())?;
    for candidate in password.candidates() {
        match argon2().verify_password(candidate.as_bytes(), &parsed) {
            Err(password_hash::Error::PasswordInvalid) => {}
            Err(error) => return Err(error.into()),
            Ok(()) => {
                let prepared = password.expose();
                let is_outdated =
                    candidate != prepared || !stored.expose_secret().starts_with(CURRENT);
                let renewed = is_outdated.then(|| hash(prepared)).transpose()?;
                return Ok(Verification::Match { renewed });
            }
        }
    }
    Ok(Verification::Mismatch)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::{
        Verification::{Match, Mismatch},
        *,
    };

    fn password(text: &str) -> Password {
        Password::new(text).expect("a password")
    }

    async fn verify(text: &str, hash: &SecretString) -> Verification {
        let passwords = Passwords::new(1);
        let result = passwords.verify(None, password(text), Some(hash.clone()));
        result.await.expect("a result")
    }

    #[tokio::test]
    async fn a_hash_matches_its_password_only() {
        let passwords = Passwords::new(1);
        for text in ["correct horse", "ä 🦊 ñß¡!", &"🦊".repeat(128)] {
            let hash = passwords.hash(None, password(text)).await.expect("a hash");
            assert!(hash.expose_secret().starts_with(CURRENT));
            assert!(!format!("{hash:?}").contains("argon2"));
            assert!(matches!(verify(text, &hash).await, Match { renewed: None }));
            for wrong in ["another password", "xxxxxxxxxxxxxxxxxxxx "] {
                assert!(matches!(verify(wrong, &hash).await, Mismatch));
            }
        }
        let without_hash = passwords
            .verify(None, password("correct horse"), None)
            .await;
        assert!(matches!(without_hash, Ok(Mismatch)));
    }

    #[tokio::test]
    async fn a_hash_of_other_parameters_is_renewed_once_its_password_is_known() {
        let weak = Params::new(64, 1, 1, None).expect("parameters");
        let weak: phc::PasswordHash = Argon2::new(Algorithm::Argon2id, Version::V0x13, weak)
            .hash_password_with_salt(b"correct horse", b"a salt of 16 byt")
            .expect("a hash");
        let weak = SecretString::from(weak.to_string());
        assert!(matches!(verify("wrong horse", &weak).await, Mismatch));
        let result = verify("correct horse", &weak).await;
        let Match {
            renewed: Some(hash),
        } = result
        else {
            panic!("{result:?}")
        };
        let result = verify("correct horse", &hash).await;
        assert!(matches!(result, Match { renewed: None }));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn cancelled_hashes_are_not_started() {
        let passwords = Passwords::new(1);
        let list = passwords.hash_all(None, vec![Some(password("correct horse")); 500]);
        let started = async {
            while passwords.running.free() > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            _ = list => panic!("500 hashes took no time"),
            () = started => {}
        }
        let hash = passwords.hash(None, password("correct horse")).await;
        hash.expect("a hash");
        let free = passwords.running.free();
        assert_eq!(free, 1, "a cancelled hash waits for a permit");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn list_lets_others_through() {
        let passwords = Passwords::new(1);
        let mut list = pin!(passwords.hash_all(None, vec![Some(password("correct horse")); 8]));
        let other = passwords.hash(None, password("correct horse"));
        let other = tokio::select! {
            biased;
            _ = &mut list => panic!("the list came first"),
            other = other => other,
        };
        other.expect("a hash");
        assert_eq!(list.await.expect("hashes").len(), 8);
    }
}
