//! A report as JUnit XML, for continuous integration: one test case per gate.

use std::fmt::Write as _;

use crate::diverge::message;
use crate::gate::Verdict;
use crate::report::Report;

/// One test case.
struct Case {
    class: String,
    name: String,
    verdict: Verdict,
    message: String,
}

/// Writes a report as JUnit XML.
pub fn junit(report: &Report) -> String {
    let mut suites: Vec<(String, Vec<Case>)> = Vec::new();
    for run in &report.runs {
        let mut cases: Vec<Case> = run
            .gates
            .iter()
            .map(|g| Case {
                class: format!("{}.{}.{}", run.label(), g.phase, g.mode.name()),
                name: match g.moment {
                    Some(moment) => format!("{} [{}, {moment}]", g.subject, g.prompt),
                    None => format!("{} [{}]", g.subject, g.prompt),
                },
                verdict: g.verdict,
                message: message(g),
            })
            .collect();
        cases.extend(run.greedy.iter().map(|g| Case {
            class: format!("{}.greedy", run.label()),
            name: format!("greedy [{}]", g.prompt),
            verdict: g.verdict,
            message: g.first_flip.map_or(String::new(), |f| {
                format!("flip at {}: margin {:.1e}, noise {:.1e}", f.index, f.margin, f.noise)
            }),
        }));
        cases.extend(run.routers.iter().map(|r| Case {
            class: format!("{}.routers", run.label()),
            name: format!("routers [{}]", r.mode.name()),
            verdict: r.verdict,
            message: r.widest().map_or(String::new(), |f| {
                format!(
                    "{} in {}: margin {:.1e}, bound {:.1e}",
                    f.router, f.place, f.margin, f.bound
                )
            }),
        }));
        suites.push((run.label(), cases));
    }
    if !report.schedules.is_empty() {
        let cases = report
            .schedules
            .iter()
            .map(|s| Case {
                class: format!("{}.schedules", s.dtype),
                name: s.name.clone(),
                verdict: s.verdict,
                message: s
                    .note
                    .clone()
                    .unwrap_or_else(|| format!("max {:.1e}, bound {:.1e}", s.max, s.limit)),
            })
            .collect();
        suites.push(("schedules".to_owned(), cases));
    }
    let count =
        |verdict: Verdict, cases: &[Case]| cases.iter().filter(|c| c.verdict == verdict).count();
    let total = |verdict| suites.iter().map(|(_, cases)| count(verdict, cases)).sum::<usize>();
    let tests: usize = suites.iter().map(|(_, cases)| cases.len()).sum();
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(
        out,
        "<testsuites name=\"{}\" tests=\"{tests}\" failures=\"{}\" skipped=\"{}\">",
        escape(&format!("parity {}", report.subject.model)),
        total(Verdict::Fail),
        total(Verdict::Skip)
    );
    for (name, cases) in &suites {
        let _ = writeln!(
            out,
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" skipped=\"{}\">",
            escape(name),
            cases.len(),
            count(Verdict::Fail, cases),
            count(Verdict::Skip, cases)
        );
        for case in cases {
            let head = format!(
                "    <testcase classname=\"{}\" name=\"{}\"",
                escape(&case.class),
                escape(&case.name)
            );
            let tag = match case.verdict {
                Verdict::Pass => {
                    let _ = writeln!(out, "{head}/>");
                    continue;
                }
                Verdict::Skip => "skipped",
                Verdict::Fail => "failure",
            };
            let text = escape(&case.message);
            let _ = writeln!(out, "{head}>\n      <{tag} message=\"{text}\"/>\n    </testcase>");
        }
        out.push_str("  </testsuite>\n");
    }
    out.push_str("</testsuites>\n");
    out
}

/// Escapes text for XML and HTML, in elements and in quoted attributes. Characters that
/// XML 1.0 has no way to say become U+FFFD.
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
            '\u{0}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn hostile_names_stay_text() {
        assert_eq!(
            escape("</testcase><script a=\"b\" c='d'>&\u{1b}[0m\0"),
            "&lt;/testcase&gt;&lt;script a=&quot;b&quot; c=&#39;d&#39;&gt;&amp;\u{fffd}[0m\u{fffd}"
        );
    }
}
