//! JSON values whose objects keep the order of their keys, which templates print.

use std::fmt;

use indexmap::IndexMap;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::Number;

/// JSON value with ordered objects, since templates print keys in order. `serde_json::Value` sorts keys unless the feature
/// `preserve_order` is on.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum OrderedJson {
    /// `null`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// Number.
    Number(Number),
    /// Text.
    Text(String),
    /// Array.
    List(Vec<Self>),
    /// Object, in the order of its text.
    Map(IndexMap<String, Self>),
}

impl OrderedJson {
    /// Parses a JSON text. Depth is limited by `serde_json`.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Returns the value of an object's key. Null counts as absent.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Map(map) => map.get(key).filter(|value| !matches!(value, Self::Null)),
            _ => None,
        }
    }

    /// Returns the text of a text value.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the bytes of all texts and keys, and 8 for each other value.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Null | Self::Bool(_) | Self::Number(_) => 8,
            Self::Text(text) => 8 + text.len(),
            Self::List(list) => list.iter().map(Self::size).sum::<usize>() + 8,
            Self::Map(map) => map.iter().map(|(key, value)| key.len() + value.size()).sum(),
        }
    }

    /// Returns the depth of lists and objects.
    pub(crate) fn depth(&self) -> usize {
        match self {
            Self::List(list) => 1 + list.iter().map(Self::depth).max().unwrap_or(0),
            Self::Map(map) => 1 + map.values().map(Self::depth).max().unwrap_or(0),
            _ => 0,
        }
    }
}

impl From<&str> for OrderedJson {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<serde_json::Value> for OrderedJson {
    fn from(value: serde_json::Value) -> Self {
        match value {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(yes) => Self::Bool(yes),
            serde_json::Value::Number(number) => Self::Number(number),
            serde_json::Value::String(text) => Self::Text(text),
            serde_json::Value::Array(list) => {
                Self::List(list.into_iter().map(Self::from).collect())
            }
            serde_json::Value::Object(map) => {
                Self::Map(map.into_iter().map(|(key, value)| (key, Self::from(value))).collect())
            }
        }
    }
}

impl Serialize for OrderedJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(yes) => serializer.serialize_bool(*yes),
            Self::Number(number) => number.serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(list) => list.serialize(serializer),
            Self::Map(map) => {
                let mut out = serializer.serialize_map(Some(map.len()))?;
                for (key, value) in map {
                    out.serialize_entry(key, value)?;
                }
                out.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for OrderedJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = OrderedJson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Null)
    }

    fn visit_bool<E>(self, yes: bool) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Bool(yes))
    }

    fn visit_i64<E>(self, number: i64) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<OrderedJson, E> {
        Ok(Number::from_f64(number).map_or(OrderedJson::Null, OrderedJson::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<OrderedJson, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = access.next_element()? {
            list.push(value);
        }
        Ok(OrderedJson::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<OrderedJson, A::Error> {
        let mut map = IndexMap::new();
        // A repeated key keeps its first place and its last value, as in Python.
        while let Some((key, value)) = access.next_entry::<String, OrderedJson>()? {
            map.insert(key, value);
        }
        Ok(OrderedJson::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order() {
        let text = r#"{"z":1,"a":[null,true,2.5,-7,18446744073709551615,{"y":"x","b":{}}]}"#;
        let value = OrderedJson::parse(text).unwrap();
        assert_eq!(serde_json::to_string(&value).unwrap(), text);
        assert_eq!(value.depth(), 4);
        assert!(value.get("a").is_some() && value.get("q").is_none());
    }

    #[test]
    fn a_repeated_key_keeps_its_place_and_its_last_value() {
        let value = OrderedJson::parse(r#"{"a":1,"b":2,"a":3}"#).unwrap();
        assert_eq!(serde_json::to_string(&value).unwrap(), r#"{"a":3,"b":2}"#);
    }
}
