//! Callers: whoever a credential belongs to, and what each may do.

use std::{fmt, str::FromStr};

use super::{Invalid, address::AddressKey, check_text, plan::Plan};

/// Identifier of a caller in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallerId(pub i64);

/// A caller's name: 1–64 characters without white space or control characters at either end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerName(String);

impl CallerName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is kept for the caller of a user account, `user:` and its number.
    #[must_use]
    pub fn is_of_a_user(&self) -> bool {
        self.0.starts_with("user:")
    }
}

impl FromStr for CallerName {
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        check_text(name, 64)?;
        if name.is_empty() || name.trim() != name || name.chars().any(char::is_control) {
            return Err(Invalid::because(
                "must be 1 to 64 characters, without control characters or white space around it",
            ));
        }
        Ok(Self(name.to_owned()))
    }
}

impl fmt::Display for CallerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// One thing a caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// `read:pets`: get and find pets.
    ReadPets,
    /// `write:pets`: add, change and delete pets and their images.
    WritePets,
    /// `read:orders`: see one's own store orders and the inventory.
    ReadOrders,
    /// `write:orders`: place and delete store orders.
    WriteOrders,
    /// `admin`: act on what belongs to others.
    Admin,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 5] = [
        Self::ReadPets,
        Self::WritePets,
        Self::ReadOrders,
        Self::WriteOrders,
        Self::Admin,
    ];

    /// The scope's name as it stands in tokens, in OpenAPI and on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReadPets => "read:pets",
            Self::WritePets => "write:pets",
            Self::ReadOrders => "read:orders",
            Self::WriteOrders => "write:orders",
            Self::Admin => "admin",
        }
    }
}

impl Scope {
    /// What the scope lets its holder do.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::ReadPets => "get and find pets",
            Self::WritePets => "add, change and delete pets and their images",
            Self::ReadOrders => "see one's own store orders and the inventory",
            Self::WriteOrders => "place and delete store orders",
            Self::Admin => "act on what belongs to others",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        Self::ALL
            .into_iter()
            .find(|scope| scope.as_str() == name)
            .ok_or(Invalid::because(
                "must be read:pets, write:pets, read:orders, write:orders or admin",
            ))
    }
}

/// A set of scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u8);

impl Scopes {
    /// Every scope there is.
    #[must_use]
    pub fn all() -> Self {
        Scope::ALL.into_iter().collect()
    }

    /// What callers may do unless somebody decides otherwise.
    #[must_use]
    pub fn all_but_admin() -> Self {
        Scope::ALL
            .into_iter()
            .filter(|scope| *scope != Scope::Admin)
            .collect()
    }

    /// Whether `scope` is among them.
    #[must_use]
    pub const fn contains(self, scope: Scope) -> bool {
        self.0 & (1 << scope as u8) != 0
    }

    /// Whether all of `other` is among them.
    #[must_use]
    pub const fn contains_all(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// What is in both.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The scopes, in the order of [`Scope::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL
            .into_iter()
            .filter(move |scope| self.contains(*scope))
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(
            scopes
                .into_iter()
                .fold(0, |bits, scope| bits | (1 << scope as u8)),
        )
    }
}

/// Separated by spaces, as OAuth 2.0 writes them (RFC 6749 §3.3).
impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Scope::as_str).collect();
        f.pad(&names.join(" "))
    }
}

/// A caller as a request sees it: who it is, and what the credential it showed lets it do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Identity; `None` for an anonymous caller, which has none.
    pub id: Option<CallerId>,
    /// The name the operator gave it.
    pub name: CallerName,
    /// What it may use.
    pub plan: Plan,
    /// What it may do: the caller's scopes, narrowed to the credential's.
    pub scopes: Scopes,
}

impl Caller {
    /// Whoever shows no credential, where the operator lets such callers in.
    #[must_use]
    pub fn anonymous(scopes: Scopes) -> Self {
        Self {
            id: None,
            name: CallerName("anonymous".to_owned()),
            plan: Plan::Free,
            scopes,
        }
    }
}

/// The party that limits and idempotency keys belong to: all credentials of a caller share it. Anonymous callers are
/// told apart by their addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallerKey {
    /// A caller with an identity.
    Caller(CallerId),
    /// An anonymous caller.
    Anonymous(Option<AddressKey>),
}

impl CallerKey {
    /// Returns the key of a caller that sends from `address`.
    #[must_use]
    pub fn new(caller: &Caller, address: Option<AddressKey>) -> Self {
        caller.id.map_or(Self::Anonymous(address), Self::Caller)
    }
}

/// As it is stored.
impl fmt::Display for CallerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caller(CallerId(id)) => write!(f, "caller:{id}"),
            Self::Anonymous(Some(address)) => write!(f, "address:{address}"),
            Self::Anonymous(None) => f.write_str("address:"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_scopes_holds_what_was_put_in() {
        for scope in Scope::ALL {
            let one: Scopes = [scope].into_iter().collect();
            assert_eq!(one.iter().collect::<Vec<_>>(), [scope]);
            assert!(Scopes::all().contains_all(one));
            assert_eq!(scope.as_str().parse(), Ok(scope));
        }
        assert!(!Scopes::default().contains(Scope::ReadPets));
    }

    #[test]
    fn names_of_callers_are_bounded() {
        assert!("acme".parse::<CallerName>().is_ok());
        for bad in ["", " acme", "a\nb", "a\0b", &"x".repeat(65)] {
            assert!(bad.parse::<CallerName>().is_err(), "{bad:?}");
        }
    }
}
