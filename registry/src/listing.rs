//! Lists in texts for people: the first items, and the number of the others. Long texts: the beginning and the end.
//!
//! Files from strangers name as many tensors, keys and prompts as they like, and names are as long as they like.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::Display;

/// Most findings, or items that have a line each, in one text.
pub const LINES: usize = 100;
/// Most items of a list within a sentence.
pub const ITEMS: usize = 20;

/// Joins items by commas; above [`ITEMS`], the first and the number of the others.
pub fn items<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let mut items = items.into_iter();
    let first: Vec<String> = items.by_ref().take(ITEMS).map(|item| item.to_string()).collect();
    match items.count() {
        0 => first.join(", "),
        count => format!("{} and {count} more", first.join(", ")),
    }
}

/// Returns the text of an error and of its causes on one line.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Returns the first [`LINES`] items, and a text about the others if there are some.
pub fn lines<T>(items: &[T]) -> (&[T], Option<String>) {
    let first = &items[..items.len().min(LINES)];
    let omitted = items.len() - first.len();
    (first, (omitted > 0).then(|| format!("... and {omitted} more")))
}

/// Returns the first [`LINES`] texts as lines, and a line about the others if there are some.
pub fn joined(texts: &[String]) -> String {
    let (first, omitted) = lines(texts);
    let first = first.iter().map(String::as_str);
    first.chain(omitted.as_deref()).collect::<Vec<_>>().join("\n")
}

/// Most characters of a name or a value of a file that a message quotes.
pub const QUOTED: usize = 160;

/// Shortens a text of more than `limit` characters to its beginning and its end.
pub fn shortened(text: &str, limit: usize) -> Cow<'_, str> {
    let count = text.chars().count();
    if count <= limit {
        return Cow::Borrowed(text);
    }
    let head: String = text.chars().take(limit / 2).collect();
    let tail: String = text.chars().skip(count - limit / 2).collect();
    Cow::Owned(format!("{head} ... {tail}"))
}

/// Returns the beginning of a long value, or all of a short one.
pub(crate) fn beginning(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_counted() {
        assert_eq!(items(["a", "b"]), "a, b");
        assert_eq!(items(0..2), "0, 1");
        assert!(items(0..40_000).ends_with("18, 19 and 39980 more"));
        assert_eq!(items(0..ITEMS).matches(',').count(), ITEMS - 1);
        let all = vec![0; LINES + 1];
        assert_eq!(lines(&all), (&all[1..], Some("... and 1 more".to_owned())));
        assert_eq!(lines(&all[1..]), (&all[1..], None));
    }

    #[test]
    fn long_texts_are_cut_in_their_middle() {
        assert_eq!(shortened("äbcd", 4), "äbcd");
        assert_eq!(shortened("äbcdeü", 4), "äb ... eü");
    }
}
