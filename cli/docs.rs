//! Embedded documentation: pages of `docs/`, and parts of them by name.

/// Reference of the spec language.
pub(crate) const SPEC: &str = include_str!("../docs/spec.md");
/// Format of dumps.
const DUMP: &str = include_str!("../docs/dump.md");
/// Format of reports.
const REPORT: &str = include_str!("../docs/report.md");
/// Guide to checks in CI.
const CI: &str = include_str!("../docs/ci.md");
/// Guide to evaluations.
const EVALS: &str = include_str!("../docs/evals.md");
/// Guide to launching engines, and to their sheets.
const LAUNCH: &str = include_str!("../docs/launch.md");
/// Guide to pieces on many machines.
const JOBS: &str = include_str!("../docs/howto/jobs.md");
/// Protocol of engines in child processes.
const PROTOCOL: &str = include_str!("../docs/engine-protocol.md");

/// Causes of differences.
const DIAGNOSE: &str = include_str!("../docs/diagnose.md");
/// Findings about engines.
const ENGINES: &str = include_str!("../docs/engines.md");
/// Guide to servers as engines.
const ENDPOINTS: &str = include_str!("../docs/endpoints.md");

/// Guide to load tests of servers.
const BENCH_SERVE: &str = include_str!("../docs/howto/bench-serve.md");

/// Guide to chat templates.
const CHAT: &str = include_str!("../docs/chat.md");

/// Guide to formats of tool calls.
const TOOL_CALLS: &str = include_str!("../docs/tool-calls.md");

/// Whole pages by topic.
pub(crate) const PAGES: [(&str, &str, &str); 13] = [
    ("dump", "the form of reference dumps", DUMP),
    ("report", "the form of JSON reports", REPORT),
    ("diagnose", "causes of differences", DIAGNOSE),
    ("ci", "checks in continuous integration", CI),
    ("evals", "evaluations, and two of them compared", EVALS),
    ("launch", "launching engines, and their sheets", LAUNCH),
    ("jobs", "long commands on many machines", JOBS),
    ("engines", "what engines were found to do", ENGINES),
    ("engine-protocol", "how to connect an engine", PROTOCOL),
    ("endpoints", "checks of running servers", ENDPOINTS),
    ("chat", "chat templates, and checks of them", CHAT),
    ("tool-calls", "formats of tool calls and reasoning", TOOL_CALLS),
    ("bench-serve", "servers under load", BENCH_SERVE),
];

/// One row of a table of steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepDoc {
    /// The calls in code quotes of its first cell: `split(axis, parts)`.
    pub calls: Vec<&'static str>,
    /// Text of the other cells.
    pub cells: Vec<&'static str>,
}

impl StepDoc {
    /// True if a call of this row has the given name.
    fn is_of(&self, name: &str) -> bool {
        self.calls.iter().any(|call| {
            let head = call.split_once('(').map_or(*call, |(head, _)| head);
            head.split(' ').any(|word| word == name)
        })
    }
}

/// Returns the text of a section of the spec language, without its heading.
pub(crate) fn section(title: &str) -> Option<&'static str> {
    sections().find(|(heading, _)| heading.split(", ").any(|part| part == title)).map(|(_, t)| t)
}

/// Returns the headings of the spec language.
pub(crate) fn headings() -> impl Iterator<Item = &'static str> {
    sections().map(|(heading, _)| heading)
}

fn sections() -> impl Iterator<Item = (&'static str, &'static str)> {
    SPEC.split("\n## ").skip(1).filter_map(|part| {
        let (heading, text) = part.split_once('\n')?;
        Some((heading, text.trim()))
    })
}

/// The row of a step of `weights:`.
pub(crate) fn row(section_: &str, name: &str) -> Option<StepDoc> {
    rows(section_).into_iter().find(|row| row.is_of(name))
}

/// Returns the rows of the first table of a section.
pub(crate) fn rows(section_: &str) -> Vec<StepDoc> {
    let lines = section(section_).unwrap_or_default().lines();
    let rows = lines.filter_map(|line| {
        let mut cells = cells(line)?;
        let first = cells.remove(0);
        Some(StepDoc { calls: first.split('`').skip(1).step_by(2).collect(), cells })
    });
    rows.filter(|row| !row.calls.is_empty()).collect()
}

/// Splits a row into cells; a bar in code quotes is text.
fn cells(line: &'static str) -> Option<Vec<&'static str>> {
    let inner = line.strip_prefix('|')?.strip_suffix('|')?;
    let mut quoted = false;
    Some(
        inner
            .split(|c: char| {
                quoted ^= c == '`';
                c == '|' && !quoted
            })
            .map(str::trim)
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_at_the_top_has_a_section_or_is_in_the_overview() {
        let keys = registry::reference::keys();
        for key in keys.iter().filter(|key| !key.path.contains('.')) {
            let line = format!("\n{}:", key.path);
            assert!(
                section(&key.path).is_some() || SPEC.contains(&line),
                "docs/spec.md: nothing on `{}`",
                key.path
            );
        }
    }
}
