//! Conditions of a request on the state of its resource (RFC 9110 §13.1), by the tags that identify states.

/// Tags that a condition names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tags<T> {
    /// That of any existing resource: `*`.
    Any,
    /// These tags, possibly none.
    Listed(Vec<T>),
}

impl<T> Tags<T> {
    /// Converts the listed tags. Those without a result cannot be that of a resource, and are left out.
    pub fn filter_map<U>(&self, convert: impl Fn(&T) -> Option<U>) -> Tags<U> {
        match self {
            Self::Any => Tags::Any,
            Self::Listed(tags) => Tags::Listed(tags.iter().filter_map(convert).collect()),
        }
    }

    fn contain<Q: ?Sized>(&self, current: Option<&Q>) -> bool
    where
        T: PartialEq<Q>,
    {
        match self {
            Self::Any => true,
            Self::Listed(tags) => {
                current.is_some_and(|current| tags.iter().any(|tag| tag == current))
            }
        }
    }
}

/// Conditions of a request; `None` is always true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conditions<T> {
    /// Tags of which the resource must have one.
    pub any_of: Option<Tags<T>>,
    /// Tags of which the resource must have none.
    pub none_of: Option<Tags<T>>,
}

/// Condition that is false.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmet {
    /// [`Conditions::any_of`].
    AnyOf,
    /// [`Conditions::none_of`].
    NoneOf,
}

impl<T> Conditions<T> {
    /// Those of a request without a condition.
    pub const NONE: Self = Self {
        any_of: None,
        none_of: None,
    };

    /// Checks the conditions of a request to an existing resource, in the order of RFC 9110 §13.2.2. `current` is its tag, or
    /// `None` if no client knows it yet.
    pub fn check<Q: ?Sized>(&self, current: Option<&Q>) -> Result<(), Unmet>
    where
        T: PartialEq<Q>,
    {
        if (self.any_of.as_ref()).is_some_and(|tags| !tags.contain(current)) {
            return Err(Unmet::AnyOf);
        }
        if (self.none_of.as_ref()).is_some_and(|tags| tags.contain(current)) {
            return Err(Unmet::NoneOf);
        }
        Ok(())
    }
}
