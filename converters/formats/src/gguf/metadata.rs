//! Keys of a file, in order.

use indexmap::IndexMap;

use super::{Error, MetadataArray, MetadataKind, MetadataValue};
use crate::shown;

/// Keys and values in file order. A key occurs once.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    entries: IndexMap<String, MetadataValue>,
}

impl Metadata {
    /// Returns metadata without keys.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a key. An existing key moves to the end with its new value, as in llama.cpp's tools.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<MetadataValue>) {
        let key = key.into();
        self.entries.shift_remove(&key);
        self.entries.insert(key, value.into());
    }

    /// Appends a key. Returns false if it already exists.
    pub(super) fn push(&mut self, key: String, value: MetadataValue) -> bool {
        self.entries.insert(key, value).is_none()
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &str) -> Option<MetadataValue> {
        self.entries.shift_remove(key)
    }

    /// Returns a key's value, of any kind.
    pub fn get(&self, key: &str) -> Option<&MetadataValue> {
        self.entries.get(key)
    }

    /// Iterates over keys and values in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &MetadataValue)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns a string, if the key exists.
    pub fn str(&self, key: &str) -> Result<Option<&str>, Error> {
        self.read(key, "a string", |value| match value {
            MetadataValue::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// Returns an integer of any kind that fits a `u32`, if the key exists.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.read(key, "an integer from 0 to 4294967295", |value| {
            u32::try_from(value.integer()?).ok()
        })
    }

    /// Returns an f32, if the key exists.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.read(key, "a number of kind f32", |value| match value {
            MetadataValue::F32(x) => Some(*x),
            _ => None,
        })
    }

    /// Returns a boolean, if the key exists.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.read(key, "a bool", |value| match value {
            MetadataValue::Bool(x) => Some(*x),
            _ => None,
        })
    }

    /// Returns an array, if the key exists.
    pub fn array(&self, key: &str) -> Result<Option<&MetadataArray>, Error> {
        self.read(key, "an array", |value| match value {
            MetadataValue::Array(array) => Some(array),
            _ => None,
        })
    }

    /// Returns strings, if the key exists.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, Error> {
        self.read(key, "an array of strings", |value| match value {
            MetadataValue::Array(array) => array.strings(),
            _ => None,
        })
    }

    fn read<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&'a MetadataValue) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| {
            let number = value.integer().map_or(String::new(), |x| format!(" {x}"));
            Error::WrongKind { key: shown(key), found: value.kind_name() + &number, expected }
        })
    }

    /// Returns the alignment of tensors: a power of two.
    pub(super) fn alignment(&self) -> Result<u64, String> {
        match self.get(super::ALIGNMENT_KEY) {
            None => Ok(super::ALIGNMENT),
            Some(MetadataValue::U32(x)) if x.is_power_of_two() => Ok(u64::from(*x)),
            Some(MetadataValue::U32(x)) => Err(x.to_string()),
            Some(other) => Err(format!("a value of kind {}", other.kind_name())),
        }
    }

    /// Checks the rules of the writer: no empty keys, nothing longer than the limit.
    pub(super) fn check(&self) -> Result<(), (String, u64)> {
        for (key, value) in self.iter() {
            check_length(key, key)?;
            match value {
                MetadataValue::String(text) => check_length(key, text)?,
                MetadataValue::Array(array) if array.len() as u64 > super::MAX_LENGTH => {
                    return Err((shown(key), array.len() as u64));
                }
                MetadataValue::Array(array) if array.kind() == MetadataKind::String => {
                    let texts = array.strings().unwrap_or(&[]);
                    texts.iter().try_for_each(|text| check_length(key, text))?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns an error with the key and the length of a text, if the text is longer than the limit.
fn check_length(key: &str, text: &str) -> Result<(), (String, u64)> {
    let length = text.len() as u64;
    if length > super::MAX_LENGTH { Err((shown(key), length)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_order_and_move_when_set_again() {
        let mut keys = Metadata::new();
        keys.set("a", 1_u32);
        keys.set("b", "x");
        keys.set("c", vec![true]);
        keys.set("a", 2_u16);
        assert_eq!(keys.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["b", "c", "a"]);
        assert_eq!(keys.u32("a").unwrap(), Some(2));
        assert_eq!(keys.remove("b"), Some(MetadataValue::from("x")));
        assert_eq!((keys.len(), keys.is_empty(), keys.u32("b").unwrap()), (2, false, None));
    }

    #[test]
    fn a_wrong_kind_is_named() {
        let mut keys = Metadata::new();
        keys.set("a", -3_i64);
        keys.set("b", vec![1_u8]);
        let message = keys.u32("a").unwrap_err().to_string();
        assert!(message.contains("`a` is of kind i64 -3"), "{message}");
        assert!(keys.f32("a").is_err() && keys.bool("a").is_err() && keys.array("a").is_err());
        let message = keys.str("b").unwrap_err().to_string();
        assert!(message.contains("array of u8") && message.contains("a string"), "{message}");
        assert_eq!(keys.array("b").unwrap().unwrap().integers(), Some(vec![1]));
        assert!(keys.strings("b").is_err());
    }
}
