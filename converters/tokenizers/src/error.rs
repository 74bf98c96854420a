//! Errors in writing a tokenizer.

use std::io;
use std::path::{Path, PathBuf};

use formats::shown;

/// Reason why a tokenizer cannot be written. Texts from files are escaped, ready to print.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    /// Error of the operating system; `fs_err` adds the path.
    #[error(transparent)]
    Io(#[from] io::Error),

    #[error(
        "`{}` has no tokenizer: neither tokenizer.json nor tokenizer.model; save one with \
         transformers' AutoTokenizer.save_pretrained", dir.display()
    )]
    Missing { dir: PathBuf },

    #[error(
        "`{}` is a link to `{}` outside the checkpoint, and the template would go into the file: \
         copy it there if it is the model's, or remove the link", file.display(), leads.display()
    )]
    LeadsOut { file: PathBuf, leads: PathBuf },

    #[error("`{}` is not the JSON object it should be: {why}; download it again", file.display())]
    NotJson { file: PathBuf, why: String },

    #[error("`{key}` of `{}` is {found}; expected {expected}: correct the file", file.display())]
    Key { file: PathBuf, key: String, found: String, expected: &'static str },

    #[error("`{}` is a tokenizer of kind {found}; {expected}", file.display())]
    Unsupported { file: PathBuf, found: String, expected: &'static str },

    #[error(
        "`{}` is not a SentencePiece model: {why} at byte {at}; download it again", file.display()
    )]
    NotPieces { file: PathBuf, why: String, at: usize },

    #[error(
        "tokens {first} and {second} of `{}` both read `{token}`; the file format needs each text \
         once: rename one of them", file.display()
    )]
    Duplicate { file: PathBuf, token: String, first: usize, second: usize },

    #[error(
        "token `{token}` of `{}` has id {id}, but the model has {vocab_size} rows of embeddings; \
         the tokenizer is another model's, or the embedding was not resized", file.display()
    )]
    Outside { file: PathBuf, token: String, id: u64, vocab_size: usize },

    #[error(
        "a vocabulary of {found} tokens is more than the {most} that are written; is `vocab_size` right?"
    )]
    TooLarge { found: usize, most: usize },

    #[error("`{}` has no merges in `model.merges`; a tokenizer of this kind cannot split words without", file.display())]
    NoMerges { file: PathBuf },

    #[error(
        "the class of the tokenizer of `{}` is none whose steps are known here ({known}); save it with \
         transformers' AutoTokenizer.save_pretrained, which writes tokenizer.json", file.display()
    )]
    PairClass { file: PathBuf, known: String },

    #[error("there is no pre-tokenizer `{name}`; llama.cpp knows: {known}")]
    UnknownPre { name: String, known: String },

    #[error(
        "the pre-tokenizer of `{}` is none that llama.cpp has ({}; no known hash, {hash}); \
         name the nearest with the option `set gguf.pre=NAME`, and the check will say whether it does", file.display(),
        if steps.is_empty() { "it has no steps".to_owned() } else { format!("its steps: {}", steps.join(", then ")) }
    )]
    NoPre { file: PathBuf, steps: Vec<String>, hash: String },

    #[error("`{role}` is no kind of special token; expected one of {known}")]
    UnknownRole { role: String, known: String },

    #[error(
        "`{component}` of `{}` cannot be used: {why}; save the tokenizer again with transformers' \
         AutoTokenizer.save_pretrained", file.display()
    )]
    Component { file: PathBuf, component: String, why: String },

    #[error("the tokenizer of `{}` cannot {doing}: {why}", file.display())]
    Run { file: PathBuf, doing: &'static str, why: String },
}

/// Panic inside of a library, with its message.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LibraryPanic(pub(super) String);

impl Error {
    pub(super) fn key(
        file: &Path,
        key: &str,
        found: impl Into<String>,
        expected: &'static str,
    ) -> Self {
        Self::Key { file: file.to_owned(), key: shown(key), found: shown(&found.into()), expected }
    }
}
