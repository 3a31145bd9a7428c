//! User accounts: case-insensitive names, passwords and profiles.

use std::{fmt, iter};

use precis_profiles::{
    OpaqueString,
    precis_core::{DerivedPropertyValue, FreeformClass, StringClass, profile::Rules},
};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use unicode_normalization::{UnicodeNormalization, char::is_public_assigned};
use utoipa::ToSchema;

use super::{
    Invalid, Text,
    caller::{CallerId, Scope, Scopes},
    canonical_name, check_caller_name,
};

/// Maximum number of accounts in a request to `POST /user/createWithList`.
pub const MAX_LIST: usize = 1_000;
const PASSWORD_LENGTH: std::ops::RangeInclusive<usize> = 8..=128;

texts! {
    /// Name of an account, in the case that its owner chose: 1–64 characters, without control characters, and without
    /// white space at either end. The name of a new account also follows the rules of [`Username::new`].
    Username: check_username;
}

impl Username {
    /// Validates a new name, and returns it in the form of UsernameCasePreserved (RFC 8265): names are compared without
    /// their case ([`Username::folded`]), but keep it.
    pub fn new(name: &str) -> Result<Self, Invalid> {
        canonical_name(name)?.parse()
    }

    /// Returns the case-folded name, which is the same for names that differ only in case or form.
    pub fn folded(&self) -> String {
        let canonical = Self::new(&self.0);
        let name = canonical.as_ref().unwrap_or(self);
        fold_username(&name.0)
    }

    /// Returns the folded names of the accounts that this name may mean, the likelier one first. Accounts of earlier
    /// releases have the first one: that of the name as it is.
    pub fn candidates(&self) -> [String; 2] {
        [fold_case(&self.0), self.folded()]
    }
}

/// Returns the beginning of a username in the form of [`Username::folded`].
pub fn fold_username(beginning: &str) -> String {
    fold_case(beginning).nfc().collect()
}

/// Folds the case. Upper case merges letters that share a capital (ς and σ, ß and ss); lower case before it turns the
/// capital ẞ into ß.
fn fold_case(name: &str) -> String {
    name.to_lowercase().to_uppercase().to_lowercase()
}

/// Checks the name of an account that may exist.
fn check_username(name: &str) -> Result<(), Invalid> {
    check_caller_name(name)?;
    // `/user/{name}` would be the path of another operation, or one that clients normalise away.
    let taken = ["login", "logout", "createwithlist", ".", ".."];
    if taken.contains(&&*fold_case(name)) {
        return Err(Invalid::because("must not be a reserved word"));
    }
    Ok(())
}

/// Password of 8–128 characters in the form of OpaqueString (RFC 8265 §4.2): NFC, with U+0020 for other spaces. Its
/// `Debug` output does not show it.
#[derive(Debug, Clone)]
pub struct Password {
    text: SecretString,
    /// Text of a login attempt, if the form changes it.
    as_sent: Option<SecretString>,
}

impl Password {
    /// Prepares a new password, and validates its length.
    pub fn new(text: &str) -> Result<Self, Invalid> {
        let prepared = prepare(text).ok_or_else(|| {
            Invalid::because(
                "must have no control, invisible or unassigned characters (RFC 8265, OpaqueString)",
            )
        })?;
        if PASSWORD_LENGTH.contains(&length(&prepared)) {
            Ok(Self {
                text: prepared,
                as_sent: None,
            })
        } else {
            Err(Invalid::because("must be 8 to 128 characters"))
        }
    }

    /// Takes the password of a login attempt. Returns `None` if it has more than 128 characters in both forms and so cannot
    /// be right, which bounds the cost of checking it.
    pub fn claimed(text: String) -> Option<Self> {
        let as_sent = SecretString::from(text);
        let prepared = prepare(as_sent.expose_secret())
            .filter(|it| it.expose_secret() != as_sent.expose_secret());
        let mut texts = prepared
            .into_iter()
            .chain([as_sent])
            .filter(|text| length(text) <= *PASSWORD_LENGTH.end());
        Some(Self {
            text: texts.next()?,
            as_sent: texts.next(),
        })
    }

    /// Returns the password, to be hashed.
    pub fn expose(&self) -> &str {
        self.text.expose_secret()
    }

    /// Returns the texts that a stored hash may be of: that of [`Password::expose`] and, of a login attempt, the text as it
    /// was sent, if it differs. Earlier releases hashed passwords as they were sent.
    pub fn candidates(&self) -> impl Iterator<Item = &str> {
        iter::once(self.expose()).chain(self.as_sent.as_ref().map(ExposeSecret::expose_secret))
    }
}

/// Returns the text in the form of OpaqueString (RFC 8265 §4.2), or `None` if it refuses the text. The crate has the
/// characters of Unicode 6.3; later ones, as most emoji, are accepted.
fn prepare(text: &str) -> Option<SecretString> {
    let class = FreeformClass::default();
    let is_later = |character| {
        let value = class.get_value_from_char(character);
        value == DerivedPropertyValue::Unassigned && is_public_assigned(character)
    };
    let mut parts = text.split(is_later).filter(|part| !part.is_empty());
    if parts.any(|part| class.allows(part).is_err()) {
        return None;
    }
    let profile = OpaqueString::new();
    let mapped = profile.additional_mapping_rule(text).ok()?;
    let normalized = profile.normalization_rule(mapped).ok()?;
    Some(normalized.into_owned().into())
}

fn length(text: &SecretString) -> usize {
    text.expose_secret().chars().count()
}

/// Personal data that the user provides, stored unverified.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    /// First name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, max_length = 255, pattern = r"^[^\x00]*$")]
    pub first_name: Option<Text>,
    /// Last name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, max_length = 255, pattern = r"^[^\x00]*$")]
    pub last_name: Option<Text>,
    /// Email address, not verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, max_length = 255, pattern = r"^[^\x00]*$")]
    pub email: Option<Text>,
    /// Phone number.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, max_length = 255, pattern = r"^[^\x00]*$")]
    pub phone: Option<Text>,
}

/// Identifier of an account, assigned by the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct UserId(pub i64);

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// User account.
// Without its password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(example = json!({
    "id": 1,
    "username": "ada",
    "firstName": "Ada",
    "lastName": "Lovelace",
    "email": "ada@example.com",
    "phone": "+44 20 7946 0000",
    "userStatus": 0
}))]
pub struct User {
    /// Identifier.
    #[schema(value_type = i64, minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub id: UserId,
    /// Caller that its requests count against and that owns its orders.
    #[serde(skip)]
    pub caller: CallerId,
    /// Username, unique regardless of case.
    #[schema(value_type = String, example = "ada", min_length = 1, max_length = 64, pattern = r"^[^\x00-\x1f\x7f]+$")]
    pub username: Username,
    /// Personal data.
    #[serde(flatten)]
    pub profile: Profile,
    /// Number with a meaning that the operator defines.
    #[serde(rename = "userStatus")]
    #[schema(minimum = -2_147_483_648, maximum = 2_147_483_647)]
    pub status: i32,
}

/// Returns the scopes of every account.
pub fn scopes() -> Scopes {
    Scopes::from_iter([Scope::ReadPets, Scope::ReadOrders, Scope::WriteOrders])
}
