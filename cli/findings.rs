//! Output of findings, and errors of libraries as errors of commands.

use std::cell::RefCell;

use models::FindingSubject;
use registry::diag::Finding;
use registry::listing;
use registry::render::{RenderStyle, render};

use crate::{annotate, term};

/// Error whose text has already been shown.
#[derive(Debug)]
pub(crate) struct ReportedError(String);

impl std::fmt::Display for ReportedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ReportedError {}

/// Shows all findings, and returns an error with their consequence.
pub(crate) fn reported_error(findings: &[Finding], message: &str) -> anyhow::Error {
    warn(findings);
    error_of(findings, message)
}

/// Returns an error with a text in place of the findings, which only annotations show one by one.
pub(crate) fn briefly_reported_error(findings: &[Finding], message: &str) -> anyhow::Error {
    annotate::findings(findings);
    error_of(findings, message)
}

fn error_of(findings: &[Finding], message: &str) -> anyhow::Error {
    let word = term::paint_if(term::colour_err(), term::Tone::Bad, "error:");
    let message = &*term::with_flags(message);
    term::note(&format!("{word} {message}"));
    annotate::error(message);
    let (first, remaining) = listing::lines(findings);
    let messages = first.iter().map(|finding| finding.message.clone()).chain(remaining);
    let lines = messages.map(|message| format!("\n{message}"));
    ReportedError(std::iter::once(message.to_owned()).chain(lines).collect()).into()
}

thread_local! {
    /// Findings that are collected instead of shown.
    static GATHERED: RefCell<Option<Vec<Finding>>> = const { RefCell::new(None) };
}

/// Runs a closure and collects the findings that it would show.
pub(crate) fn collect_findings<T>(run: impl FnOnce() -> T) -> (T, Vec<Finding>) {
    GATHERED.set(Some(Vec::new()));
    let output = run();
    (output, GATHERED.take().unwrap_or_default())
}

/// Shows findings.
pub(crate) fn warn(findings: &[Finding]) {
    annotate::findings(findings);
    let gathered = GATHERED.with_borrow_mut(|gathered| {
        gathered.as_mut().map(|all| all.extend_from_slice(findings)).is_some()
    });
    if !findings.is_empty() && !gathered {
        let text = if term::colour_err() {
            term::own_colours(&render(findings, RenderStyle::Coloured))
        } else {
            render(findings, RenderStyle::Plain)
        };
        term::note(&text);
    }
}

/// Shows the findings of an engine that refuses a model; other errors stay one line.
pub(crate) fn engine_error(error: engine::Error) -> anyhow::Error {
    match error {
        engine::Error::Refused(findings) => {
            reported_error(&findings, "the engine cannot run this model")
        }
        other => other.into(),
    }
}

/// Converts an error of a check like [`engine_error`].
pub(crate) fn check_error(error: parity::Error) -> anyhow::Error {
    match error {
        parity::Error::Engine(error) => engine_error(error),
        other => other.into(),
    }
}

/// Converts an error of the converter like the errors of the libraries below it.
pub(crate) fn converter_error(error: converter::Error) -> anyhow::Error {
    match error {
        converter::Error::Findings { message, findings } => reported_error(&findings, &message),
        converter::Error::Context { message, source } => converter_error(*source).context(message),
        converter::Error::Model(error) => model_error(error),
        converter::Error::Engine(error) => engine_error(error),
        converter::Error::Check(error) => check_error(error),
        converter::Error::Io(error) => error.into(),
        other => other.into(),
    }
}

/// Shows the findings that refuse a model, with remedies on the command line; other errors stay one line.
pub(crate) fn model_error(error: models::Error) -> anyhow::Error {
    match error {
        models::Error::Refused { refusal, findings } => {
            let more = match refusal {
                FindingSubject::Name { .. } => "; `onboard list` shows what is known",
                _ => "",
            };
            reported_error(&findings, &format!("{refusal}{more}"))
        }
        other => other.into(),
    }
}
