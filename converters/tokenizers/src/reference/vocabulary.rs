//! Bytes of single tokens.

use tokenizers::DecoderWrapper;

use super::super::spm::byte;
use super::super::vocabulary::{TokenBytes, spelled_bytes};
use super::{ReferenceTokenizer, quiet};

impl ReferenceTokenizer {
    /// Returns the bytes of every token, by id.
    pub fn vocabulary(&self) -> Vec<TokenBytes> {
        let added = self.inner.get_added_tokens_decoder();
        let decoder = self.inner.get_decoder();
        let spelled = decoder.is_some_and(|decoder| has(decoder, is_byte_level));
        let by_number = decoder.is_some_and(|decoder| has(decoder, is_byte_fallback));
        (0..self.vocab_size() as u32)
            .map(|id| TokenBytes {
                bytes: self.bytes_of(id, by_number, spelled).unwrap_or_default(),
                special: added.get(&id).is_some_and(|token| token.special),
            })
            .collect()
    }

    /// Returns the bytes of a token; none if it is not text. `by_number` is set for vocabularies with
    /// tokens like `<0x0A>`, and `spelled` for byte-level ones.
    fn bytes_of(&self, id: u32, by_number: bool, spelled: bool) -> Option<Vec<u8>> {
        let piece = quiet::call(|| self.inner.id_to_token(id)).ok().flatten()?;
        if by_number && let Some(byte) = byte(&piece) {
            return Some(vec![byte]);
        }
        if spelled {
            // A token with other characters, such as an added one, is its own text.
            return Some(spelled_bytes(&piece).unwrap_or_else(|| piece.into_bytes()));
        }
        // Some decoders drop the space before the first token, so the token's second text counts.
        let alone = self.decode(&[id], false).ok()?;
        let twice = self.decode(&[id, id], false).ok()?;
        let text = match twice.strip_prefix(&alone) {
            Some(second) if second.len() > alone.len() => second,
            _ => &alone,
        };
        (!text.contains('\u{fffd}')).then(|| text.as_bytes().to_vec())
    }
}

/// True if a decoder is of a kind, or one of its parts is.
fn has(decoder: &DecoderWrapper, kind: fn(&DecoderWrapper) -> bool) -> bool {
    kind(decoder)
        || match decoder {
            DecoderWrapper::Sequence(all) => all.get_decoders().iter().any(|part| has(part, kind)),
            _ => false,
        }
}

fn is_byte_level(decoder: &DecoderWrapper) -> bool {
    matches!(decoder, DecoderWrapper::ByteLevel(_))
}

fn is_byte_fallback(decoder: &DecoderWrapper) -> bool {
    matches!(decoder, DecoderWrapper::ByteFallback(_))
}
