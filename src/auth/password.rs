//! Passwords, hashed with argon2id.
//!
//! A hash is work on purpose: 19 MiB and some 20 ms of a core. Invariants: no more of them are made at once
//! than this room was built for, on threads of their own, whoever asks and however often, so that the rest of
//! the service keeps its cores; whoever waits too far behind is told so at once; a hash that nobody waits
//! for any more is not begun. Verifying takes as long whether or not there is anything to verify against.

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

/// OWASP's first choice for argon2id: 19 MiB, two passes, one lane.
const PARAMS: Params = Params::DEFAULT;
/// How the hashes of these parameters begin.
const CURRENT: &str = "$argon2id$v=19$m=19456,t=2,p=1$";
/// How many may wait for a turn: about a second's worth.
const MAX_WAITING: usize = 50;

/// Why a password was neither hashed nor verified.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Too many wait already.
    #[error("too many passwords wait to be hashed")]
    Busy,
    /// The operating system has no random numbers.
    #[error("no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// Our bug, or a stored hash that is none.
    #[error("a password cannot be hashed: {0}")]
    Hash(#[from] phc::Error),
    /// Our bug.
    #[error("a password cannot be hashed: {0}")]
    Argon2(#[from] password_hash::Error),
    /// The process is stopping.
    #[error("a hash was cut off: {0}")]
    CutOff(#[from] tokio::task::JoinError),
}

/// Hashes passwords. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Passwords {
    turns: Arc<Semaphore>,
    /// Turns and places to wait for one.
    places: Arc<Semaphore>,
    at_once: usize,
}

/// Whether a password is the right one.
#[derive(Debug)]
pub enum Verdict {
    /// It is not, or there is none.
    Wrong,
    /// It is.
    Right {
        /// Its hash by the parameters of today, where the stored one is of others.
        renewed: Option<SecretString>,
    },
}

impl Passwords {
    /// So many hashes at once.
    #[must_use]
    pub fn new(at_once: usize) -> Self {
        let at_once = at_once.max(1);
        Self {
            turns: Arc::new(Semaphore::new(at_once)),
            places: Arc::new(Semaphore::new(at_once + MAX_WAITING)),
            at_once,
        }
    }

    /// Passwords that are being hashed, or wait for their turn.
    #[must_use]
    pub fn in_progress(&self) -> usize {
        (self.at_once + MAX_WAITING).saturating_sub(self.places.available_permits())
    }

    /// The hash of a password, to be stored.
    pub async fn hash(&self, password: Password) -> Result<SecretString, Error> {
        let _place = self.places.try_acquire().map_err(|_| Error::Busy)?;
        self.at_my_turn(move || hash(&password)).await
    }

    /// The hashes of many passwords, in their order. Each waits for its own turn, so that others get on.
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

    /// Whether a password is the one that was hashed; with nothing to compare with, it is wrong after the
    /// same time.
    pub async fn verify(
        &self,
        password: Password,
        stored: Option<SecretString>,
    ) -> Result<Verdict, Error> {
        let _place = self.places.try_acquire().map_err(|_| Error::Busy)?;
        self.at_my_turn(move || verify(&password, stored.as_ref()))
            .await
    }

    /// Does `work` on a thread for blocking work when there is a turn. The turn goes with the work: dropping
    /// this future does not let another begin beside it.
    async fn at_my_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let span = tracing::debug_span!(target: trace::TARGET, "hash a password");
        let done = async {
            // Nobody closes it.
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
