//! `--format github`: findings and failures as workflow commands, which CI shows beside the code.
//!
//! They go to stderr, so that data on stdout stays data; runners read both.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, ValueEnum};
use parity::{Report, Verdict};
use registry::diag::{Finding, Severity, Span};
use registry::listing;
use registry::model::Model;

use crate::term;

/// Format of findings and failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FindingFormat {
    // Without comments for clap: they would make every command's help long.
    Text,
    Github,
}

/// Flag that every command has.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct FormatArgs {
    /// Form of findings and failures; `github` adds annotations for GitHub Actions
    #[arg(
        long,
        global = true,
        value_name = "FORM",
        default_value = "text",
        hide_default_value = true
    )]
    format: FindingFormat,
}

static GITHUB: AtomicBool = AtomicBool::new(false);

impl FormatArgs {
    /// Sets the format for everything that follows.
    pub(crate) fn install(self) {
        GITHUB.store(self.format == FindingFormat::Github, Ordering::Relaxed);
    }
}

fn is_github() -> bool {
    GITHUB.load(Ordering::Relaxed)
}

/// Annotates findings at their source locations. CI shows ten of a step.
pub(crate) fn findings(findings: &[Finding]) {
    for finding in listing::lines(findings).0.iter().filter(|_| is_github()) {
        let level = match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let help = finding.help.as_deref().unwrap_or_default();
        let parts = [finding.message.as_str(), finding.label.as_str(), help];
        let text = parts.map(str::to_owned).into_iter().filter(|part| !part.is_empty());
        let text = text.collect::<Vec<_>>().join("\n");
        term::note(&command(level, finding.at.as_ref(), "onboard", &text));
    }
}

/// Annotates an error that has no source location.
pub(crate) fn error(message: &str) {
    if is_github() {
        term::note(&command("error", None, "onboard", message));
    }
}

/// Annotates each run that differs with its cause and its first divergence, at the call of the spec that makes it.
pub(crate) fn report(report: &Report, model: &Model) {
    if !is_github() {
        return;
    }
    for run in report.runs.iter().filter(|run| run.verdict() == Verdict::Fail) {
        let title = format!("parity: {} differs", run.label());
        let Some(first) = run.headline() else {
            term::note(&command("error", None, &title, "tokens or routes differ"));
            continue;
        };
        let mut text = report.cause_of(run).map(|cause| format!("{cause}\n")).unwrap_or_default();
        let _ = write!(
            text,
            "first divergence: {} in {}, prompt {}: {}",
            first.subject,
            first.place(),
            first.prompt,
            first.message
        );
        for hint in &first.hints {
            let _ = write!(text, "\nhint: {hint}");
        }
        term::note(&command("error", first.subject.place(model), &title, &text));
    }
    for row in report.schedules.iter().filter(|row| row.verdict == Verdict::Fail) {
        let text = format!(
            "log-probabilities differ from one prefill by {:.1e}, bound {:.1e}",
            row.max, row.limit
        );
        let title = format!("parity: schedule {} in {}", row.name, row.dtype);
        term::note(&command("error", None, &title, &text));
    }
}

/// Formats a workflow command. A location in a missing file (a built-in spec) is written in the text.
fn command(level: &str, at: Option<&Span>, title: &str, text: &str) -> String {
    let mut properties = format!("title={}", property(title));
    let mut text = text.to_owned();
    if let Some(at) = at {
        let path = &at.source.path;
        let line = at.line();
        if Path::new(path).is_file() {
            properties =
                format!("file={},line={line},col={},{properties}", property(path), at.column());
        } else {
            text = format!("{path}:{line}: {text}");
        }
    }
    format!("::{level} {properties}::{}", data(&text))
}

fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_ends_a_command_or_begins_another() {
        let line = command("error", None, "a, b: c", "100 %\n::warning::no");
        assert_eq!(line, "::error title=a%2C b%3A c::100 %25%0A::warning::no");
    }
}
