//! Tokenizers, from a checkpoint's files to the keys of a GGUF file.
//!
//! Three kinds are written: merges of bytes, from tokenizer.json or from vocab.json with merges.txt; pieces
//! that are merged by score, from tokenizer.model or from a tokenizer.json that falls back to bytes;
//! and Unigram models, from tokenizer.json. Keys, their order and what they hold are those of llama.cpp's
//! converter, so that its loader does with them what it does with files of its own.
//!
//! * [`Reference`] runs the checkpoint's own tokenizer;
//! * [`read`] makes the keys;
//! * [`self_check`] tokenizes a corpus as llama.cpp would with these keys, and compares.

use std::path::Path;

use formats::gguf::Metadata;
use formats::shown;

mod around;
mod bpe;
pub mod check;
mod doc;
mod error;
mod json;
mod named;
mod pair;
mod pieces;
mod pre;
mod proto;
mod reference;
mod special;
mod spm;
mod structure;
mod table;
mod template;

pub use check::{Checked, Mismatch, self_check};
pub use error::Error;
pub use named::complete;
pub use reference::Reference;
pub use table::Type;

/// What a caller knows that the files do not say.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The pre-tokenizer by llama.cpp's name, in place of the one that would be found.
    pub pre: Option<String>,
    /// More hashes of test texts, and the names of their pre-tokenizers.
    pub hashes: Vec<(String, String)>,
    /// Special tokens by kind and text, as in `("eot", "<|user|>")`, for kinds that the files leave open.
    pub special: Vec<(String, String)>,
    /// True for the keys of llama.cpp's converter as they are, also where its loader would then put other tokens around
    /// texts than the checkpoint does.
    pub identity: bool,
}

/// How a tokenizer makes tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes are merged pair by pair.
    Merges,
    /// Pieces are joined by score.
    Scores,
    /// The likeliest pieces of all are taken.
    Pieces,
}

/// A tokenizer as a GGUF file holds it.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    /// Its keys, in order.
    pub keys: Metadata,
    /// What will not be as in the checkpoint, or might not.
    pub warnings: Vec<String>,
    /// Texts that llama.cpp is known to tokenize otherwise, for this kind of tokenizer.
    pub notes: Vec<String>,
    /// How it makes tokens.
    pub kind: Kind,
    /// The name of its pre-tokenizer.
    pub pre: String,
    /// True if the keys put around texts what the checkpoint does; a warning or note says what is lost otherwise.
    pub around: bool,
}

/// Every pre-tokenizer that llama.cpp knows, by name.
pub fn pre_names() -> impl Iterator<Item = &'static str> {
    pre::names()
}

/// Makes the keys of a checkpoint's tokenizer, for a model with `vocab_size` rows of embeddings.
pub fn read(dir: &Path, vocab_size: usize, options: &Options) -> Result<Tokenizer, Error> {
    let json = json::Json::read(dir)?;
    let mut keys = Metadata::new();
    let mut warnings = Vec::new();
    let mut blank_off = false;
    let (kind, pre) = match &json {
        // A tokenizer.model beside it is then of another format.
        Some(json) if matches!(json.model, json::Model::Scores { .. }) => {
            let pre = pieces::write(json, vocab_size, &mut keys, &mut warnings)?;
            (Kind::Pieces, pre)
        }
        Some(json) if !matches!(json.model, json::Model::Merges { .. }) => {
            let found = "whole words".into();
            let expected = "those that merge pairs (BPE) or score pieces (Unigram) are written";
            return Err(Error::Unsupported { file: json.file.clone(), found, expected });
        }
        Some(json) if json.byte_level => {
            let pre = bpe::write(json, vocab_size, options, &mut keys, &mut warnings)?;
            (Kind::Merges, pre)
        }
        json if dir.join("tokenizer.model").is_file()
            || json.as_ref().is_some_and(|json| json.byte_fallback) =>
        {
            let json = json.as_ref();
            let (pre, off) = spm::write(dir, json, vocab_size, &mut keys, &mut warnings)?;
            blank_off = off;
            if let Some(asked) = options.pre.as_ref().filter(|asked| **asked != pre) {
                warnings.push(format!(
                    "the pre-tokenizer `{}` was asked for, but pieces with scores have none",
                    shown(asked)
                ));
            }
            (Kind::Scores, pre)
        }
        Some(json) => {
            let found = "merges of characters".into();
            let expected = "those that merge bytes (ByteLevel) or fall back to bytes are written";
            return Err(Error::Unsupported { file: json.file.clone(), found, expected });
        }
        None => return Err(Error::Missing { dir: dir.to_owned() }),
    };
    let special = special::read(dir, json.as_ref(), vocab_size, options, &mut warnings)?;
    for (role, id) in &special.ids {
        // What began texts as the class token is written as the one that begins texts.
        let written = special::ROLES.iter().filter(|(known, _)| *known != "cls");
        if let Some((_, key)) = written.into_iter().find(|(known, _)| known == role) {
            keys.set(*key, *id);
        }
    }
    for (role, yes) in &special.adds {
        if ["bos", "eos", "sep"].contains(&role.as_str()) {
            keys.set(format!("tokenizer.ggml.add_{role}_token"), *yes);
        }
    }
    template::write(dir, &mut keys)?;
    for (name, yes) in [("lowercase", special.lowercase), ("strip_accents", special.strip_accents)]
    {
        if let Some(yes) = yes {
            keys.set(format!("tokenizer.ggml.normalizer.{name}"), yes);
        }
    }
    if blank_off {
        spm::turn_blank_off(&mut keys);
    }
    let notes = json.as_ref().map_or_else(Vec::new, |json| notes(json, kind));
    let mut made = Tokenizer { keys, warnings, notes, kind, pre, around: true };
    around::write(dir, json.as_ref(), vocab_size, options.identity, &mut made)?;
    Ok(made)
}

/// Texts on which llama.cpp differs from every tokenizer with these steps.
fn notes(json: &json::Json, kind: Kind) -> Vec<String> {
    let mut notes = Vec::new();
    if json::has(&json.normalizer, "NFC") {
        notes.push(
            "tokenizer.json composes characters first (NFC), llama.cpp does not: a letter and a \
             combining accent as two characters become other tokens there"
                .to_owned(),
        );
    }
    if kind != Kind::Merges && spm::metaspace(&json.pre_tokenizer) {
        notes.push(
            "llama.cpp puts a blank before every text, tokenizer.json only before those that do \
             not begin with one: texts that begin with a blank become other tokens there"
                .to_owned(),
        );
    }
    notes
}

/// Two tokens with one id.
fn same_id(json: &json::Json, id: u64, one: &str, two: &str) -> Error {
    let found = format!("the id of `{one}` and of `{two}`");
    Error::key(&json.file, &id.to_string(), found, "one token for each id")
}
