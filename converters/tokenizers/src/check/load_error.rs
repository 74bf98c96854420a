//! Errors of tokenizers that llama.cpp would not load.

use formats::gguf;

/// Reason that llama.cpp cannot load the keys of a tokenizer, as part of a sentence. Texts from files are escaped and
/// shortened, ready to print.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum LoadError {
    #[error(transparent)]
    Key(#[from] gguf::Error),
    #[error("`{key}` is of kind {found}")]
    NotArray { key: String, found: String },
    #[error("tokenizers of kind `{model}` are not known here")]
    Kind { model: String },
    #[error("there are no tokens")]
    NoTokens,
    #[error("there are too many tokens")]
    TooMany,
    #[error("there is not one type for each token")]
    Types,
    #[error("there is not one score for each token")]
    Scores,
    #[error("merge {number} `{line}` is not two texts")]
    Merge { number: usize, line: String },
    #[error("there is no pre-tokenizer `{name}`")]
    Pre { name: String },
    #[error("`{expression}`: {why}")]
    Expression { expression: String, why: String },
    #[error("the table of replacements is not bytes")]
    NotCharsmap,
    #[error("{why}")]
    Charsmap { why: String },
}
