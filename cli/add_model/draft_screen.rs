//! One screen about a draft: matched tensors, open findings, and the next commands.

use std::fmt::Write as _;
use std::path::Path;

use models::draft::SpecDraft;
use models::draft::summary::list_path;
use registry::diag::{Finding, Severity};
use registry::quantity::plural;

use crate::term::with_flags;

/// Findings that the screen shows; the list beside the draft has all.
const SHOWN: usize = 5;
/// Longest line of a finding, in characters.
const WIDTH: usize = 160;

/// Returns what a user has to know about a draft that is not complete, in at most 24 lines.
pub(super) fn screen(draft: &SpecDraft, architecture: &str, model: &Path) -> String {
    let SpecDraft { path, base, used, tensors, findings, others: next, .. } = draft;
    let mut text = format!(
        "no spec matches the architecture `{architecture}`; the draft `{}` extends `{base}`\n",
        path.display()
    );
    let near = next.iter().map(|(name, count)| format!("{name} ({count})")).collect::<Vec<_>>();
    let near = if near.is_empty() { String::new() } else { format!("; next: {}", near.join(", ")) };
    let _ = writeln!(text, "matched  {used} of {tensors} tensors by `{base}`{near}");
    if 2 * used < *tensors {
        text.push_str("         no known spec is close: take what you need from several\n");
    }
    let (errors, warnings): (Vec<&Finding>, Vec<&Finding>) =
        findings.iter().partition(|finding| finding.severity == Severity::Error);
    let _ = writeln!(
        text,
        "missing  {}, {}; all of them: {}",
        plural(errors.len(), "error"),
        plural(warnings.len(), "warning"),
        list_path(path).display()
    );
    // Of each severity some are shown, so that none hides the other.
    let first = errors.len().min(SHOWN - warnings.len().min(SHOWN / 2));
    let shown = errors.iter().take(first).chain(&warnings).take(SHOWN);
    for finding in shown {
        let _ = writeln!(text, "  - {}", one_line(&with_flags(&finding.message)));
        if let Some(help) = &finding.help {
            let _ = writeln!(text, "    {}", one_line(&with_flags(help)));
        }
    }
    let more = findings.len().saturating_sub(SHOWN.min(first + warnings.len()));
    if more > 0 {
        let _ = writeln!(text, "  and {more} more");
    }
    let _ = write!(
        text,
        "next     onboard show {base} --source\n         onboard help spec\n         onboard add-model {} --spec {}",
        model.display(),
        path.display()
    );
    text
}

/// Returns a text as one line of limited length.
fn one_line(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.chars().count() <= WIDTH {
        return text;
    }
    text.chars().take(WIDTH - 3).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_findings_fits_on_a_screen() {
        let finding = |n: usize| {
            Finding::unplaced(format!("tensor {n} {}\nis unused", "x".repeat(400))).help("add it")
        };
        for count in [1, 5, 6, 4000] {
            let draft = SpecDraft {
                path: "out/x.yaml".into(),
                name: "x".to_owned(),
                base: "near".to_owned(),
                others: vec![("far".to_owned(), 3)],
                used: 4,
                tensors: 30,
                findings: (0..count).map(finding).collect(),
                body: String::new(),
            };
            let text = screen(&draft, "XForCausalLM", Path::new("model"));
            // The word `error:` and the summary of progress stand around the text.
            assert!(text.lines().count() <= 20, "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= WIDTH + 4), "{text}");
            assert!(text.contains("out/x.findings.txt") && text.contains("--spec out/x.yaml"));
        }
    }
}
