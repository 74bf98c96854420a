//! Conversion of tokenizers from a checkpoint's files to the keys of a GGUF file.
//!
//! Three kinds are written: byte-level BPE, from tokenizer.json or from vocab.json with merges.txt;
//! SentencePiece BPE, from tokenizer.model or from a tokenizer.json with byte fallback; and Unigram models,
//! from tokenizer.json. The keys, their order and their values are those of llama.cpp's converter, so its
//! loader treats them like its own files.
//!
//! * [`ReferenceTokenizer`] runs the checkpoint's own tokenizer;
//! * [`read`] makes the keys, and [`restore`] makes the files of keys;
//! * [`self_check`] tokenizes a corpus as llama.cpp would with these keys, and compares.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use onboard_tokenizers::{TokenizerOptions, read};
//!
//! # fn main() -> Result<(), onboard_tokenizers::Error> {
//! let tokenizer = read(Path::new("checkpoints/mine"), 32_000, &TokenizerOptions::default())?;
//! println!("{} keys, pre-tokenizer {}", tokenizer.keys.len(), tokenizer.pre);
//! # Ok(())
//! # }
//! ```

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
mod pre_table;
mod proto;
mod reference;
mod restore;
mod special;
mod spm;
mod structure;
mod table;
mod template;
mod vocabulary;

pub use check::{Mismatch, TokenizerCheck, self_check};
pub use error::{Error, LibraryPanic};
pub use named::complete;
pub use reference::ReferenceTokenizer;
pub use restore::{RestoreError, TokenizerFiles, restore};
pub use special::special_texts;
pub use table::TokenType;
pub use template::{ChatTemplate, chat_templates};
pub use vocabulary::TokenBytes;

/// Settings of the caller that the files do not contain.
#[derive(Debug, Clone, Default)]
pub struct TokenizerOptions {
    /// llama.cpp's name of the pre-tokenizer, replacing the detected one.
    pub pre: Option<String>,
    /// Additional hashes of test texts, and the names of their pre-tokenizers.
    pub hashes: Vec<(String, String)>,
    /// Special tokens by kind and text, as in `("eot", "<|user|>")`, for kinds that the files do not
    /// define.
    pub special: Vec<(String, String)>,
    /// True for exactly the keys of llama.cpp's converter, even if its loader then adds different tokens
    /// around texts than the checkpoint.
    pub identity: bool,
}

/// Tokenization algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenizerKind {
    /// Byte-level BPE: bytes are merged in pairs.
    Merges,
    /// SentencePiece BPE: pieces are joined by score.
    Scores,
    /// Unigram: the most probable pieces are chosen.
    Pieces,
}

/// Tokenizer in the form of a GGUF file.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    /// Keys, in order.
    pub keys: Metadata,
    /// Actual or possible differences from the checkpoint.
    pub warnings: Vec<String>,
    /// Texts that llama.cpp is known to tokenize differently, for this kind of tokenizer.
    pub notes: Vec<String>,
    /// Tokenization algorithm.
    pub kind: TokenizerKind,
    /// Name of the pre-tokenizer.
    pub pre: String,
    /// True if the keys put the same tokens around texts as the checkpoint; otherwise a warning or note
    /// describes the difference.
    pub around: bool,
}

/// Runs a call of a library. A panic becomes an error with its message, and is not printed.
pub fn catch_panic<T>(run: impl FnOnce() -> T) -> Result<T, LibraryPanic> {
    reference::quiet::call(run).map_err(LibraryPanic)
}

/// Returns the name of every pre-tokenizer that llama.cpp supports.
pub fn pre_names() -> impl Iterator<Item = &'static str> {
    pre_table::names()
}

/// Builds the keys of a checkpoint's tokenizer, for a model with `vocab_size` rows of embeddings.
pub fn read(dir: &Path, vocab_size: usize, options: &TokenizerOptions) -> Result<Tokenizer, Error> {
    let json = json::TokenizerJson::read(dir)?;
    let mut keys = Metadata::new();
    let mut warnings = Vec::new();
    let mut blank_off = false;
    let (kind, pre) = match &json {
        // A tokenizer.model beside it then has another format.
        Some(json) if matches!(json.model, json::JsonModel::Scores { .. }) => {
            let pre = pieces::write(json, vocab_size, &mut keys, &mut warnings)?;
            (TokenizerKind::Pieces, pre)
        }
        Some(json) if !matches!(json.model, json::JsonModel::Merges { .. }) => {
            return Err(Error::Unsupported {
                file: json.file.clone(),
                found: "whole words".into(),
                expected: "those that merge pairs (BPE) or score pieces (Unigram) are written",
            });
        }
        Some(json) if json.byte_level => {
            let pre = bpe::write(json, vocab_size, options, &mut keys, &mut warnings)?;
            (TokenizerKind::Merges, pre)
        }
        json if dir.join("tokenizer.model").is_file()
            || json.as_ref().is_some_and(|json| json.byte_fallback) =>
        {
            let json = json.as_ref();
            let (pre, off) = spm::write(dir, json, vocab_size, &mut keys, &mut warnings)?;
            blank_off = off;
            if let Some(requested) = options.pre.as_ref().filter(|requested| **requested != pre) {
                warnings.push(format!(
                    "the pre-tokenizer `{}` was asked for, but pieces with scores have none",
                    shown(requested)
                ));
            }
            (TokenizerKind::Scores, pre)
        }
        Some(json) => {
            return Err(Error::Unsupported {
                file: json.file.clone(),
                found: "merges of characters".into(),
                expected: "those that merge bytes (ByteLevel) or fall back to bytes are written",
            });
        }
        None => return Err(Error::Missing { dir: dir.to_owned() }),
    };
    let special = special::read(dir, json.as_ref(), vocab_size, options, &mut warnings)?;
    for (role, id) in &special.ids {
        // A class token that begins texts is written as the BOS token.
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
    let mut tokenizer = Tokenizer { keys, warnings, notes, kind, pre, around: true };
    around::write(dir, json.as_ref(), vocab_size, options.identity, &mut tokenizer)?;
    Ok(tokenizer)
}

/// Describes the texts on which llama.cpp differs from every tokenizer with these steps.
fn notes(json: &json::TokenizerJson, kind: TokenizerKind) -> Vec<String> {
    let mut notes = Vec::new();
    if json::has(&json.normalizer, "NFC") {
        notes.push(
            "tokenizer.json composes characters first (NFC), llama.cpp does not: a letter and a \
             combining accent as two characters become other tokens there"
                .to_owned(),
        );
    }
    if kind != TokenizerKind::Merges && spm::metaspace(&json.pre_tokenizer) {
        notes.push(
            "llama.cpp puts a blank before every text, tokenizer.json only before those that do \
             not begin with one: texts that begin with a blank become other tokens there"
                .to_owned(),
        );
    }
    if kind != TokenizerKind::Merges && spm::has_scheme(&json.pre_tokenizer, "first") {
        notes.push(
            "llama.cpp puts a blank behind special tokens too, tokenizer.json only at the start of a text: \
             conversations become other tokens there"
                .to_owned(),
        );
    }
    let strict: Vec<&json::AddedToken> = json
        .added
        .iter()
        .filter(|token| token.lstrip || token.rstrip || token.single_word)
        .collect();
    if let Some(first) = strict.first() {
        notes.push(format!(
            "llama.cpp takes white space beside added tokens for a few model names alone, and finds them inside of words; \
             tokenizer.json has {} with lstrip, rstrip or single_word (`{}`): texts with them may become other \
             tokens there",
            strict.len(),
            shown(&first.text)
        ));
    }
    notes
}

/// Returns the row of a token, or an error if the embedding has no row for its id.
fn row_of(json: &json::TokenizerJson, id: u64, text: &str, rows: usize) -> Result<usize, Error> {
    match usize::try_from(id) {
        Ok(row) if row < rows => Ok(row),
        _ => {
            let file = json.file.clone();
            let token = shown(text);
            Err(Error::Outside { file, token, id, vocab_size: rows })
        }
    }
}

/// Returns an error about two tokens with one id.
fn same_id(json: &json::TokenizerJson, id: u64, one: &str, two: &str) -> Error {
    let value = format!("the id of `{one}` and of `{two}`");
    Error::key(&json.file, &id.to_string(), value, "one token for each id")
}
