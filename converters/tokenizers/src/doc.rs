//! JSON files of a checkpoint, parsed so that every error names the file and the key.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::Error;
use formats::python_json::words_as_texts;

/// Parsed JSON file.
#[derive(Debug)]
pub(super) struct Doc {
    pub(super) file: PathBuf,
    pub(super) value: Value,
}

/// Value in a file, with its path of keys.
#[derive(Clone)]
pub(super) struct DocNode<'a> {
    file: &'a Path,
    at: String,
    pub(super) value: &'a Value,
}

/// Reads a file of `dir`, if it exists.
pub(super) fn parse<T: for<'a> Deserialize<'a>>(
    dir: &Path,
    name: &str,
) -> Result<Option<(PathBuf, T)>, Error> {
    let file = dir.join(name);
    if !file.is_file() {
        return Ok(None);
    }
    let bytes = registry::file::read(&file, registry::file::TOKENIZER)?;
    match serde_json::from_slice(&words_as_texts(&bytes)) {
        Ok(value) => Ok(Some((file, value))),
        Err(why) => Err(Error::NotJson { file, why: formats::shown(&why.to_string()) }),
    }
}

impl Doc {
    /// Reads a file of `dir`, if it exists. It must hold an object.
    pub(super) fn read(dir: &Path, name: &str) -> Result<Option<Self>, Error> {
        let read = parse::<Map<String, Value>>(dir, name)?;
        Ok(read.map(|(file, map)| Self { file, value: Value::Object(map) }))
    }

    pub(super) fn get(&self, key: &str) -> Option<DocNode<'_>> {
        DocNode::new(&self.file, "", &self.value).get(key)
    }

    /// Returns the value of a dotted key.
    pub(super) fn find(&self, key: &str) -> Option<DocNode<'_>> {
        key.split('.')
            .try_fold(DocNode::new(&self.file, "", &self.value), |node, key| node.get(key))
    }
}

impl<'a> DocNode<'a> {
    pub(super) fn new(file: &'a Path, at: &str, value: &'a Value) -> Self {
        Self { file, at: at.to_owned(), value }
    }

    /// Returns a node for a value, unless it is null.
    pub(super) fn set(file: &'a Path, at: &str, value: &'a Value) -> Option<Self> {
        (!value.is_null()).then(|| Self::new(file, at, value))
    }

    /// Returns the value of an object's key. Null counts as absent.
    pub(super) fn get(&self, key: &str) -> Option<Self> {
        let value = self.value.get(key).filter(|value| !value.is_null())?;
        let at = if self.at.is_empty() { key.to_owned() } else { format!("{}.{key}", self.at) };
        Some(Self { file: self.file, at, value })
    }

    /// Returns the elements of a list.
    pub(super) fn list(&self) -> Result<impl Iterator<Item = Self> + use<'a>, Error> {
        let list = self.value.as_array().ok_or_else(|| self.wrong("a list"))?;
        let file = self.file;
        let at = self.at.clone();
        Ok(list.iter().enumerate().map(move |(n, value)| Self {
            file,
            at: format!("{at}[{n}]"),
            value,
        }))
    }

    pub(super) fn str(&self) -> Result<&'a str, Error> {
        self.value.as_str().ok_or_else(|| self.wrong("a text"))
    }

    pub(super) fn u64(&self) -> Result<u64, Error> {
        self.value.as_u64().ok_or_else(|| self.wrong("an integer of at least 0"))
    }

    pub(super) fn bool(&self) -> Result<bool, Error> {
        self.value.as_bool().ok_or_else(|| self.wrong("true or false"))
    }

    /// Returns the flag of a key; false if it is absent.
    pub(super) fn flag(&self, key: &str) -> Result<bool, Error> {
        self.get(key).map_or(Ok(false), |node| node.bool())
    }

    /// Returns the value of a required key.
    pub(super) fn need(&self, key: &str, expected: &'static str) -> Result<Self, Error> {
        self.get(key).ok_or_else(|| {
            Error::key(self.file, &format!("{}.{key}", self.at), "not there", expected)
        })
    }

    pub(super) fn wrong(&self, expected: &'static str) -> Error {
        let mut text = self.value.to_string();
        if text.len() > 80 {
            text = match self.value {
                Value::Object(_) => "an object".into(),
                Value::Array(_) => "a list".into(),
                _ => text,
            };
        }
        Error::key(self.file, &self.at, text, expected)
    }
}
