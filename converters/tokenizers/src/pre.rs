//! Chooses the pre-tokenizer: the llama.cpp rule for splitting text that matches the tokenizer.
//!
//! There are three sources: the caller's choice, a known hash of a test text's ids, and known steps of
//! tokenizer.json. The first available source decides, and a warning reports any other source that
//! disagrees. The hash changes with every added token; the steps do not.

use std::sync::LazyLock;

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::json::TokenizerJson;
use super::pre_table::{find, group, names};
use super::structure;
use super::{Error, ReferenceTokenizer, TokenizerOptions};
use formats::shown;

#[derive(Deserialize)]
struct PreHashes {
    text: String,
    entries: Vec<PreHash>,
}

#[derive(Deserialize)]
struct PreHash {
    hash: String,
    pre: String,
}

static HASHES: LazyLock<PreHashes> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../data/pre_hashes.json"))
        .expect("the table is part of the program, and a test reads it")
});

/// Chooses the name of the pre-tokenizer.
pub(super) fn choose(
    json: &TokenizerJson,
    tokenizer: &ReferenceTokenizer,
    options: &TokenizerOptions,
    warnings: &mut Vec<String>,
) -> Result<String, Error> {
    let hash = hash(tokenizer)?;
    let by_hash = HASHES
        .entries
        .iter()
        .map(|entry| (&entry.hash, &entry.pre))
        .chain(options.hashes.iter().map(|(hash, pre)| (hash, pre)))
        // The last match takes precedence, as in the converter that the table comes from.
        .rfind(|(known, _)| **known == hash)
        .map(|(_, pre)| pre.clone());
    let steps = structure::steps(&json.pre_tokenizer);
    let by_steps = group(&steps);
    let requested = options.pre.clone();
    let Some(chosen) = requested
        .clone()
        .or_else(|| by_hash.clone())
        .or_else(|| by_steps.map(|group| group.name(json.ignore_merges).to_owned()))
    else {
        let steps = steps.iter().map(|step| shown(step)).collect();
        return Err(Error::NoPre { file: json.file.clone(), steps, hash });
    };
    let Some((group, name)) = find(&chosen) else {
        let known = names().collect::<Vec<_>>().join(", ");
        return Err(Error::UnknownPre { name: shown(&chosen), known });
    };
    if let (Some(_), Some(other)) = (&requested, &by_hash)
        && find(other).is_none_or(|(other, _)| other.split != group.split)
    {
        warnings.push(format!(
            "the pre-tokenizer `{chosen}` was asked for, but the tokenizer is known as `{other}` \
             by the hash of a test text"
        ));
    }
    if let Some(other) = by_steps
        && other.split != group.split
    {
        warnings.push(format!(
            "the pre-tokenizer is `{chosen}` {}, but the steps of tokenizer.json are those of `{}`",
            if requested.is_some() {
                "because it was asked for"
            } else {
                "by the hash of a test text"
            },
            other.name(json.ignore_merges)
        ));
    }
    if name.ignore_merges != json.ignore_merges {
        warnings.push(format!(
            "under the name `{chosen}` whole words that are tokens are {}, but tokenizer.json says \
             `ignore_merges: {}`",
            if name.ignore_merges { "taken as they are" } else { "made by merges" },
            json.ignore_merges
        ));
    }
    Ok(chosen)
}

/// Returns the hash of the test text's ids, formatted as a Python list.
fn hash(tokenizer: &ReferenceTokenizer) -> Result<String, Error> {
    let ids = tokenizer.encode(&HASHES.text, true)?;
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    let digest = Sha256::digest(format!("[{}]", ids.join(", ")));
    Ok(format!("{digest:x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hashes_are_read() {
        assert_eq!(HASHES.entries.len(), 97);
        assert_eq!(HASHES.text.chars().count(), 350);
    }
}
