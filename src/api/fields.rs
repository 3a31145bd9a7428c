//! Reads the fields of a JSON body, each of which checks itself, so that all invalid ones are reported at once.
//!
//! serde stops at the first field that fails. A [`Field`] keeps the failure as a value, which [`Violations`] reports together
//! with those of other fields.
//!
//! Invariant: a body takes no more memory than its texts and the elements that its arrays may have. Values of the wrong type,
//! and elements beyond the maximum, are parsed but not kept: 1 MB of JSON can be 100 MB of values.

use std::{
    fmt::{self, Display},
    marker::PhantomData,
    time::Duration,
};

use serde::{
    Deserialize, Deserializer,
    de::{
        self, DeserializeOwned, IgnoredAny, MapAccess, SeqAccess, Visitor,
        value::MapAccessDeserializer,
    },
};

use super::{error::Error, problem::Violation};
use crate::domain::{
    Invalid, Text,
    caller::{CallerName, KeyName, Scope},
    change::Kind,
    id::{OrderId, PetId},
    order::{self, Quantity, ShipDate},
    pet::{self, PetName, PhotoUrl},
    plan::Plan,
    user::Password,
};

/// Type of values that clients send as JSON. It implements the methods for the types of JSON that it is read from; the others
/// refuse the value.
pub trait Input: Sized + Send {
    /// Returns the violation of a value of another type: "must be a string".
    fn wrong_type() -> Invalid;

    /// Reads `true` or `false`.
    fn from_boolean(_: bool) -> Result<Self, Invalid> {
        Err(Self::wrong_type())
    }

    /// Reads an integer.
    fn from_integer(_: i64) -> Result<Self, Invalid> {
        Err(Self::wrong_type())
    }

    /// Reads a string.
    fn from_text(_: &str) -> Result<Self, Invalid> {
        Err(Self::wrong_type())
    }

    /// Reads an array to its end. Fails if it is not JSON.
    fn from_elements<'de, A: SeqAccess<'de>>(elements: A) -> Result<Field<Self>, A::Error> {
        IgnoredAny.visit_seq(elements)?;
        Ok(Field::invalid(Self::wrong_type()))
    }

    /// Reads an object to its end. Fails if it is not JSON; that of a body also if a known member is given twice.
    fn from_members<'de, A: MapAccess<'de>>(members: A) -> Result<Field<Self>, A::Error> {
        IgnoredAny.visit_map(members)?;
        Ok(Field::invalid(Self::wrong_type()))
    }
}

/// Body, or part of one, that is an object, whose members are [`Field`]s.
pub trait Object: DeserializeOwned + Send {}

impl<T: Object> Input for T {
    fn wrong_type() -> Invalid {
        Invalid::because("must be an object")
    }

    fn from_members<'de, A: MapAccess<'de>>(members: A) -> Result<Field<Self>, A::Error> {
        Self::deserialize(MapAccessDeserializer::new(members)).map(Field::Value)
    }
}

impl Input for bool {
    fn wrong_type() -> Invalid {
        Invalid::because("must be true or false")
    }

    fn from_boolean(value: bool) -> Result<Self, Invalid> {
        Ok(value)
    }
}

/// Implements [`Input`] for types that are read from an integer by a function. It refuses the least 64-bit integer, and a value
/// of another type for the same reason.
macro_rules! integers {
    ($($type:ty: $read:expr;)+) => {$(
        impl Input for $type {
            fn wrong_type() -> Invalid {
                match Self::from_integer(i64::MIN) {
                    Err(reason) => reason,
                    Ok(_) => Invalid::because("must be a 64-bit integer"),
                }
            }

            fn from_integer(value: i64) -> Result<Self, Invalid> {
                $read(value)
            }
        }
    )+};
}

/// Implements [`Input`] for types that are read from a string by a function.
macro_rules! texts {
    ($($type:ty: $read:expr;)+) => {$(
        impl Input for $type {
            fn wrong_type() -> Invalid {
                Invalid::because("must be a string")
            }

            fn from_text(text: &str) -> Result<Self, Invalid> {
                $read(text)
            }
        }
    )+};
}

integers! {
    i32: |value| Self::try_from(value).map_err(|_| Invalid::because("must be a 32-bit integer"));
    OrderId: Self::new;
    PetId: Self::new;
    Quantity: Self::new;
}

pub(super) use integers;

texts! {
    CallerName: Self::new;
    Kind: str::parse;
    KeyName: str::parse;
    order::Status: str::parse;
    Password: Self::new;
    pet::Status: str::parse;
    PetName: str::parse;
    PhotoUrl: str::parse;
    Plan: str::parse;
    Scope: str::parse;
    ShipDate: str::parse;
    String: |text: &str| Ok(text.to_owned());
    Text: str::parse;
}

/// Identifier that the client may choose. Petstore clients send 0 for none.
#[derive(Debug)]
pub struct ChosenId<T>(pub Option<T>);

impl<T: Input> Input for ChosenId<T> {
    fn wrong_type() -> Invalid {
        T::wrong_type()
    }

    fn from_integer(id: i64) -> Result<Self, Invalid> {
        match id {
            0 => Ok(Self(None)),
            id => T::from_integer(id).map(|id| Self(Some(id))),
        }
    }
}

/// Number of seconds from `MIN` to `MAX`.
#[derive(Debug)]
pub struct Seconds<const MIN: u64, const MAX: u64>(pub Duration);

impl<const MIN: u64, const MAX: u64> Input for Seconds<MIN, MAX> {
    fn wrong_type() -> Invalid {
        Invalid(format!("must be an integer from {MIN} to {MAX}").into())
    }

    fn from_integer(seconds: i64) -> Result<Self, Invalid> {
        match u64::try_from(seconds) {
            Ok(seconds) if (MIN..=MAX).contains(&seconds) => Ok(Self(Duration::from_secs(seconds))),
            _ => Err(Self::wrong_type()),
        }
    }
}

/// Array of at most `MAX` elements, none of which is `null`.
#[derive(Debug)]
pub struct List<T, const MAX: usize>(pub Vec<T>);

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Input, const MAX: usize> Input for List<T, MAX> {
    fn wrong_type() -> Invalid {
        Invalid::because("must be an array")
    }

    fn from_elements<'de, A: SeqAccess<'de>>(elements: A) -> Result<Field<Self>, A::Error> {
        let Some(elements) = read_elements(elements, MAX)? else {
            return Ok(Field::invalid(too_many(MAX)));
        };
        let mut violations = Violations::default();
        let elements = elements.into_iter().enumerate();
        let list = elements
            .filter_map(|(index, element)| violations.required(&format!("[{index}]"), element))
            .collect();
        Ok(violations.field(Some(Self(list))))
    }
}

/// Reads the elements of an array to its end, or returns `None` if it has more than `max`.
pub fn read_elements<'de, T: Input, A: SeqAccess<'de>>(
    mut elements: A,
    max: usize,
) -> Result<Option<Vec<Field<T>>>, A::Error> {
    let mut read = Vec::new();
    while let Some(element) = elements.next_element()? {
        if read.len() == max {
            IgnoredAny.visit_seq(elements)?;
            return Ok(None);
        }
        read.push(element);
    }
    Ok(Some(read))
}

/// Returns the violation of an array with more than `max` elements.
pub fn too_many(max: usize) -> Invalid {
    Invalid(format!("must have at most {max} elements").into())
}

/// Field of a JSON object, or element of an array.
#[derive(Debug, Default)]
pub enum Field<T> {
    /// Absent, which means the same as `null`, but not in a JSON Merge Patch: its fields have `#[serde(default)]`, which makes them
    /// differ.
    #[default]
    Absent,
    /// `null` or, without `#[serde(default)]`, absent.
    Null,
    /// A valid value.
    Value(T),
    /// An invalid value, with its violations. Their names are relative to it: the empty one, `id`, `[2]`.
    Invalid(Violations),
}

impl<T> Field<T> {
    /// Returns an invalid field.
    pub fn invalid(reason: Invalid) -> Self {
        let mut violations = Violations::default();
        violations.add("", reason);
        Self::Invalid(violations)
    }

    /// Returns the field of a JSON Merge Patch, or `None` if it is absent.
    pub fn present(self) -> Option<Self> {
        match self {
            Self::Absent => None,
            present => Some(present),
        }
    }
}

impl<T> From<Result<T, Invalid>> for Field<T> {
    fn from(read: Result<T, Invalid>) -> Self {
        match read {
            Ok(value) => Self::Value(value),
            Err(reason) => Self::invalid(reason),
        }
    }
}

impl<'de, T: Input> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // serde reads an absent member as `None`, too.
        deserializer.deserialize_option(FieldVisitor(PhantomData))
    }
}

struct FieldVisitor<T>(PhantomData<T>);

impl<'de, T: Input> Visitor<'de> for FieldVisitor<T> {
    type Value = Field<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(Field::Null)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Field::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(T::from_boolean(value).into())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(T::from_integer(value).into())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        let value = i64::try_from(value).map_err(|_| T::wrong_type());
        Ok(value.and_then(T::from_integer).into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        let value = whole(value).ok_or_else(T::wrong_type);
        Ok(value.and_then(T::from_integer).into())
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Self::Value, E> {
        Ok(T::from_text(value).into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<Self::Value, A::Error> {
        T::from_elements(elements)
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Self::Value, A::Error> {
        T::from_members(members)
    }
}

/// Returns the value of an integer that is written with a fraction or exponent, as in `1.0` or `1e3` (JSON Schema
/// §6.1.1), and so is read as a double (RFC 8259 §6).
fn whole(double: f64) -> Option<i64> {
    // 2^63 does not fit. -2^63 would, but smaller integers, which are read as doubles, are rounded to it, too.
    const END: f64 = 9_223_372_036_854_775_808.0;
    #[expect(clippy::cast_possible_truncation, reason = "it is whole and fits")]
    let whole = (double.fract() == 0.0 && double.abs() < END).then_some(double as i64);
    whole
}

/// Collects the violations of a request, or of a part of it.
#[derive(Debug, Clone, Default)]
pub struct Violations(Vec<Violation>);

impl Violations {
    /// Adds a violation of `field`.
    pub fn add(&mut self, field: impl Into<String>, reason: impl Display) {
        self.0.push(Violation::new(field, reason));
    }

    /// Returns a checked value, or `None` if it is invalid.
    pub fn check<T>(&mut self, name: &str, checked: Result<T, Invalid>) -> Option<T> {
        self.optional(name, checked.into())
    }

    /// Returns the value of a field that may be absent, or `None` if it is invalid.
    pub fn optional<T>(&mut self, name: &str, field: Field<T>) -> Option<T> {
        match field {
            Field::Absent | Field::Null => None,
            Field::Value(value) => Some(value),
            Field::Invalid(violations) => {
                for Violation { field, reason } in violations.0 {
                    let separator = if name.is_empty() || field.is_empty() || field.starts_with('[')
                    {
                        ""
                    } else {
                        "."
                    };
                    self.add(format!("{name}{separator}{field}"), reason);
                }
                None
            }
        }
    }

    /// Returns the value of a field that must be present, or `None` if it is invalid.
    pub fn required<T>(&mut self, name: &str, field: Field<T>) -> Option<T> {
        if matches!(field, Field::Absent | Field::Null) {
            self.add(name, "is required");
        }
        self.optional(name, field)
    }

    /// Returns the value of a member of a JSON Merge Patch that cannot be removed, or `None` if it is absent or invalid.
    pub fn patched<T>(&mut self, name: &str, field: Field<T>) -> Option<T> {
        self.required(name, field.present()?)
    }

    /// Returns the value of a member of a JSON Merge Patch, `Some(None)` if it is `null`, or `None` if it is absent.
    pub fn removable<T>(&mut self, name: &str, field: Field<T>) -> Option<Option<T>> {
        Some(self.optional(name, field.present()?))
    }

    /// Returns a part of the request as a field, which is invalid if there are violations or no value.
    pub fn field<T>(self, value: Option<T>) -> Field<T> {
        match value {
            Some(value) if self.0.is_empty() => Field::Value(value),
            _ => Field::Invalid(self),
        }
    }

    /// Returns the value, or all violations.
    pub fn finish<T>(self, whole: Option<T>) -> Result<T, Error> {
        match whole {
            Some(whole) if self.0.is_empty() => Ok(whole),
            _ => Err(Error::Invalid(self.0)),
        }
    }
}
