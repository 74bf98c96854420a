//! Numbers in messages.

/// Formats a count with its noun: `1 layer`, `2 layers`.
pub(crate) fn plural(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}
