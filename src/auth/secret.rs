//! The secrets that we give out: a prefix that tells the kind, 32 random characters, and 6 that check the
//! rest.
//!
//! The prefix lets people and secret scanners recognise one; the checksum lets a mistyped or made-up one
//! be refused without asking the database. Invariant: a [`Secret`] cannot be printed by accident:
//! [`Secret::expose`] is the only way to its text.

use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use crate::db::SecretHash;

/// Of all kinds alike.
const PREFIX_LENGTH: usize = 4;
const RANDOM_LENGTH: usize = 32;
const CHECKSUM_LENGTH: usize = 6;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// What a secret is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `pik_`: sent with every request.
    ApiKey,
    /// `pia_`: sent with every request, for an hour.
    AccessToken,
    /// `pis_`: sent with every request, until the user logs out.
    Session,
    /// `pcs_`: exchanged for access tokens.
    ClientSecret,
}

impl Kind {
    /// Those that open operations.
    pub const BEARERS: [Self; 3] = [Self::ApiKey, Self::AccessToken, Self::Session];
    /// Every kind.
    pub const ALL: [Self; 4] = [
        Self::ApiKey,
        Self::AccessToken,
        Self::Session,
        Self::ClientSecret,
    ];

    const fn prefix(self) -> &'static str {
        match self {
            Self::ApiKey => "pik_",
            Self::AccessToken => "pia_",
            Self::Session => "pis_",
            Self::ClientSecret => "pcs_",
        }
    }
}

/// A secret.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// Makes a new one of 190 random bits from the operating system.
    ///
    /// # Errors
    /// When the operating system has no random numbers.
    pub fn generate(kind: Kind) -> Result<Self, getrandom::Error> {
        let mut text = String::from(kind.prefix());
        push_random(&mut text, RANDOM_LENGTH)?;
        text.push_str(&checksum(&text));
        Ok(Self(text.into()))
    }

    /// One that somebody else chose and this process admits as it is, whatever its form.
    #[must_use]
    pub fn admit(text: &str) -> Self {
        Self(text.to_owned().into())
    }

    /// Reads one of these kinds. `None` when it is not of our form or its checksum is wrong.
    #[must_use]
    pub fn parse(text: &str, kinds: &[Kind]) -> Option<Self> {
        let length = PREFIX_LENGTH + RANDOM_LENGTH;
        let known = kinds.iter().any(|kind| text.starts_with(kind.prefix()));
        if text.len() != length + CHECKSUM_LENGTH || !known {
            return None;
        }
        let (key, check) = text.split_at_checked(length)?;
        let known = key
            .bytes()
            .skip(PREFIX_LENGTH)
            .all(|byte| ALPHABET.contains(&byte));
        (known && check == checksum(key)).then(|| Self(text.to_owned().into()))
    }

    /// SHA-256 of it: what is stored.
    #[must_use]
    pub fn hash(&self) -> SecretHash {
        sha256(self.expose())
    }

    /// The first characters, for a person to tell secrets apart by; too few to guess the rest from.
    #[must_use]
    pub fn hint(&self) -> String {
        self.expose().chars().take(PREFIX_LENGTH + 4).collect()
    }

    /// The secret itself, to be shown once.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

const CLIENT_ID_PREFIX: &str = "pic_";
const CLIENT_ID_LENGTH: usize = 20;

/// A new client's public name: not a secret, only unlike any other.
///
/// # Errors
/// When the operating system has no random numbers.
pub fn generate_client_id() -> Result<String, getrandom::Error> {
    let mut text = String::from(CLIENT_ID_PREFIX);
    push_random(&mut text, CLIENT_ID_LENGTH)?;
    Ok(text)
}

/// Whether a text has the form of a client's public name.
#[must_use]
pub fn is_client_id(text: &str) -> bool {
    text.strip_prefix(CLIENT_ID_PREFIX).is_some_and(|random| {
        random.len() == CLIENT_ID_LENGTH && random.bytes().all(|byte| ALPHABET.contains(&byte))
    })
}

fn push_random(text: &mut String, mut length: usize) -> Result<(), getrandom::Error> {
    let mut random = [0; RANDOM_LENGTH];
    while length > 0 {
        getrandom::fill(&mut random)?;
        // 64 values on 62 characters: those without one are passed over, so that all of the alphabet
        // is equally likely.
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

/// SHA-256 of a secret's text.
#[must_use]
pub fn sha256(secret: &str) -> SecretHash {
    Sha256::digest(secret.as_bytes()).into()
}

/// CRC-32 of `text` in base 62. It guards against mistakes, not against people: whoever can make up a
/// valid one gains a look-up that finds nothing.
fn checksum(text: &str) -> String {
    let mut rest = crc32fast::hash(text.as_bytes()) as usize;
    let mut characters = [char::from(ALPHABET[0]); CHECKSUM_LENGTH];
    for character in characters.iter_mut().rev() {
        *character = char::from(ALPHABET[rest % ALPHABET.len()]);
        rest /= ALPHABET.len();
    }
    characters.iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_secret_is_read_back_as_its_kind_alone() {
        for kind in Kind::ALL {
            let secret = Secret::generate(kind).expect("random numbers");
            for other in Kind::ALL {
                let again = Secret::parse(secret.expose(), &[other]);
                assert_eq!(again.is_some(), kind == other);
                assert!(again.is_none_or(|again| again.hash() == secret.hash()));
            }
            assert_ne!(
                secret.hash(),
                Secret::generate(kind).expect("random numbers").hash()
            );
        }
    }

    #[test]
    fn any_changed_character_is_noticed() {
        let secret = Secret::generate(Kind::ApiKey).expect("random numbers");
        let text = secret.expose();
        let parse = |text: &str| Secret::parse(text, &Kind::ALL);
        for position in 0..text.len() {
            for other in ["0", "z", "_", "é", "\0"] {
                let mut changed = text.to_owned();
                changed.replace_range(position..=position, other);
                assert!(
                    changed == text || parse(&changed).is_none(),
                    "{position} {other:?}"
                );
            }
        }
        assert!(parse("").is_none());
        assert!(parse(&text[1..]).is_none());
        assert!(parse(&format!("{text}0")).is_none());
    }
}
