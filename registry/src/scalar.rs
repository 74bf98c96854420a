//! Values of the dims language: what `config.json` holds and expressions compute.

use std::fmt;

use serde_json::{Number, Value};

/// One value.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    /// `null`, also a key that is absent.
    Null,
    /// `true`, `false`.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// Text.
    Str(String),
    /// A list.
    List(Vec<Self>),
    /// An object of `config.json`, keys in file order.
    Map(Vec<(String, Self)>),
}

impl Scalar {
    /// Returns the word for this kind of value in messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Int(_) => "an integer",
            Self::Float(_) => "a number",
            Self::Str(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }

    /// Returns a number of either kind as a float.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Int(n) => Some(*n as f64),
            Self::Float(x) => Some(*x),
            _ => None,
        }
    }

    /// Returns a count: an integer that is not negative.
    pub fn as_usize(&self) -> Option<usize> {
        match self {
            Self::Int(n) => usize::try_from(*n).ok(),
            _ => None,
        }
    }

    /// Converts a value to JSON; `inexpressible` gives numbers that JSON cannot express.
    pub(crate) fn json(&self, inexpressible: fn(f64) -> Value) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(flag) => (*flag).into(),
            Self::Int(n) => (*n).into(),
            Self::Float(x) => Number::from_f64(*x).map_or_else(|| inexpressible(*x), Value::Number),
            Self::Str(text) => text.as_str().into(),
            Self::List(items) => items.iter().map(|item| item.json(inexpressible)).collect(),
            Self::Map(entries) => entries
                .iter()
                .map(|(key, value)| (key.clone(), value.json(inexpressible)))
                .collect(),
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(b) => b.fmt(f),
            Self::Int(n) => n.fmt(f),
            Self::Float(x) => write!(f, "{x:?}"),
            Self::Str(s) => write!(f, "'{s}'"),
            Self::List(items) => {
                f.write_str("[")?;
                for (n, item) in items.iter().enumerate() {
                    if n > 0 {
                        f.write_str(", ")?;
                    }
                    item.fmt(f)?;
                }
                f.write_str("]")
            }
            Self::Map(entries) => {
                f.write_str("{")?;
                for (n, (key, value)) in entries.iter().enumerate() {
                    if n > 0 {
                        f.write_str(", ")?;
                    }
                    write!(f, "{key}: {value}")?;
                }
                f.write_str("}")
            }
        }
    }
}

impl From<&Scalar> for Value {
    /// Converts a scalar to JSON; numbers that JSON cannot express become null.
    fn from(value: &Scalar) -> Self {
        value.json(|_| Self::Null)
    }
}
