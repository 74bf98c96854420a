//! Words of written text.

/// True if a text has a word.
pub(crate) fn mentions(text: &str, word: &str) -> bool {
    let letter = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(letter) && !text[at + word.len()..].starts_with(letter)
    })
}
