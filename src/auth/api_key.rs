//! API keys: `pik_`, 32 random characters, and 6 that check the rest.
//!
//! The prefix lets people and secret scanners recognise a key; the checksum lets a mistyped or made-up
//! one be refused without asking the database. Invariant: an [`ApiKey`] cannot be printed by
//! accident: [`ApiKey::expose`] is the only way to its text.

use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use crate::db::credentials::SecretHash;

const PREFIX: &str = "pik_";
const RANDOM_LENGTH: usize = 32;
const CHECKSUM_LENGTH: usize = 6;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// An API key.
#[derive(Clone)]
pub struct ApiKey(SecretString);

impl ApiKey {
    /// Makes a new key of 190 random bits from the operating system.
    ///
    /// # Errors
    /// When the operating system has no random numbers.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut key = String::from(PREFIX);
        let mut random = [0; RANDOM_LENGTH];
        while key.len() < PREFIX.len() + RANDOM_LENGTH {
            getrandom::fill(&mut random)?;
            // 64 values on 62 characters: those without one are passed over, so that all of the
            // alphabet is equally likely.
            let characters = random
                .iter()
                .filter_map(|byte| ALPHABET.get(usize::from(byte & 63)))
                .map(|&character| char::from(character))
                .take(PREFIX.len() + RANDOM_LENGTH - key.len());
            key.extend(characters);
        }
        key.push_str(&checksum(&key));
        Ok(Self(key.into()))
    }

    /// A key that somebody else chose and this process admits as it is, whatever its form.
    #[must_use]
    pub fn admit(key: &str) -> Self {
        Self(key.to_owned().into())
    }

    /// Reads a key. `None` when it is not of our form or its checksum is wrong.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let length = PREFIX.len() + RANDOM_LENGTH;
        if text.len() != length + CHECKSUM_LENGTH || !text.starts_with(PREFIX) {
            return None;
        }
        let (key, check) = text.split_at_checked(length)?;
        let known = key
            .bytes()
            .skip(PREFIX.len())
            .all(|byte| ALPHABET.contains(&byte));
        (known && check == checksum(key)).then(|| Self(text.to_owned().into()))
    }

    /// SHA-256 of the key: what is stored.
    #[must_use]
    pub fn hash(&self) -> SecretHash {
        sha256(self.expose())
    }

    /// The first characters, for a person to tell keys apart by; too few to guess the rest from.
    #[must_use]
    pub fn hint(&self) -> String {
        self.expose().chars().take(PREFIX.len() + 4).collect()
    }

    /// The key itself, to be shown once.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
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
    fn a_new_key_is_read_back() {
        let key = ApiKey::generate().expect("random numbers");
        let again = ApiKey::parse(key.expose()).expect("its own form");
        assert_eq!(key.hash(), again.hash());
        assert_ne!(
            key.hash(),
            ApiKey::generate().expect("random numbers").hash()
        );
    }

    #[test]
    fn any_changed_character_is_noticed() {
        let key = ApiKey::generate()
            .expect("random numbers")
            .expose()
            .to_owned();
        for position in 0..key.len() {
            for other in ["0", "z", "_", "é", "\0"] {
                let mut changed = key.clone();
                changed.replace_range(position..=position, other);
                if changed != key {
                    assert!(ApiKey::parse(&changed).is_none(), "{position} {other:?}");
                }
            }
        }
        assert!(ApiKey::parse("").is_none());
        assert!(ApiKey::parse(&key[1..]).is_none());
        assert!(ApiKey::parse(&format!("{key}0")).is_none());
    }
}
