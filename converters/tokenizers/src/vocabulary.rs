//! Bytes of single tokens, for masks of the tokens that a grammar allows.

use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Text of a token in the middle of an output.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenBytes {
    /// The bytes; none for a token without a text of its own.
    pub bytes: Vec<u8>,
    /// True for a token with a meaning besides its text, such as the end of a turn.
    pub special: bool,
}

/// Returns the bytes that characters spell in byte-level vocabularies; none if one spells no byte.
pub(super) fn spelled_bytes(text: &str) -> Option<Vec<u8>> {
    static TABLE: OnceLock<BTreeMap<char, u8>> = OnceLock::new();
    let table = TABLE.get_or_init(|| (0..=u8::MAX).map(|byte| (spelled(byte), byte)).collect());
    text.chars().map(|c| table.get(&c).copied()).collect()
}

/// Returns the character that spells a byte: the visible ones of Latin-1 unchanged, others from U+0100 on.
pub(super) fn spelled(byte: u8) -> char {
    let number = if is_itself(byte) {
        u32::from(byte)
    } else {
        256 + (0..byte).filter(|&byte| !is_itself(byte)).count() as u32
    };
    char::from_u32(number).unwrap_or('\u{fffd}')
}

/// True if a byte is spelled by the character of its own code point.
pub(super) fn is_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}
