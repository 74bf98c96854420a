//! A report as one page that needs nothing else.

use crate::junit::escape;
use crate::report::{Report, text};

/// Writes a report as a self-contained HTML page.
pub fn html(report: &Report) -> String {
    format!(
        "<!doctype html><meta charset=\"utf-8\"><title>parity</title><pre>{}</pre>\n",
        text(report).lines().map(escape).collect::<Vec<_>>().join("\n")
    )
}
