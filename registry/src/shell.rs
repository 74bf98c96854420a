//! Words and lines of shells.

/// Quotes a word for a shell.
///
/// ```
/// use onboard_spec::shell::shell_word;
///
/// assert_eq!(shell_word("--tp-size"), "--tp-size");
/// assert_eq!(shell_word("it's"), r"'it'\''s'");
/// ```
pub fn shell_word(word: &str) -> String {
    if !word.is_empty()
        && word.chars().all(|c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c))
    {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns the flag of an option.
pub fn flag(option: &str) -> String {
    format!("--{option}")
}

/// Returns a command as a line for a shell.
pub fn shell_line(words: &[String]) -> String {
    words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ")
}
