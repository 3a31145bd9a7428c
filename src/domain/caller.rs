//! Callers, which own credentials, and their scopes.

use std::{fmt, str::FromStr};

use super::{Invalid, address::AddressKey, check_text, plan::Plan};

/// Identifier of a caller in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallerId(pub i64);

/// Name of a caller: 1–64 characters, without control characters, and without white space at either end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerName(String);

impl CallerName {
    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the name is reserved for the caller of a user account (`user:` and the account's id).
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

/// Right of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// `read:pets`: get and find pets.
    ReadPets,
    /// `write:pets`: add, change and delete pets and their images.
    WritePets,
    /// `read:orders`: read the caller's own store orders and the inventory.
    ReadOrders,
    /// `write:orders`: place and delete store orders.
    WriteOrders,
    /// `admin`: act on the resources of other callers.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 5] = [
        Self::ReadPets,
        Self::WritePets,
        Self::ReadOrders,
        Self::WriteOrders,
        Self::Admin,
    ];

    /// Returns the name in tokens, in OpenAPI and on the command line.
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
    /// Returns the description for OpenAPI.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::ReadPets => "get and find pets",
            Self::WritePets => "add, change and delete pets and their images",
            Self::ReadOrders => "read the caller's own store orders and the inventory",
            Self::WriteOrders => "place and delete store orders",
            Self::Admin => "manage the resources of all callers",
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

/// Set of scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u8);

impl Scopes {
    /// Returns the set of all scopes.
    #[must_use]
    pub fn all() -> Self {
        Scope::ALL.into_iter().collect()
    }

    /// Returns the default scopes of a new caller: all but `admin`.
    #[must_use]
    pub fn all_but_admin() -> Self {
        Scope::ALL
            .into_iter()
            .filter(|scope| *scope != Scope::Admin)
            .collect()
    }

    /// Returns true if `scope` is in the set.
    #[must_use]
    pub const fn contains(self, scope: Scope) -> bool {
        self.0 & (1 << scope as u8) != 0
    }

    /// Returns true if `other` is a subset.
    #[must_use]
    pub const fn contains_all(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the scopes that are in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Iterates over the scopes in the order of [`Scope::ALL`].
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

/// Names separated by spaces, as in OAuth 2.0 (RFC 6749 §3.3).
impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Scope::as_str).collect();
        f.pad(&names.join(" "))
    }
}

/// Caller of a request, with the rights of the credential that the request has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Identifier; `None` for an anonymous caller.
    pub id: Option<CallerId>,
    /// Name.
    pub name: CallerName,
    /// Plan, which sets its limits.
    pub plan: Plan,
    /// Scopes of the caller that the credential also has.
    pub scopes: Scopes,
}

impl Caller {
    /// Returns the anonymous caller, for requests without a credential.
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

/// Owner of limits and idempotency keys: a caller with all its credentials, or the address of an anonymous caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallerKey {
    /// Caller with an identifier.
    Caller(CallerId),
    /// Anonymous caller, by address.
    Anonymous(Option<AddressKey>),
}

impl CallerKey {
    /// Returns the key of a caller that sends from `address`.
    #[must_use]
    pub fn new(caller: &Caller, address: Option<AddressKey>) -> Self {
        caller.id.map_or(Self::Anonymous(address), Self::Caller)
    }
}

/// Form in the database.
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
