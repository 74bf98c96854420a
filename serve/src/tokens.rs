//! Texts of single tokens.

use std::sync::{Arc, OnceLock};

use crate::ServedTokenizer;

/// Texts of single tokens, as they are in the middle of a text.
pub(crate) struct TokenTexts {
    codec: Option<Arc<dyn ServedTokenizer>>,
    texts: Vec<OnceLock<Box<str>>>,
}

impl TokenTexts {
    pub(crate) fn new(codec: Option<Arc<dyn ServedTokenizer>>, vocab: usize) -> Self {
        let count = if codec.is_some() { vocab } else { 0 };
        Self { codec, texts: (0..count).map(|_| OnceLock::new()).collect() }
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
}
