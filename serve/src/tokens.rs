//! Texts of single tokens.

use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};

use chat::TokenBytes;

use crate::ServedTokenizer;

/// Sign for bytes that are no character.
const BROKEN: char = '\u{fffd}';

/// Texts of single tokens, as they are in the middle of a text.
pub(crate) struct TokenTexts {
    codec: Option<Arc<dyn ServedTokenizer>>,
    texts: Vec<OnceLock<Box<str>>>,
    /// Bytes of all tokens, once one is needed that is no text alone.
    bytes: OnceLock<Vec<TokenBytes>>,
}

impl TokenTexts {
    pub(crate) fn new(codec: Option<Arc<dyn ServedTokenizer>>, vocab: usize) -> Self {
        let count = if codec.is_some() { vocab } else { 0 };
        let texts = (0..count).map(|_| OnceLock::new()).collect();
        Self { codec, texts, bytes: OnceLock::new() }
    }

    /// Returns the text of a token. Bytes that are no character alone are replaced.
    pub(crate) fn text(&self, id: u32) -> &str {
        let (Some(codec), Some(text)) = (&self.codec, self.texts.get(id as usize)) else {
            return "";
        };
        text.get_or_init(|| {
            let alone = codec.decode(&[id], false).unwrap_or_default();
            // Some decoders drop the space before the first token; the second has it.
            let twice = codec.decode(&[id, id], false).unwrap_or_default();
            match twice.strip_prefix(&alone) {
                Some(second) if second.len() > alone.len() => second.into(),
                _ => alone.into(),
            }
        })
    }

    /// Returns the bytes of a token, if they are known.
    pub(crate) fn bytes(&self, id: u32) -> Option<&[u8]> {
        let text = self.text(id);
        if !text.contains(BROKEN) {
            return Some(text.as_bytes());
        }
        let codec = self.codec.as_ref()?;
        let token = self.bytes.get_or_init(|| codec.vocabulary()).get(id as usize)?;
        (!token.bytes.is_empty()).then_some(&token.bytes)
    }

    /// Returns the text of a token, or its bytes as `bytes:\xe2\x82` if they are no text alone. The OpenAI API
    /// names such tokens in this way.
    pub(crate) fn name(&self, id: u32) -> String {
        let text = self.text(id);
        match self.bytes(id) {
            Some(bytes) if text.contains(BROKEN) => match std::str::from_utf8(bytes) {
                Ok(text) => text.to_owned(),
                Err(_) => bytes.iter().fold("bytes:".to_owned(), |mut name, byte| {
                    let _ = write!(name, "\\x{byte:02x}");
                    name
                }),
            },
            _ => text.to_owned(),
        }
    }
}
