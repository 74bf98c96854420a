//! Findings: what is wrong with a spec, where, and what to do about it.

use std::borrow::Cow;
use std::sync::Arc;

use crate::listing;

/// A text that findings point into.
#[derive(Debug, PartialEq, Eq)]
pub struct SourceText {
    /// The path as the user would type it, or the option for an override.
    pub path: String,
    /// The whole text.
    pub text: String,
}

/// The folder that the paths of built-in files begin with.
const BUILTIN: &str = "registry/";

impl SourceText {
    /// True for a file that the program carries, which nobody can edit.
    pub fn is_builtin(&self) -> bool {
        self.path.starts_with(BUILTIN)
    }

    /// Names the file to edit: this one, or for a built-in spec one of the user's that extends it.
    pub(crate) fn editable(&self, spec: &str) -> String {
        if self.is_builtin() {
            format!(
                "a spec of yours that extends `{spec}` (`onboard new NAME` with the option `like {spec}`)"
            )
        } else {
            format!("`{}`", self.path)
        }
    }
}

/// A byte range of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The text.
    pub source: Arc<SourceText>,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// A warning; nothing is refused.
    Warning,
    /// The spec, or the pair of spec and checkpoint, cannot be used.
    Error,
}

/// Most characters of a text of a finding, which may quote a file.
const MAX_TEXT: usize = 4000;

/// A fault, with its place and its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The severity: an error stops the work.
    pub severity: Severity,
    /// A lower-case sentence without a period: what is wrong.
    pub message: String,
    /// The place, if the finding has one in a text.
    pub at: Option<Span>,
    /// The text under the caret: the value found or expected there.
    pub label: String,
    /// The remedy, as an instruction to the user.
    pub help: Option<String>,
}

impl Finding {
    /// Creates an error at a place.
    pub fn error(at: &Span, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            message: bounded(message),
            at: Some(at.clone()),
            label: String::new(),
            help: None,
        }
    }

    /// Creates an error that has no place in a text, for example in a checkpoint's header.
    pub fn unplaced(message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            message: bounded(message),
            at: None,
            label: String::new(),
            help: None,
        }
    }

    /// Returns the same finding as a warning.
    #[must_use]
    pub fn warning(mut self) -> Self {
        self.severity = Severity::Warning;
        self
    }

    /// Adds the words under the caret.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = bounded(label);
        self
    }

    /// Adds the remedy.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(bounded(help));
        self
    }
}

/// Returns a text of at most [`MAX_TEXT`] characters.
fn bounded(text: impl Into<String>) -> String {
    let text = text.into();
    match listing::shortened(&text, MAX_TEXT) {
        Cow::Borrowed(_) => text,
        Cow::Owned(shortened) => shortened,
    }
}

impl Span {
    /// Returns the first line of the span, counted from 1.
    pub fn line(&self) -> usize {
        1 + self.source.text[..self.start].matches('\n').count()
    }

    /// Returns the first column of the span, counted in characters from 1.
    pub fn column(&self) -> usize {
        let before = &self.source.text[..self.start];
        1 + before[before.rfind('\n').map_or(0, |newline| newline + 1)..].chars().count()
    }

    /// Returns the text of the span.
    pub fn text(&self) -> &str {
        &self.source.text[self.start..self.end]
    }
}
