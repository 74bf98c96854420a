//! Arguments of recorded calls.

use serde_json::Value as Json;

use crate::number::Number;

/// An argument of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// A recorded tensor.
    Value(usize),
    /// Several.
    List(Vec<Self>),
    /// A number or word.
    Number(Number),
    /// A slice with its ends and step.
    Slice(Box<[Self; 3]>),
    /// All axes that are not named.
    Ellipsis,
    /// A dtype of torch.
    Dtype(String),
    /// Nothing.
    None,
}

impl Operand {
    /// Reads an argument.
    pub fn parse(json: &Json) -> Self {
        match json {
            Json::Array(items) => Self::List(items.iter().map(Self::parse).collect()),
            Json::Object(map) => {
                if let Some(number) = map.get("v").and_then(Json::as_u64) {
                    return Self::Value(number as usize);
                }
                if let Some(expression) = map.get("e") {
                    return match Number::parse(expression) {
                        Number::None => Self::None,
                        number => Self::Number(number),
                    };
                }
                if let Some(Json::Array(ends)) = map.get("slice") {
                    let end = |place: usize| ends.get(place).map_or(Self::None, Self::parse);
                    return Self::Slice(Box::new([end(0), end(1), end(2)]));
                }
                if map.contains_key("ellipsis") {
                    return Self::Ellipsis;
                }
                map.get("dtype")
                    .and_then(Json::as_str)
                    .map_or(Self::None, |dtype| Self::Dtype(dtype.to_owned()))
            }
            _ => Self::None,
        }
    }

    /// Returns the number of a tensor.
    pub fn value(&self) -> Option<usize> {
        match self {
            Self::Value(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the numbers of all tensors in the argument.
    pub fn values(&self) -> Vec<usize> {
        match self {
            Self::Value(number) => vec![*number],
            Self::List(items) => items.iter().flat_map(Self::values).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the whole number of a literal.
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Number(Number::Int(value)) => Some(*value),
            Self::Number(Number::Bool(truth)) => Some(i64::from(*truth)),
            _ => None,
        }
    }
}
