//! Generates and parses secrets: a prefix for the kind, 32 random characters and a checksum of 6 characters.
//!
//! People and secret scanners recognise the prefix. The checksum rejects mistyped and invented secrets without a
//! database lookup.
//!
//! Invariant: a [`Secret`] cannot be printed by accident: only [`Secret::expose`] returns its text.

use chrono::{DateTime, Utc};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use crate::{
    db::{
        SecretHash,
        credentials::{CredentialKind, NewCredential, ReplacedKey},
    },
    domain::{
        caller::{CallerId, KeyName, Scopes},
        webhook::WebhookSecret,
    },
};

const PREFIX_LENGTH: usize = 4;
const RANDOM_LENGTH: usize = 32;
const CHECKSUM_LENGTH: usize = 6;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

impl CredentialKind {
    /// Kinds that authenticate requests to the API.
    pub const BEARERS: [Self; 3] = [Self::ApiKey, Self::AccessToken, Self::Session];

    const fn prefix(self) -> &'static str {
        match self {
            Self::ApiKey => "pik_",
            Self::AccessToken => "pia_",
            Self::Session => "pis_",
            Self::ClientSecret => "pcs_",
        }
    }
}

/// Secret text.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// Generates a secret with 190 random bits from the operating system.
    pub fn generate(kind: CredentialKind) -> Result<Self, getrandom::Error> {
        let mut text = String::from(kind.prefix());
        push_random(&mut text, RANDOM_LENGTH)?;
        text.push_str(&checksum(&text));
        Ok(Self(text.into()))
    }

    /// Wraps a key that the operator chose, in any format.
    pub fn custom(text: &str) -> Self {
        Self(text.to_owned().into())
    }

    /// Parses a secret of one of these kinds. Returns `None` if its format or checksum is wrong.
    pub fn parse(text: &str, kinds: &[CredentialKind]) -> Option<Self> {
        let length = PREFIX_LENGTH + RANDOM_LENGTH;
        let known = kinds.iter().any(|kind| text.starts_with(kind.prefix()));
        if text.len() != length + CHECKSUM_LENGTH || !known {
            return None;
        }
        let (key, check) = text.split_at_checked(length)?;
        let is_valid = is_alphanumeric(&key[PREFIX_LENGTH..]) && check == checksum(key);
        is_valid.then(|| Self(text.to_owned().into()))
    }

    /// Returns the SHA-256 of the secret, which is the stored form.
    pub fn hash(&self) -> SecretHash {
        sha256(self.expose())
    }

    /// Returns the first 8 characters of a generated secret: people can tell secrets apart by them, but not guess the
    /// rest.
    pub fn hint(&self) -> String {
        self.expose().chars().take(PREFIX_LENGTH + 4).collect()
    }

    /// Returns the text of the secret.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

/// Secret of a new API key or OAuth client.
pub struct NewSecret {
    /// The secret, which is shown once.
    pub secret: Secret,
    /// Public identifier of a client.
    pub client_id: Option<String>,
}

impl NewSecret {
    /// Generates a key, or the secret of a client with its identifier.
    pub fn generate(kind: CredentialKind) -> Result<Self, getrandom::Error> {
        let client_id = match kind {
            CredentialKind::ClientSecret => Some(generate_client_id()?),
            CredentialKind::ApiKey | CredentialKind::AccessToken | CredentialKind::Session => None,
        };
        Ok(Self {
            secret: Secret::generate(kind)?,
            client_id,
        })
    }

    /// Returns what is stored.
    pub fn credential(
        &self,
        caller: CallerId,
        scopes: Option<Scopes>,
        expires_at: Option<DateTime<Utc>>,
    ) -> NewCredential {
        NewCredential {
            caller,
            hash: self.secret.hash(),
            hint: self.secret.hint(),
            client_id: self.client_id.clone(),
            name: None,
            scopes,
            expires_at,
        }
    }

    /// Returns what is stored of a key that replaces another, which has the same lifetime unless `expires_at` is given.
    pub fn replacement(
        &self,
        old: &ReplacedKey,
        expires_at: Option<DateTime<Utc>>,
    ) -> NewCredential {
        let expires_at = expires_at.or(old.same_expiry);
        NewCredential {
            name: old.name.clone().map(KeyName::from_stored),
            ..self.credential(old.caller, old.scopes, expires_at)
        }
    }
}

/// Generates the key of the signatures of a webhook, 256 random bits.
pub fn generate_webhook_secret() -> Result<WebhookSecret, getrandom::Error> {
    let mut key = [0; 32];
    getrandom::fill(&mut key)?;
    Ok(WebhookSecret(key))
}

const CLIENT_ID_PREFIX: &str = "pic_";
const CLIENT_ID_LENGTH: usize = 20;

/// Generates a client identifier, which is unique but not secret.
pub fn generate_client_id() -> Result<String, getrandom::Error> {
    let mut text = String::from(CLIENT_ID_PREFIX);
    push_random(&mut text, CLIENT_ID_LENGTH)?;
    Ok(text)
}

/// Returns true if the text has the format of a client identifier.
pub fn is_client_id(text: &str) -> bool {
    text.strip_prefix(CLIENT_ID_PREFIX)
        .is_some_and(|random| random.len() == CLIENT_ID_LENGTH && is_alphanumeric(random))
}

fn is_alphanumeric(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn push_random(text: &mut String, mut length: usize) -> Result<(), getrandom::Error> {
    let mut random = [0; RANDOM_LENGTH];
    while length > 0 {
        getrandom::fill(&mut random)?;
        // Two of the 64 values have no character. They are skipped, so that all characters are equally likely.
        let characters = random
            .iter()
            .filter_map(|byte| ALPHABET.get(usize::from(byte & 63)))
            .take(length);
        for character in characters {
            text.push(char::from(*character));
            length -= 1;
        }
    }
    Ok(())
}

/// Returns the SHA-256 of a secret's text.
pub fn sha256(secret: &str) -> SecretHash {
    Sha256::digest(secret.as_bytes()).into()
}

/// Returns the CRC-32 of `text` in base 62. It detects mistakes, not attacks: a forged one only causes a lookup that
/// finds nothing.
fn checksum(text: &str) -> String {
    let mut rest = crc32fast::hash(text.as_bytes()) as usize;
    let mut characters = [char::from(ALPHABET[0]); CHECKSUM_LENGTH];
    for character in characters.iter_mut().rev() {
        *character = char::from(ALPHABET[rest % ALPHABET.len()]);
        rest /= ALPHABET.len();
    }
    characters.iter().collect()
}
