//! Fields of a JSON body, read so that every wrong one is named at once.
//!
//! serde stops at the first field of a wrong type. A [`Field`] swallows the type error and keeps it
//! for [`Violations`], where it stands beside the broken rules of the other fields.

use std::fmt::Display;

use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

use super::{error::Error, problem::Violation};
use crate::domain::Invalid;

/// The kinds of JSON values that bodies are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Boolean,
    /// A number without a fraction, of 64 bits.
    Integer,
    /// A text.
    String,
    /// An array.
    Array,
    /// An object.
    Object,
}

impl Kind {
    /// What a client should have sent, after "must be ".
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Boolean => "true or false",
            Self::Integer => "a 64-bit integer",
            Self::String => "a string",
            Self::Array => "an array",
            Self::Object => "an object",
        }
    }

    fn is_of(self, value: &Value) -> bool {
        match self {
            Self::Boolean => value.is_boolean(),
            Self::Integer => value.is_i64() || whole(value).is_some(),
            Self::String => value.is_string(),
            Self::Array => value.is_array(),
            Self::Object => value.is_object(),
        }
    }

    /// Whether JSON that begins so may be of this kind.
    #[must_use]
    pub const fn may_begin_with(self, byte: Option<&u8>) -> bool {
        match self {
            Self::Boolean | Self::Integer | Self::String => true,
            Self::Array => matches!(byte, Some(b'[')),
            Self::Object => matches!(byte, Some(b'{')),
        }
    }
}

/// An integer written with a fraction or an exponent, `1.0` or `1e3`, which is one all the same (JSON Schema
/// §6.1.1); as the double that it is to every reader (RFC 8259 §6).
fn whole(value: &Value) -> Option<i64> {
    // 2^63. It does not fit; -2^63 would, but integers below it, which are read as doubles, come out as it too.
    const END: f64 = 9_223_372_036_854_775_808.0;
    let double = value.as_f64().filter(|_| value.is_f64())?;
    #[expect(clippy::cast_possible_truncation, reason = "it is whole and fits")]
    let whole = (double.fract() == 0.0 && double.abs() < END).then_some(double as i64);
    whole
}

/// A type that can stand in a JSON body.
pub trait FieldType: DeserializeOwned {
    /// Of what kind its values are.
    const KIND: Kind;
    /// A value past every bound of a field: what is wrong with it says more than the type does.
    const PAST_BOUNDS: Option<Self> = None;
}

impl FieldType for bool {
    const KIND: Kind = Kind::Boolean;
}

impl FieldType for i64 {
    const KIND: Kind = Kind::Integer;
    const PAST_BOUNDS: Option<Self> = Some(Self::MIN);
}

impl FieldType for String {
    const KIND: Kind = Kind::String;
}

impl<T: FieldType> FieldType for Vec<Field<T>> {
    const KIND: Kind = Kind::Array;
}

/// A field of a JSON object, or an element of an array.
#[derive(Debug, Default)]
pub enum Field<T> {
    /// Not there, or `null`, which means the same.
    #[default]
    Absent,
    /// There.
    Value(T),
    /// There, and of another type.
    WrongType,
}

impl<T: Copy> Field<T> {
    /// The same, to be looked at more than once.
    #[must_use]
    pub const fn copied(&self) -> Self {
        match self {
            Self::Absent => Self::Absent,
            Self::Value(value) => Self::Value(*value),
            Self::WrongType => Self::WrongType,
        }
    }
}

impl<'de, T: FieldType> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Value::deserialize(deserializer)? {
            Value::Null => Self::Absent,
            value if T::KIND.is_of(&value) => {
                let value = whole(&value).map_or(value, Value::from);
                T::deserialize(value).map_or(Self::WrongType, Self::Value)
            }
            _ => Self::WrongType,
        })
    }
}

/// Collects what is wrong with a body.
#[derive(Debug, Default)]
pub struct Violations(Vec<Violation>);

impl Violations {
    /// Adds a broken rule.
    pub fn add(&mut self, field: impl Into<String>, reason: impl Display) {
        self.0.push(Violation::new(field, reason));
    }

    /// A field that may be absent, checked.
    pub fn optional<T: FieldType, U>(
        &mut self,
        name: impl Display,
        field: Field<T>,
        check: impl FnOnce(T) -> Result<U, Invalid>,
    ) -> Option<U> {
        match field {
            Field::Absent => None,
            Field::Value(value) => check(value)
                .map_err(|reason| self.add(name.to_string(), reason))
                .ok(),
            Field::WrongType => {
                let bounds = T::PAST_BOUNDS.and_then(|value| check(value).err());
                let kind = || format!("must be {}", T::KIND.name());
                let reason = bounds.map_or_else(kind, |bounds| bounds.to_string());
                self.add(name.to_string(), reason);
                None
            }
        }
    }

    /// A field that must be there, checked.
    pub fn required<T: FieldType, U>(
        &mut self,
        name: impl Display,
        field: Field<T>,
        check: impl FnOnce(T) -> Result<U, Invalid>,
    ) -> Option<U> {
        let name = name.to_string();
        // What was there twice is not read, and yet not missing.
        let is_known = self.0.iter().any(|violation| violation.field == name);
        if matches!(field, Field::Absent) && !is_known {
            self.add(&name, "is required");
        }
        self.optional(name, field, check)
    }

    /// An array: first its length is checked, then each element; absent is empty.
    pub fn array<T: FieldType, U>(
        &mut self,
        name: &str,
        field: Field<Vec<Field<T>>>,
        check_length: impl FnOnce(usize) -> Result<(), Invalid>,
        mut check: impl FnMut(&mut Self, String, Field<T>) -> Option<U>,
    ) -> Vec<U> {
        // Elements past the bound are not looked at: what is wrong with each would be said, too.
        let elements = self.optional(name, field, |elements| {
            check_length(elements.len()).map(|()| elements)
        });
        elements
            .unwrap_or_default()
            .into_iter()
            .enumerate()
            .filter_map(|(index, element)| check(self, format!("{name}[{index}]"), element))
            .collect()
    }

    /// The whole, unless a part of it was wrong.
    ///
    /// # Errors
    /// [`Error::Invalid`] with all that was added.
    pub fn finish<T>(self, whole: Option<T>) -> Result<T, Error> {
        match whole {
            Some(whole) if self.0.is_empty() => Ok(whole),
            _ => Err(Error::Invalid(self.0)),
        }
    }
}
