//! Words of written text.

/// True if a text has a word.
pub(crate) fn mentions(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(is_of_name) && !text[at + word.len()..].starts_with(is_of_name)
    })
}

/// True for a character of a name.
pub(crate) fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
