//! Writes a report as JSON, in the format of `docs/report.md`.

use serde::Serialize;

use crate::gate::Verdict;
use crate::report::{Report, SCHEMA};

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    verdict: Verdict,
    #[serde(flatten)]
    report: &'a Report,
}

/// Writes a report as JSON. Numbers that JSON cannot express (infinite, NaN) are `null`.
///
/// # Panics
/// Never: a report has text keys only.
pub fn json(report: &Report) -> String {
    let document = Document { schema: SCHEMA, verdict: report.verdict(), report };
    let mut text = serde_json::to_string_pretty(&document)
        .expect("a report has text keys only and no fallible serializer");
    text.push('\n');
    text
}
