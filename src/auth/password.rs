//! Hashes and verifies passwords with argon2id. A hash takes 19 MiB and about 20 ms of one core.
//!
//! Invariants:
//! - A fixed number of hashes run at once, on blocking threads, so that other requests keep their cores.
//! - With more than [`MAX_WAITING`] requests waiting, [`Passwords::hash`] and [`Passwords::verify`] fail at once.
//! - A hash is not started after its request was cancelled.
//! - Verification takes equally long with and without a stored hash.

use std::sync::Arc;

use argon2::{
    Algorithm, Argon2, Params, PasswordHasher, PasswordVerifier, Version,
    password_hash::{self, phc},
};
use futures_util::{StreamExt, TryStreamExt, stream};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::Semaphore;
use tracing::Instrument;

use crate::{domain::user::Password, trace};

/// OWASP's first recommendation for argon2id: 19 MiB, two passes, one lane.
const PARAMS: Params = Params::DEFAULT;
/// Prefix of hashes with these parameters.
const CURRENT: &str = "$argon2id$v=19$m=19456,t=2,p=1$";
/// Maximum number of waiting requests: about one second of work.
const MAX_WAITING: usize = 50;

/// Failure to hash or verify a password.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Too many requests are waiting.
    #[error("too many requests wait for a password hash")]
    Busy,
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
    CutOff(#[from] tokio::task::JoinError),
}

/// Password hasher. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Passwords {
    turns: Arc<Semaphore>,
    /// Permits for the requests that run or wait.
    places: Arc<Semaphore>,
    at_once: usize,
}

/// Result of a verification.
#[derive(Debug)]
pub enum Verdict {
    /// The password is wrong, or there is no stored hash.
    Wrong,
    /// The password is right.
    Right {
        /// New hash, if the stored one has outdated parameters.
        renewed: Option<SecretString>,
    },
}

impl Passwords {
    /// Creates a hasher that runs at most `at_once` hashes at a time.
    #[must_use]
    pub fn new(at_once: usize) -> Self {
        let at_once = at_once.max(1);
        Self {
            turns: Arc::new(Semaphore::new(at_once)),
            places: Arc::new(Semaphore::new(at_once + MAX_WAITING)),
            at_once,
        }
    }

    /// Returns the number of passwords being hashed or waiting, without those of [`Passwords::hash_all`].
    #[must_use]
    pub fn in_progress(&self) -> usize {
        (self.at_once + MAX_WAITING).saturating_sub(self.places.available_permits())
    }

    /// Hashes a password for storage.
    pub async fn hash(&self, password: Password) -> Result<SecretString, Error> {
        let _place = self.places.try_acquire().map_err(|_| Error::Busy)?;
        self.at_my_turn(move || hash(&password)).await
    }

    /// Hashes many passwords, in order. Each waits for its own permit, so that other requests make progress.
    pub async fn hash_all(
        &self,
        passwords: Vec<Option<Password>>,
    ) -> Result<Vec<Option<SecretString>>, Error> {
        let hashes = passwords.into_iter().map(|password| async move {
            match password {
                Some(password) => self.at_my_turn(move || hash(&password)).await.map(Some),
                None => Ok(None),
            }
        });
        stream::iter(hashes)
            .buffered(self.at_once)
            .try_collect()
            .await
    }

    /// Verifies a password. Without a stored hash, the result is [`Verdict::Wrong`] after the same time.
    pub async fn verify(
        &self,
        password: Password,
        stored: Option<SecretString>,
    ) -> Result<Verdict, Error> {
        let _place = self.places.try_acquire().map_err(|_| Error::Busy)?;
        self.at_my_turn(move || verify(&password, stored.as_ref()))
            .await
    }

    /// Runs `work` on a blocking thread. `work` keeps its permit until it ends, even if this future is dropped.
    async fn at_my_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let span = tracing::debug_span!(target: trace::TARGET, "hash a password");
        let done = async {
            // The semaphore is never closed.
            let turn = Arc::clone(&self.turns).acquire_owned().await.ok();
            tokio::task::spawn_blocking(move || {
                let done = work();
                drop(turn);
                done
            })
            .await?
        };
        done.instrument(span).await
    }
}

fn argon2() -> Argon2<'static> {
    Argon2::new(Algorithm::Argon2id, Version::V0x13, PARAMS)
}

fn hash(password: &Password) -> Result<SecretString, Error> {
    let mut salt = [0; 16];
    getrandom::fill(&mut salt)?;
    let hash: phc::PasswordHash =
        argon2().hash_password_with_salt(password.expose().as_bytes(), &salt)?;
    Ok(hash.to_string().into())
}

fn verify(password: &Password, stored: Option<&SecretString>) -> Result<Verdict, Error> {
    let Some(stored) = stored else {
        hash(password)?;
        return Ok(Verdict::Wrong);
    };
    let parsed = phc::PasswordHash::new(stored.expose_secret())?;
    match argon2().verify_password(password.expose().as_bytes(), &parsed) {
        Err(password_hash::Error::PasswordInvalid) => Ok(Verdict::Wrong),
        Err(error) => Err(error.into()),
        Ok(()) if stored.expose_secret().starts_with(CURRENT) => {
            Ok(Verdict::Right { renewed: None })
        }
        Ok(()) => Ok(Verdict::Right {
            renewed: Some(hash(password)?),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn password(text: &str) -> Password {
        Password::new(text.to_owned()).expect("a password")
    }

    #[tokio::test]
    async fn a_hash_knows_its_password_and_no_other() {
        let passwords = Passwords::new(1);
        for text in ["correct horse", "ä\0\n🦊 ñß¡", &"🦊".repeat(128)] {
            let hash = passwords.hash(password(text)).await.expect("a hash");
            assert!(hash.expose_secret().starts_with(CURRENT));
            assert!(!format!("{hash:?}").contains("argon2"));
            let verify = async |text: &str| {
                let verdict = passwords.verify(password(text), Some(hash.clone())).await;
                matches!(
                    verdict.expect("a verdict"),
                    Verdict::Right { renewed: None }
                )
            };
            assert!(verify(text).await);
            assert!(!verify("another password").await);
            assert!(!verify(&format!("{} ", "x".repeat(20))).await);
        }
        let nobody = passwords.verify(password("correct horse"), None).await;
        assert!(matches!(nobody, Ok(Verdict::Wrong)));
    }

    #[tokio::test]
    async fn a_hash_of_other_parameters_is_renewed_once_its_password_is_known() {
        let passwords = Passwords::new(1);
        let weak = Params::new(64, 1, 1, None).expect("parameters");
        let weak: phc::PasswordHash = Argon2::new(Algorithm::Argon2id, Version::V0x13, weak)
            .hash_password_with_salt(b"correct horse", b"a salt of 16 byt")
            .expect("a hash");
        let weak = SecretString::from(weak.to_string());
        let verdict = passwords
            .verify(password("wrong horse"), Some(weak.clone()))
            .await;
        assert!(matches!(verdict, Ok(Verdict::Wrong)));
        let verdict = passwords
            .verify(password("correct horse"), Some(weak))
            .await;
        let Ok(Verdict::Right {
            renewed: Some(hash),
        }) = verdict
        else {
            panic!("{verdict:?}")
        };
        let verdict = passwords
            .verify(password("correct horse"), Some(hash))
            .await;
        assert!(matches!(verdict, Ok(Verdict::Right { renewed: None })));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_nobody_waits_for_is_not_begun() {
        let passwords = Passwords::new(1);
        let list = passwords.hash_all(vec![Some(password("correct horse")); 500]);
        let begun = async {
            while passwords.turns.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            _ = list => panic!("500 hashes are no time"),
            () = begun => {}
        }
        passwords
            .hash(password("correct horse"))
            .await
            .expect("a hash");
        assert_eq!(
            passwords.turns.available_permits(),
            1,
            "somebody waits for a turn"
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_crowd_is_told_at_once_and_a_list_lets_others_through() {
        let passwords = Passwords::new(1);
        let list = vec![Some(password("correct horse")); 8];
        let crowd = (0..3 * MAX_WAITING).map(|_| passwords.verify(password("correct horse"), None));
        let crowd = async {
            let mut told = 0;
            for verdict in futures_util::future::join_all(crowd).await {
                match verdict {
                    Ok(Verdict::Wrong) => {}
                    Err(Error::Busy) => told += 1,
                    other => panic!("{other:?}"),
                }
            }
            told
        };
        let (list, told) = tokio::join!(passwords.hash_all(list), crowd);
        assert_eq!(list.expect("hashes").len(), 8);
        assert_eq!(told, 2 * MAX_WAITING - 1);
    }
}
