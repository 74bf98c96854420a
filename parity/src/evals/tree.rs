//! JSON of result files as a tree of bounded size.
//!
//! Result files come from Python: they contain `NaN` and `Infinity` as bare words, and lm-eval writes
//! numbers and booleans as strings.

use std::borrow::Cow;

use formats::shown;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

/// Maximum number of values of one record that are kept.
const MOST: usize = 1 << 20;

/// JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum JsonTree {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Self>),
    Map(Vec<(String, Self)>),
}

impl JsonTree {
    /// Parses one line; the values of the keys in `skip` are checked and dropped.
    pub(super) fn parse(line: &[u8], skip: &'static [&'static str]) -> Result<Self, String> {
        let line = quoted(line);
        let mut from = serde_json::Deserializer::from_slice(&line);
        let mut left = MOST;
        let tree = JsonTreeSeed { left: &mut left, skip }.deserialize(&mut from);
        tree.and_then(|tree| from.end().map(|()| tree)).map_err(|why| shown(&why.to_string()))
    }

    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let Self::Map(entries) = self else { return None };
        entries.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// Returns the first of `keys` that exists and is not null.
    pub(super) fn first(&self, keys: &[&str]) -> Option<&Self> {
        keys.iter().find_map(|key| self.get(key).filter(|value| **value != Self::Null))
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        let entries = if let Self::Map(entries) = self { entries.as_slice() } else { &[] };
        entries.iter().map(|(name, _)| name.as_str())
    }

    pub(super) fn entries(&self) -> &[(String, Self)] {
        if let Self::Map(entries) = self { entries } else { &[] }
    }

    pub(super) fn list(&self) -> Option<&[Self]> {
        if let Self::List(values) = self { Some(values) } else { None }
    }

    pub(super) fn str(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// Returns a number, including one that was written as a string or as a boolean.
    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Bool(flag) => Some(f64::from(u8::from(*flag))),
            Self::Text(text) => match text.trim() {
                "True" => Some(1.0),
                "False" => Some(0.0),
                text => text.parse().ok(),
            },
            _ => None,
        }
    }

    pub(super) fn flag(&self) -> Option<bool> {
        match self.number() {
            Some(1.0) => Some(true),
            Some(0.0) => Some(false),
            _ => None,
        }
    }

    /// Returns a scalar as text.
    pub(super) fn word(&self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Number(number) => Some(number.to_string()),
            Self::Bool(flag) => Some(flag.to_string()),
            _ => None,
        }
    }

    /// Returns a scalar, or a list of scalars with commas, as text.
    pub(super) fn words(&self) -> Option<String> {
        match self {
            Self::List(values) => {
                let words: Option<Vec<_>> = values.iter().map(Self::word).collect();
                Some(words?.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", "))
            }
            other => other.word(),
        }
    }

    pub(super) fn numbers(&self) -> Option<Vec<f64>> {
        self.list()?.iter().map(Self::number).collect()
    }

    pub(super) fn ids(&self) -> Option<Vec<u32>> {
        self.list()?.iter().map(Self::id).collect()
    }

    /// Returns the token id that a number is.
    fn id(&self) -> Option<u32> {
        match self {
            Self::Number(id) if *id >= 0.0 && *id <= f64::from(u32::MAX) && id.fract() == 0.0 => {
                Some(*id as u32)
            }
            _ => None,
        }
    }

    pub(super) fn texts(&self) -> Option<Vec<String>> {
        self.list()?.iter().map(|value| value.str().map(str::to_owned)).collect()
    }
}

/// Puts the words `NaN` and `Infinity` outside of strings into quotes.
fn quoted(line: &[u8]) -> Cow<'_, [u8]> {
    if !contains(line, b"NaN") && !contains(line, b"Infinity") {
        return Cow::Borrowed(line);
    }
    let mut out = Vec::with_capacity(line.len() + 16);
    let mut at = 0;
    let mut inside = false;
    while let Some(&byte) = line.get(at) {
        let word: &[u8] = match &line[at..] {
            tail if inside || tail.is_empty() => b"",
            tail if tail.starts_with(b"NaN") => b"NaN",
            tail if tail.starts_with(b"Infinity") => b"Infinity",
            tail if tail.starts_with(b"-Infinity") => b"-Infinity",
            _ => b"",
        };
        if !word.is_empty() {
            out.push(b'"');
            out.extend_from_slice(word);
            out.push(b'"');
            at += word.len();
            continue;
        }
        if inside && byte == b'\\' {
            out.push(byte);
            at += 1;
            out.extend(line.get(at));
            at += 1;
            continue;
        }
        inside ^= byte == b'"';
        out.push(byte);
        at += 1;
    }
    Cow::Owned(out)
}

/// True if a line contains a word.
fn contains(line: &[u8], word: &[u8]) -> bool {
    line.windows(word.len()).any(|window| window == word)
}

/// Deserializes one value, with a limit on the number of values.
struct JsonTreeSeed<'a> {
    left: &'a mut usize,
    skip: &'static [&'static str],
}

impl JsonTreeSeed<'_> {
    fn inner(&mut self) -> JsonTreeSeed<'_> {
        JsonTreeSeed { left: self.left, skip: &[] }
    }
}

impl<'de> DeserializeSeed<'de> for JsonTreeSeed<'_> {
    type Value = JsonTree;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<JsonTree, D::Error> {
        *self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| D::Error::custom(format!("the record has more than {MOST} values")))?;
        from.deserialize_any(self)
    }
}

/// Largest integer that is converted to a number; larger ones stay strings, so that ids remain distinct.
const EXACT: u64 = 1 << 53;

impl<'de> Visitor<'de> for JsonTreeSeed<'_> {
    type Value = JsonTree;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<JsonTree, E> {
        Ok(JsonTree::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<JsonTree, E> {
        Ok(JsonTree::Bool(flag))
    }

    fn visit_u64<E>(self, number: u64) -> Result<JsonTree, E> {
        Ok(if number > EXACT {
            JsonTree::Text(number.to_string())
        } else {
            JsonTree::Number(number as f64)
        })
    }

    fn visit_i64<E>(self, number: i64) -> Result<JsonTree, E> {
        let exact = number.unsigned_abs() <= EXACT;
        Ok(if exact { JsonTree::Number(number as f64) } else { JsonTree::Text(number.to_string()) })
    }

    fn visit_f64<E>(self, number: f64) -> Result<JsonTree, E> {
        Ok(JsonTree::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<JsonTree, E> {
        Ok(JsonTree::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<JsonTree, E> {
        Ok(JsonTree::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<JsonTree, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element_seed(self.inner())? {
            values.push(value);
        }
        Ok(JsonTree::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<JsonTree, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if self.skip.contains(&key.as_str()) {
                map.next_value::<serde::de::IgnoredAny>()?;
            } else {
                let value = map.next_value_seed(self.inner())?;
                entries.push((key, value));
            }
        }
        Ok(JsonTree::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_python_are_numbers_outside_of_strings() {
        let line = br#"{"a": NaN, "b": [-Infinity, Infinity], "c": "NaN \" NaN", "d": "True"}"#;
        let tree = JsonTree::parse(line, &[]).unwrap();
        assert!(tree.get("a").unwrap().number().unwrap().is_nan());
        let b = tree.get("b").unwrap().numbers().unwrap();
        assert_eq!(b, [f64::NEG_INFINITY, f64::INFINITY]);
        assert_eq!(tree.get("c").unwrap().str().unwrap(), "NaN \" NaN");
        assert_eq!(tree.get("d").unwrap().flag(), Some(true));
    }

    #[test]
    fn a_record_is_bounded_and_skipped_keys_take_no_room() {
        let many = format!("{{\"a\": [{}1]}}", "1,".repeat(MOST));
        assert!(JsonTree::parse(many.as_bytes(), &[]).unwrap_err().contains("values"));
        let tree = JsonTree::parse(many.as_bytes(), &["a"]).unwrap();
        assert_eq!(tree.keys().count(), 0);
        let deep = "[".repeat(100_000);
        assert!(JsonTree::parse(deep.as_bytes(), &[]).is_err());
        assert!(JsonTree::parse(b"{} {}", &[]).is_err());
    }

    #[test]
    fn large_ids_remain_apart() {
        let tree = JsonTree::parse(b"[9007199254740993, 9007199254740994, 3]", &[]).unwrap();
        let words: Vec<_> = tree.list().unwrap().iter().filter_map(JsonTree::word).collect();
        assert_eq!(words, ["9007199254740993", "9007199254740994", "3"]);
    }
}
