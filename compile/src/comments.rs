//! Comments of specs, by the places of what they stand above.

use registry::diag::Span;

/// Returns the lines of the comment directly above a place, which is the first of its line.
pub(crate) fn above(at: &Span) -> Vec<String> {
    let text = &at.source.text;
    let Some(before) = text.get(..at.start) else { return Vec::new() };
    let line = before.rfind('\n').map_or(0, |end| end + 1);
    let start = before[line..].trim();
    if !start.is_empty() && start != "return" && start != "\"" {
        return Vec::new();
    }
    let mut comments = Vec::new();
    for line in before[..line].lines().rev() {
        let Some(comment) = line.trim().strip_prefix('#') else { break };
        comments.push(comment.trim().to_owned());
    }
    comments.reverse();
    comments
}

/// Returns the comment at the beginning of a file.
pub(crate) fn first(text: &str) -> Vec<String> {
    let lines = text.lines().map_while(|line| line.strip_prefix('#'));
    let lines = lines.map(|line| line.trim().to_owned());
    lines.filter(|line| !line.starts_with("yaml-language-server")).collect()
}
