//! Writes a report as JUnit XML, for continuous integration: one test case per run, and one for schedules.
//! A case has one failure however many gates fail, because most follow from the first. It begins with the cause, if
//! a diagnosis of the run found one.

use std::fmt::Write as _;

use crate::gate::{Mode, Verdict};
use crate::report::{Report, RunReport, causes};
use crate::schedules::ScheduleRow;

/// One test case.
struct TestCase {
    class: String,
    name: String,
    outcome: CaseOutcome,
    /// Counts of the comparisons.
    counts: String,
}

/// Outcome of a test case.
enum CaseOutcome {
    Pass,
    /// Not judged.
    Skip(String),
    /// A line, and the details below it.
    Fail(String, String),
    /// The check could not run.
    Error(String),
}

/// Writes a report as JUnit XML.
pub fn junit(report: &Report) -> String {
    let mut cases: Vec<TestCase> = report.runs.iter().map(|of| run(report, of)).collect();
    cases.extend(schedules(&report.schedules));
    cases.extend(unproven(report));
    document(&report.subject.model, &cases)
}

/// Writes JUnit XML for a check that could not run, with the reason.
pub fn junit_error(model: &str, why: &str) -> String {
    let case = TestCase {
        class: "parity".to_owned(),
        name: "check".to_owned(),
        outcome: CaseOutcome::Error(why.to_owned()),
        counts: String::new(),
    };
    document(model, &[case])
}

fn run(report: &Report, run: &RunReport) -> TestCase {
    let failing = run.gates.iter().filter(|gate| gate.fails()).count();
    let local = run.gates.iter().filter(|gate| gate.fails() && gate.mode == Mode::Local).count();
    let counts = format!(
        "{failing} of {} gates fail, {local} of them on the reference's own inputs",
        run.gates.len()
    );
    let cause = report.cause_of(run).map(|cause| format!("{cause}; ")).unwrap_or_default();
    let outcome = match (run.verdict(), run.headline()) {
        (Verdict::Fail, Some(first)) => {
            let line = format!("{cause}first divergence: {}: {}", first.subject, first.message);
            let mut details =
                format!("{}, prompt {}, {}\n", first.place(), first.prompt, first.mode.inputs());
            for hint in &first.hints {
                let _ = writeln!(details, "hint: {hint}");
            }
            if let Some(diagnosis) = report.diagnosis_of(run) {
                details.push_str(&causes(diagnosis));
            }
            CaseOutcome::Fail(line, details)
        }
        (Verdict::Fail, None) => CaseOutcome::Fail(other_failure(run), String::new()),
        _ if !run.gates.is_empty() && run.gates.iter().all(|g| g.verdict == Verdict::Skip) => {
            let why = run.gates.iter().find_map(|gate| gate.finding.clone());
            CaseOutcome::Skip(why.unwrap_or_default())
        }
        _ => CaseOutcome::Pass,
    };
    TestCase { class: "parity".to_owned(), name: run.label(), outcome, counts }
}

/// Returns a case for what the check leaves unproven, which a report without a failure would hide.
fn unproven(report: &Report) -> Option<TestCase> {
    let why = report.unproven().filter(|_| report.verdict() != Verdict::Fail)?;
    Some(TestCase {
        class: "parity".to_owned(),
        name: "not proven".to_owned(),
        outcome: CaseOutcome::Skip(why),
        counts: format!("{} limits", report.limits.len()),
    })
}

/// Describes the failure of a run without a failed gate: in a router or in greedy tokens.
fn other_failure(run: &RunReport) -> String {
    let router = run.routers.iter().find(|row| row.verdict == Verdict::Fail);
    if let Some(row) = router {
        return format!("routers: {} of {} choices agree", row.agree, row.choices);
    }
    let greedy = run.greedy.iter().find(|row| row.verdict == Verdict::Fail);
    greedy.map_or_else(String::new, |row| {
        format!("greedy tokens of prompt {}: {} of {} agree", row.prompt, row.agree, row.tokens)
    })
}

fn schedules(rows: &[ScheduleRow]) -> Option<TestCase> {
    let failing: Vec<&ScheduleRow> =
        rows.iter().filter(|row| row.verdict == Verdict::Fail).collect();
    let counts = format!("{} of {} schedules fail", failing.len(), rows.len());
    let outcome = match failing.first() {
        None => CaseOutcome::Pass,
        Some(first) => {
            let all = failing.iter().map(|row| schedule_line(row)).collect::<Vec<_>>().join("\n");
            CaseOutcome::Fail(schedule_line(first), all)
        }
    };
    let class = "parity".to_owned();
    let name = "schedules".to_owned();
    (!rows.is_empty()).then_some(TestCase { class, name, outcome, counts })
}

/// Describes a schedule that fails.
fn schedule_line(row: &ScheduleRow) -> String {
    let at = row.position.map_or(String::new(), |at| {
        format!("from position {at}: {:.1e}, bound {:.1e}", row.distance, row.limit)
    });
    let note = row.note.clone().unwrap_or_default();
    format!("{} {} ({}): {at}{note}", row.dtype, row.name, row.why)
}

fn document(model: &str, cases: &[TestCase]) -> String {
    let outcomes = cases.iter().map(|case| &case.outcome);
    let numbers = format!(
        "tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\"",
        cases.len(),
        outcomes.clone().filter(|outcome| matches!(outcome, CaseOutcome::Fail(..))).count(),
        outcomes.clone().filter(|outcome| matches!(outcome, CaseOutcome::Error(_))).count(),
        outcomes.filter(|outcome| matches!(outcome, CaseOutcome::Skip(_))).count()
    );
    let name = escape(&format!("parity {model}"));
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"{name}\" {numbers}>\n  <testsuite name=\"{name}\" {numbers}>\n"
    );
    for case in cases {
        let _ = writeln!(
            out,
            "    <testcase classname=\"{}\" name=\"{}\">",
            escape(&case.class),
            escape(&case.name)
        );
        match &case.outcome {
            CaseOutcome::Pass => {}
            CaseOutcome::Skip(why) => {
                let _ = writeln!(out, "      <skipped message=\"{}\"/>", escape(why));
            }
            CaseOutcome::Fail(line, details) => {
                let details: Vec<String> = details.lines().map(escape).collect();
                let _ = writeln!(
                    out,
                    "      <failure message=\"{}\">{}</failure>",
                    escape(line),
                    details.join("\n")
                );
            }
            CaseOutcome::Error(why) => {
                let why: Vec<String> = why.lines().map(escape).collect();
                let first = why.first().map_or("", String::as_str);
                let _ =
                    writeln!(out, "      <error message=\"{first}\">{}</error>", why.join("\n"));
            }
        }
        if !case.counts.is_empty() {
            let _ = writeln!(out, "      <system-out>{}</system-out>", escape(&case.counts));
        }
        out.push_str("    </testcase>\n");
    }
    out.push_str("  </testsuite>\n</testsuites>\n");
    out
}

/// Escapes text for XML and HTML, in elements and in quoted attributes. Control characters become U+FFFD:
/// XML 1.0 cannot express most of them, and a terminal that shows the file may interpret the others.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\r' | '\t' => out.push(' '),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{escape, junit_error};

    #[test]
    fn hostile_names_stay_text() {
        assert_eq!(
            escape("</testcase><script a=\"b\" c='d'>&\u{1b}[0m\0\u{9b}31m\u{7f}"),
            "&lt;/testcase&gt;&lt;script a=&quot;b&quot; c=&#39;d&#39;&gt;&amp;\u{fffd}[0m\u{fffd}\u{fffd}31m\u{fffd}"
        );
    }

    #[test]
    fn a_check_that_could_not_run_is_an_error_and_no_failure() {
        let xml = junit_error("m", "no dump `d`\nmake one");
        assert!(xml.contains("tests=\"1\" failures=\"0\" errors=\"1\" skipped=\"0\""), "{xml}");
        assert!(
            xml.contains("<error message=\"no dump `d`\">no dump `d`\nmake one</error>"),
            "{xml}"
        );
    }
}
