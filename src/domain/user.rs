//! User accounts: case-insensitive names, passwords and profiles.

use std::{fmt, str::FromStr};

use secrecy::{ExposeSecret, SecretString};

use super::{
    Invalid, Text,
    caller::{CallerId, Scope, Scopes},
    check_caller_name,
};

/// Maximum number of accounts in a request to `POST /user/createWithList`.
pub const MAX_LIST: usize = 1_000;
const PASSWORD_LENGTH: std::ops::RangeInclusive<usize> = 8..=128;

texts! {
    /// Name of an account, in the case that its owner chose: 1–64 characters, without control characters, and without
    /// white space at either end.
    Username
}

impl Username {
    /// Returns the case-folded name, which is the same for names that differ only in case. Upper case merges letters
    /// that share a capital (ς and σ, ß and ss); lower case before it turns the capital ẞ into ß.
    pub fn folded(&self) -> String {
        self.0.to_lowercase().to_uppercase().to_lowercase()
    }
}

impl FromStr for Username {
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        check_caller_name(name)?;
        let name = Self(name.to_owned());
        // `/user/{name}` would be the path of another operation, or one that clients normalise away.
        let taken = ["login", "logout", "createwithlist", ".", ".."];
        if taken.contains(&name.folded().as_str()) {
            return Err(Invalid::because("must not be a reserved word"));
        }
        Ok(name)
    }
}

/// Password of 8–128 arbitrary characters. Its `Debug` output does not show it.
#[derive(Debug, Clone)]
pub struct Password(SecretString);

impl Password {
    /// Validates the length of a new password.
    pub fn new(text: String) -> Result<Self, Invalid> {
        let text = SecretString::from(text);
        if PASSWORD_LENGTH.contains(&text.expose_secret().chars().count()) {
            Ok(Self(text))
        } else {
            Err(Invalid::because("must be 8 to 128 characters"))
        }
    }

    /// Takes the password of a login attempt. Returns `None` if it has more than 128 characters and so cannot be right,
    /// which bounds the cost of checking it.
    pub fn claimed(text: String) -> Option<Self> {
        let text = SecretString::from(text);
        let fits = text.expose_secret().chars().count() <= *PASSWORD_LENGTH.end();
        fits.then_some(Self(text))
    }

    /// Returns the password, to be hashed.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

/// Personal data that the user provides, stored unverified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// First name.
    pub first_name: Option<Text>,
    /// Last name.
    pub last_name: Option<Text>,
    /// Email address.
    pub email: Option<Text>,
    /// Phone number.
    pub phone: Option<Text>,
}

/// Identifier of an account, assigned by the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserId(pub i64);

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Stored account, without its password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Identifier.
    pub id: UserId,
    /// Caller that its requests count against and that owns its orders.
    pub caller: CallerId,
    /// Name.
    pub username: Username,
    /// Personal data.
    pub profile: Profile,
    /// Number with a meaning defined by the operator.
    pub status: i32,
}

/// Returns the scopes of every account.
pub fn scopes() -> Scopes {
    Scopes::from_iter([Scope::ReadPets, Scope::ReadOrders, Scope::WriteOrders])
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
        for pair in ["Bob bOB", "ΟΔΟΣ οδος", "STRASSE straße", "É é"] {
            let (one, other) = pair.split_once(' ').expect("two names");
            assert_eq!(fold(one), fold(other));
        }
        assert_ne!(fold("bob"), fold("bo b"));
    }

    #[test]
    fn names_are_bounded() {
        for good in ["a", "O'Neil, Äda 🦊", "a/b?c#d", "...", &"é".repeat(64)] {
            assert!(good.parse::<Username>().is_ok(), "{good}");
        }
        let too_long = "é".repeat(65);
        let reserved = ["Login", "logout", "createWithList", ".", ".."];
        for bad in ["", " a", "a ", "a\nb", "a\0", &too_long]
            .into_iter()
            .chain(reserved)
        {
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
