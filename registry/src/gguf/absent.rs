//! Keys that a file lacks, as llama.cpp reads them: `gguf: absent:` of a spec.
//!
//! A converter leaves a key out where llama.cpp takes the value that is meant. Another model may take
//! another one, so a key that is not there is never what a spec has by default.
//!
//! The reasons are in [decision 22](../../../docs/decisions/0022-absent-gguf-keys.md).

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;

use super::file_metadata::{FileMetadata, MetadataEnv, set};
use crate::eval::{self, Fuel};
use crate::scalar::Scalar;
use crate::spec::AbsentKey;

/// A file with values for the keys that it lacks.
pub(super) struct CompletedMetadata {
    /// The file.
    pub(super) header: FileMetadata,
    /// Keys that have such a value.
    pub(super) assumed: BTreeSet<String>,
    /// Keys that have none, and the reason why the file cannot lack them; none if it can.
    without: BTreeMap<String, Option<&'static str>>,
}

impl CompletedMetadata {
    /// Returns the reason why a file cannot lack a key of the model.
    pub(super) fn missing_reason(&self, key: &str) -> Option<&'static str> {
        let unsaid = Some("the spec does not say under `gguf: absent:` what that means");
        self.without.get(key).copied().unwrap_or(unsaid)
    }
}

/// Reads a file as llama.cpp does. Each value may follow from those before it.
pub(super) fn with_absent_keys(
    absent: &IndexMap<String, AbsentKey>,
    header: &FileMetadata,
) -> CompletedMetadata {
    let mut read = CompletedMetadata {
        header: header.clone(),
        assumed: BTreeSet::new(),
        without: BTreeMap::new(),
    };
    let fuel = Fuel::default();
    for (key, meaning) in absent {
        if read.header.keys.peek(key).is_some() {
            continue;
        }
        let value = match meaning {
            AbsentKey::Value(expr) => {
                let env = MetadataEnv { keys: &read.header.keys, fuel: &fuel };
                eval::eval_owned(expr, &env).ok()
            }
            AbsentKey::Required | AbsentKey::Unread => None,
        };
        let why = match (meaning, value) {
            (AbsentKey::Unread, _) => None,
            (_, Some(Scalar::Null)) => Some("llama.cpp does without what it says"),
            (_, Some(value)) => {
                if let Some(entries) = read.header.keys.entries_mut() {
                    set(entries, key, value, false);
                }
                read.assumed.insert(key.clone());
                continue;
            }
            (_, None) => Some("llama.cpp needs it"),
        };
        read.without.insert(key.clone(), why);
    }
    read
}

#[cfg(test)]
mod tests;
