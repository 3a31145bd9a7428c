//! Callers, which own credentials, and their scopes.

use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::{
    Invalid, address::AddressKey, canonical_name, check_caller_name, check_text, id::CredentialId,
    plan::Plan,
};

/// Identifier of a caller in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct CallerId(pub i64);

impl FromStr for CallerId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        // The same range and form.
        text.parse::<CredentialId>().map(|id| Self(id.get()))
    }
}

texts! {
    /// Name of a caller: 1–64 characters, without control characters, and without white space at either end. Those that people give
    /// also follow the rules of [`CallerName::new`].
    CallerName: check_caller_name;

    /// Name of an API key, for people: 1–100 characters, without control characters.
    KeyName: check_key_name;
}

fn check_key_name(name: &str) -> Result<(), Invalid> {
    check_text(name, 100)?;
    if name.is_empty() || name.chars().any(char::is_control) {
        return Err(Invalid::because(
            "must be 1 to 100 characters, without control characters",
        ));
    }
    Ok(())
}

impl CallerName {
    /// Returns the name under which changes by commands are recorded. No caller has it.
    pub(super) fn operator() -> Self {
        Self("operator".to_owned())
    }

    /// Returns the name under which changes are recorded that the receiver of a webhook causes. No caller has it.
    pub(super) fn webhook() -> Self {
        Self("webhook".to_owned())
    }

    /// Validates a name that a person gives to a new caller, as a username is. Names that are reserved in any case are those with
    /// which the service records changes, and those that begin as the callers of accounts and of subjects of issuers do.
    pub fn new(name: &str) -> Result<Self, Invalid> {
        const RESERVED: Invalid = Invalid::because(
            "must be neither operator, anonymous nor webhook, nor begin with user: or jwt:",
        );
        let name = canonical_name(name)?;
        let lower = name.to_lowercase();
        if ["operator", "anonymous", "webhook"].contains(&&*lower) || is_account(&lower) {
            return Err(RESERVED);
        }
        Ok(Self(name))
    }

    /// Returns true for the caller of an external issuer's subject: `jwt:` and 22 characters of a hash, possibly with the subject.
    pub fn is_of_an_issuer(&self) -> bool {
        const HASH: usize = 22;
        let is_of_hash = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
        self.0.strip_prefix("jwt:").is_some_and(|rest| {
            let hash = rest.bytes().take_while(|byte| is_of_hash(byte)).count();
            hash == HASH && matches!(rest.as_bytes().get(HASH), None | Some(b':'))
        })
    }
}

/// Returns true if a name is that of a user account, or of a subject of an issuer.
pub fn is_account(name: &str) -> bool {
    name.starts_with("user:") || name.starts_with("jwt:")
}

impl fmt::Display for CallerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Right of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ToSchema)]
#[schema(example = "read:pets")]
pub enum Scope {
    /// Get and find pets.
    #[schema(rename = "read:pets")]
    ReadPets,
    /// Add, change and delete pets and their images.
    #[schema(rename = "write:pets")]
    WritePets,
    /// Read the caller's own store orders and the inventory.
    #[schema(rename = "read:orders")]
    ReadOrders,
    /// Place and delete store orders.
    #[schema(rename = "write:orders")]
    WriteOrders,
    /// Read the record of changes.
    #[schema(rename = "read:changes")]
    ReadChanges,
    /// Act on the resources of other callers.
    #[schema(rename = "admin")]
    Admin,
}

impl_names!(
    Scope,
    ReadPets = "read:pets",
    WritePets = "write:pets",
    ReadOrders = "read:orders",
    WriteOrders = "write:orders",
    ReadChanges = "read:changes",
    Admin = "admin",
);

impl Scope {
    /// Returns the description for OpenAPI.
    pub const fn description(self) -> &'static str {
        match self {
            Self::ReadPets => "get and find pets",
            Self::WritePets => "add, change and delete pets and their images",
            Self::ReadOrders => "read the caller's own store orders and the inventory",
            Self::WriteOrders => "place and delete store orders",
            Self::ReadChanges => "read the record of changes",
            Self::Admin => "manage the resources of all callers",
        }
    }
}

/// Set of scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u8);

impl Scopes {
    /// Returns the set of all scopes.
    pub fn all() -> Self {
        Scope::ALL.into_iter().collect()
    }

    /// Returns the default scopes of a new caller: all but `admin` and `read:changes`.
    pub fn of_new_callers() -> Self {
        Self(Self::all().0 & !Self::bit(Scope::Admin) & !Self::bit(Scope::ReadChanges))
    }

    /// Returns true if `scope` is in the set.
    pub const fn contains(self, scope: Scope) -> bool {
        self.0 & Self::bit(scope) != 0
    }

    const fn bit(scope: Scope) -> u8 {
        1 << scope as u8
    }

    /// Returns true if `other` is a subset.
    pub const fn contains_all(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the scopes that are in both sets.
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Iterates over the scopes in the order of [`Scope::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Scope> {
        let all = Scope::ALL.into_iter();
        all.filter(move |scope| self.contains(*scope))
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        let bits = scopes.into_iter().map(Self::bit);
        Self(bits.fold(0, |set, bit| set | bit))
    }
}

impl Serialize for Scopes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
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
    pub fn anonymous(scopes: Scopes, plan: Plan) -> Self {
        Self {
            id: None,
            name: CallerName("anonymous".to_owned()),
            plan,
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
