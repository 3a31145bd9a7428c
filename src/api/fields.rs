//! Reads the fields of a JSON body so that all invalid ones are reported at once.
//!
//! serde stops at the first field of a wrong type. A [`Field`] keeps a type error as a value, which [`Violations`]
//! reports together with those of other fields.
//!
//! Invariant: a body takes no more memory than its strings and the elements that its arrays may have. Values of the
//! wrong type, and elements beyond the maximum, are parsed but not kept: 1 MB of JSON can be 100 MB of values.

use std::{
    fmt::{self, Display},
    marker::PhantomData,
};

use serde::{
    Deserialize, Deserializer,
    de::{
        self, DeserializeOwned, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};

use super::{error::Error, problem::Violation};
use crate::domain::Invalid;

/// Kind of a JSON value in a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Boolean,
    /// A 64-bit integer.
    Integer,
    /// A string.
    String,
    /// An array.
    Array,
    /// An object.
    Object,
}

impl Kind {
    /// Returns the kind in words that follow "must be " in an error message.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Boolean => "true or false",
            Self::Integer => "a 64-bit integer",
            Self::String => "a string",
            Self::Array => "an array",
            Self::Object => "an object",
        }
    }

    /// Returns true if JSON that begins with `byte` may be of this kind.
    pub const fn may_begin_with(self, byte: Option<&u8>) -> bool {
        match self {
            Self::Boolean | Self::Integer | Self::String => true,
            Self::Array => matches!(byte, Some(b'[')),
            Self::Object => matches!(byte, Some(b'{')),
        }
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

/// Type of a field in a JSON body.
pub trait FieldType: DeserializeOwned + Send {
    /// Kind of its values; an object unless the type sets another.
    const KIND: Kind = Kind::Object;
    /// Value outside the bounds of every field. For a value of another type, its range error replaces the type error.
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

/// Array of at most `MAX` elements. Of a longer one, only the first `MAX + 1` are kept, which its length shows.
#[derive(Debug)]
pub struct Array<T, const MAX: usize>(pub Vec<Field<T>>);

impl<T: FieldType, const MAX: usize> FieldType for Array<T, MAX> {
    const KIND: Kind = Kind::Array;
}

impl<'de, T: FieldType, const MAX: usize> Deserialize<'de> for Array<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: FieldType, const MAX: usize> Visitor<'de> for Elements<T, MAX> {
            type Value = Array<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut elements: A,
            ) -> Result<Self::Value, A::Error> {
                let mut kept = Vec::new();
                while kept.len() <= MAX {
                    match elements.next_element()? {
                        Some(element) => kept.push(element),
                        None => return Ok(Array(kept)),
                    }
                }
                IgnoredAny.visit_seq(elements)?;
                Ok(Array(kept))
            }
        }
        deserializer.deserialize_seq(Elements(PhantomData))
    }
}

/// Field of a JSON object, or element of an array.
#[derive(Debug, Default, Clone, Copy)]
pub enum Field<T> {
    /// Absent, or `null`, which means the same.
    #[default]
    Absent,
    /// Present.
    Value(T),
    /// Present, but of another type.
    WrongType,
}

impl<'de, T: FieldType> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // serde reads an absent member as `None`, too.
        deserializer.deserialize_option(FieldVisitor(PhantomData))
    }
}

struct FieldVisitor<T>(PhantomData<T>);

impl<T: FieldType> FieldVisitor<T> {
    fn scalar<'de, V: IntoDeserializer<'de, E>, E: de::Error>(
        kind: Kind,
        value: V,
    ) -> Result<Field<T>, E> {
        if T::KIND != kind {
            return Ok(Field::WrongType);
        }
        T::deserialize(value.into_deserializer()).map(Field::Value)
    }
}

impl<'de, T: FieldType> Visitor<'de> for FieldVisitor<T> {
    type Value = Field<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(Field::Absent)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Field::Absent)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
        Self::scalar(Kind::Boolean, value)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        Self::scalar(Kind::Integer, value)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        i64::try_from(value).map_or(Ok(Field::WrongType), |value| self.visit_i64(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        whole(value).map_or(Ok(Field::WrongType), |value| self.visit_i64(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Self::Value, E> {
        Self::scalar(Kind::String, value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, elements: A) -> Result<Self::Value, A::Error> {
        if T::KIND != Kind::Array {
            return IgnoredAny.visit_seq(elements).map(|_| Field::WrongType);
        }
        T::deserialize(SeqAccessDeserializer::new(elements)).map(Field::Value)
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Self::Value, A::Error> {
        if T::KIND != Kind::Object {
            return IgnoredAny.visit_map(members).map(|_| Field::WrongType);
        }
        T::deserialize(MapAccessDeserializer::new(members)).map(Field::Value)
    }
}

/// Member of a JSON Merge Patch: `None` if it is absent, [`Field::Absent`] if it is `null`.
pub type Member<T> = Option<Field<T>>;

/// Deserializes a [`Member`] that is present.
pub fn present<'de, D: Deserializer<'de>, T: FieldType>(field: D) -> Result<Member<T>, D::Error> {
    Field::deserialize(field).map(Some)
}

/// Collects the violations of a request.
#[derive(Debug, Clone, Default)]
pub struct Violations(Vec<Violation>);

impl Violations {
    /// Adds a violation of `field`.
    pub fn add(&mut self, field: impl Into<String>, reason: impl Display) {
        self.0.push(Violation::new(field, reason));
    }

    /// Checks a field that may be absent.
    pub fn optional<T: FieldType, U>(
        &mut self,
        name: impl Display,
        field: Field<T>,
        check: impl FnOnce(T) -> Result<U, Invalid>,
    ) -> Option<U> {
        let checked = match field {
            Field::Absent => return None,
            Field::Value(value) => check(value).map_err(|reason| reason.to_string()),
            Field::WrongType => {
                let bounds = T::PAST_BOUNDS.and_then(|value| check(value).err());
                Err(match bounds {
                    Some(bounds) => bounds.to_string(),
                    None => format!("must be {}", T::KIND.name()),
                })
            }
        };
        (checked.map_err(|reason| self.add(name.to_string(), reason))).ok()
    }

    /// Checks a field that must be present.
    pub fn required<T: FieldType, U>(
        &mut self,
        name: impl Display,
        field: Field<T>,
        check: impl FnOnce(T) -> Result<U, Invalid>,
    ) -> Option<U> {
        let name = name.to_string();
        // A parameter given twice reads as absent, but its violation is already reported.
        let is_known = self.0.iter().any(|violation| violation.field == name);
        if matches!(field, Field::Absent) && !is_known {
            self.add(&name, "is required");
        }
        self.optional(name, field, check)
    }

    /// Checks the length of an array, then each element. An absent array is empty.
    pub fn array<T: FieldType, U, const MAX: usize>(
        &mut self,
        name: &str,
        field: Field<Array<T, MAX>>,
        check_length: impl FnOnce(usize) -> Result<(), Invalid>,
        mut check: impl FnMut(&mut Self, String, Field<T>) -> Option<U>,
    ) -> Vec<U> {
        // The elements of an array that is too long are not checked, since each could add a violation.
        let elements = self.optional(name, field, |Array(elements)| {
            check_length(elements.len()).map(|()| elements)
        });
        let elements = elements.unwrap_or_default().into_iter().enumerate();
        elements
            .filter_map(|(index, element)| check(self, format!("{name}[{index}]"), element))
            .collect()
    }

    /// Returns the value, or all violations.
    pub fn finish<T>(self, whole: Option<T>) -> Result<T, Error> {
        match whole {
            Some(whole) if self.0.is_empty() => Ok(whole),
            _ => Err(Error::Invalid(self.0)),
        }
    }
}
