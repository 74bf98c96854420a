//! Conversion between text and tokens.

use chat::TokenBytes;

/// Failure of a tokenizer on a text, with its reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CodecError(pub String);

/// Converts text to tokens and back.
pub trait ServedTokenizer: Send + Sync {
    /// Returns the tokens of a text, with the special tokens around it if `special` is set.
    fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, CodecError>;

    /// Returns the text of tokens, without special tokens if `plain` is set.
    fn decode(&self, tokens: &[u32], plain: bool) -> Result<String, CodecError>;

    /// Returns the bytes of every token, by id. Without them, outputs cannot be constrained.
    fn vocabulary(&self) -> Vec<TokenBytes> {
        Vec::new()
    }
}
