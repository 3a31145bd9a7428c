//! User accounts: names that are unique without regard to case, passwords, and what else a person says of
//! itself.

use std::{fmt, str::FromStr};

use secrecy::{ExposeSecret, SecretString};

use super::{
    Invalid,
    caller::{CallerId, Scope, Scopes},
    check_text,
};

/// What an account may do, and no account more.
pub const SCOPES: [Scope; 3] = [Scope::ReadPets, Scope::ReadOrders, Scope::WriteOrders];
/// How many accounts are made at once.
pub const MAX_LIST: usize = 1_000;
const MAX_USERNAME: usize = 64;
const MAX_TEXT: usize = 255;
const PASSWORD_LENGTH: std::ops::RangeInclusive<usize> = 8..=128;

/// The name of an account: 1–64 characters without white space or control characters at either end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Username(String);

impl Username {
    /// A name that was checked when it was stored.
    #[must_use]
    pub const fn from_stored(name: String) -> Self {
        Self(name)
    }

    /// The name, as its owner writes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What two names have in common that differ in case alone. By way of the capitals, since some small letters
    /// share theirs (ς and σ, ß and ss), and to them by way of the small letters, since ẞ is a capital already.
    #[must_use]
    pub fn folded(&self) -> String {
        self.0.to_lowercase().to_uppercase().to_lowercase()
    }
}

impl FromStr for Username {
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        check_text(name, MAX_USERNAME)?;
        if name.is_empty() || name.trim() != name || name.chars().any(char::is_control) {
            return Err(Invalid::because(
                "must be 1 to 64 characters, without control characters or white space around it",
            ));
        }
        let name = Self(name.to_owned());
        // These would lie where an operation does, or where no URL leads.
        let taken = ["login", "logout", "createwithlist", ".", ".."];
        if taken.contains(&name.folded().as_str()) {
            return Err(Invalid::because("must not be a word that URLs need"));
        }
        Ok(name)
    }
}

/// A password that somebody chooses: 8–128 characters, any. It cannot be printed.
#[derive(Debug, Clone)]
pub struct Password(SecretString);

impl Password {
    /// Checks the length.
    ///
    /// # Errors
    /// [`Invalid`], which does not repeat it.
    pub fn new(text: String) -> Result<Self, Invalid> {
        let text = SecretString::from(text);
        if PASSWORD_LENGTH.contains(&text.expose_secret().chars().count()) {
            Ok(Self(text))
        } else {
            Err(Invalid::because("must be 8 to 128 characters"))
        }
    }

    /// A password as somebody says it is: any, but not so long that only looking at it is work. `None`: it
    /// cannot be anybody's.
    #[must_use]
    pub fn claimed(text: String) -> Option<Self> {
        let text = SecretString::from(text);
        let fits = text.expose_secret().chars().count() <= *PASSWORD_LENGTH.end();
        fits.then_some(Self(text))
    }

    /// The password itself, to be hashed.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

/// What a person says of itself; kept as it is, and believed by nobody.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// First name.
    pub first_name: Option<Text>,
    /// Last name.
    pub last_name: Option<Text>,
    /// Where it gets mail.
    pub email: Option<Text>,
    /// Where it can be called.
    pub phone: Option<Text>,
}

/// A text of at most 255 characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text(String);

impl Text {
    /// Checks a text.
    ///
    /// # Errors
    /// [`Invalid`] when it is too long or holds NUL.
    pub fn new(text: String) -> Result<Self, Invalid> {
        check_text(&text, MAX_TEXT)?;
        Ok(Self(text))
    }

    /// A text that was checked when it was stored.
    #[must_use]
    pub const fn from_stored(text: String) -> Self {
        Self(text)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Identifier of an account. Nobody chooses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserId(pub i64);

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An account as it is stored, but for its password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Identifier.
    pub id: UserId,
    /// Whom its requests are counted for, and whose its orders are.
    pub caller: CallerId,
    /// Name.
    pub username: Username,
    /// What it says of itself.
    pub profile: Profile,
    /// A number that means something to the operator.
    pub status: i32,
}

/// What an account may do.
#[must_use]
pub fn scopes() -> Scopes {
    SCOPES.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_in_case_alone_are_one() {
        let fold = |name: &str| Username::from_stored(name.to_owned()).folded();
        for character in '\0'..=char::MAX {
            let name = character.to_string();
            assert_eq!(fold(&name), fold(&name.to_uppercase()), "{name}");
            assert_eq!(fold(&name), fold(&name.to_lowercase()), "{name}");
            assert_eq!(fold(&name), fold(&fold(&name)), "{name}");
        }
        for (one, other) in [
            ("Bob", "bOB"),
            ("ΟΔΟΣ", "οδος"),
            ("STRASSE", "straße"),
            ("É", "é"),
        ] {
            assert_eq!(fold(one), fold(other));
        }
        assert_ne!(fold("bob"), fold("bo b"));
    }

    #[test]
    fn names_are_bounded() {
        for good in ["a", "O'Neil, Äda 🦊", "a/b?c#d", "...", &"é".repeat(64)] {
            assert!(good.parse::<Username>().is_ok(), "{good}");
        }
        for bad in [
            "",
            " a",
            "a ",
            "a\nb",
            "a\0",
            "Login",
            "logout",
            "createWithList",
            ".",
            "..",
            &"é".repeat(65),
        ] {
            assert!(bad.parse::<Username>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn passwords_are_any_characters_of_a_length_and_cannot_be_printed() {
        for good in ["12345678", "ä\0\n🦊 ñß¡", &"🦊".repeat(128)] {
            let password = Password::new(good.to_owned()).expect("good");
            assert!(!format!("{password:?}").contains(good));
        }
        for bad in ["", "1234567", &"🦊".repeat(129)] {
            let reason = Password::new(bad.to_owned()).expect_err("bad").to_string();
            assert!(bad.is_empty() || !reason.contains(bad));
        }
        assert!(Password::claimed("1".to_owned()).is_some());
        assert!(Password::claimed("1".repeat(129)).is_none());
    }
}
