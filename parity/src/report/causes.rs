//! Formats a diagnosis for a terminal.

use std::fmt::Write as _;

use formats::shown;

use crate::cause::{Cause, Diagnosis, UNEXPLAINED};

/// Number of edits with the same results that are listed; the others are counted.
const LISTED: usize = 3;

/// Formats a diagnosis as text.
pub fn causes(diagnosis: &Diagnosis) -> String {
    let d = diagnosis;
    let mut out = format!("diagnosis of the {} run: {}\n", d.dtype, d.observed);
    let _ = writeln!(
        out,
        "  {:.1e} off, {:.1e} is noise; {} edits of the model were run",
        d.before, d.noise, d.tried
    );
    if d.cut {
        out.push_str(
            "  the time ended before all edits were run; the option `budget` gives more\n",
        );
    }
    if !d.explained {
        let partial = if d.causes.is_empty() { "" } else { "; the best explain a part" };
        let _ = writeln!(out, "  {UNEXPLAINED}: no edit explains the numbers{partial}");
    }
    if let Some(remark) = ignored(d) {
        let _ = writeln!(out, "  {remark}");
    }
    // If one edit explains everything, partial explanations are omitted.
    let causes = d.causes.iter().filter(|cause| !d.explained || cause.exact);
    for (n, cause) in causes.enumerate() {
        out.push_str(&cause_lines(n + 1, cause, d));
    }
    out
}

/// Names the tensors that the spec ignores where the difference begins.
pub(crate) fn ignored(diagnosis: &Diagnosis) -> Option<String> {
    let listed = diagnosis.ignored.iter().take(LISTED).map(|name| format!("`{}`", shown(name)));
    let listed = listed.collect::<Vec<_>>().join(", ");
    let more = diagnosis.ignored.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!listed.is_empty())
        .then(|| format!("the spec ignores {listed}{more}: an op that it lacks may read them"))
}

fn cause_lines(n: usize, cause: &Cause, diagnosis: &Diagnosis) -> String {
    let mut edits = cause.edits.iter();
    let Some(first) = edits.next() else { return String::new() };
    let mut out = format!("  {n}. {}\n     {}\n", first.edit, first.place);
    for edit in &cause.with {
        let _ = writeln!(out, "     and besides: {} ({})", edit.edit, edit.place);
    }
    let _ = writeln!(out, "     {}", restores(cause, diagnosis));
    for edit in edits.clone().take(LISTED) {
        let _ = writeln!(out, "     the same numbers: {} ({})", edit.edit, edit.place);
    }
    let more = edits.count().saturating_sub(LISTED);
    if more > 0 {
        let _ = writeln!(out, "     and {more} more edits with the same numbers");
    }
    out
}

/// Describes the difference with and without a cause's edits.
pub(crate) fn restores(cause: &Cause, diagnosis: &Diagnosis) -> String {
    let agreement = match (cause.verified, cause.exact) {
        (Some(true), _) => "; everything that was observed agrees with it",
        (Some(false), _) => "; other numbers still differ",
        (None, true) => "; the rest was not run",
        (None, false) => "",
    };
    format!(
        "restores {} of the difference: {:.1e} is left, {:.1e} is noise{agreement}",
        share(cause.restored),
        cause.left,
        diagnosis.noise
    )
}

/// Returns the first cause in one line; none if no edit explains the difference.
pub(super) fn headline(diagnosis: &Diagnosis) -> Option<String> {
    let cause = diagnosis.causes.first().filter(|_| diagnosis.explained)?;
    let first = cause.edits.iter().take(1).chain(&cause.with);
    let edits = first.map(|edit| format!("{} ({})", edit.edit, edit.place)).collect::<Vec<_>>();
    (!edits.is_empty()).then(|| edits.join(", and besides "))
}

/// Formats a share without rounding it up to 100 %.
fn share(share: f64) -> String {
    if share > 0.9995 {
        "all".to_owned()
    } else {
        format!("{:.1} %", (share * 1000.0).floor() / 10.0)
    }
}
