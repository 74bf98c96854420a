//! Findings as text: file, line, the line itself, a caret, and what to do.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use crate::diag::{Finding, Severity, Span};
use crate::listing;

/// The style of rendered findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenderStyle {
    /// Text alone.
    Plain,
    /// With terminal colours.
    Coloured,
}

/// Renders findings, sorted by place, and a last line that counts all of them. Of very many, errors come first.
pub fn render(findings: &[Finding], look: RenderStyle) -> String {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| {
        let place = finding.at.as_ref().map(|at| (at.source.path.as_str(), at.start));
        (place.is_none(), place)
    });
    if sorted.len() > listing::LINES {
        sorted.sort_by_key(|finding| finding.severity != Severity::Error);
    }
    let (sorted, omitted) = listing::lines(&sorted);
    let mut text = String::new();
    for finding in sorted {
        text.push_str(&render_one(finding, look));
        text.push_str("\n\n");
    }
    if let Some(omitted) = omitted {
        text.push_str(&omitted);
        text.push_str("\n\n");
    }
    text.push_str(&count(findings));
    text.push('\n');
    text
}

/// Renders one finding, without a newline at its end.
pub fn render_one(finding: &Finding, look: RenderStyle) -> String {
    let level = match finding.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let title = level.primary_title(neutral(&finding.message));
    let label = neutral(&finding.label);
    let mut group = match &finding.at {
        Some(at) => {
            let line = Excerpt::of(at);
            let mut mark = AnnotationKind::Primary.span(line.start..line.end);
            if !label.is_empty() {
                mark = mark.label(label);
            }
            let snippet = Snippet::source(line.text)
                .line_start(at.line())
                .path(neutral(&at.source.path))
                .annotation(mark);
            title.element(snippet)
        }
        None if label.is_empty() => Group::with_title(title),
        None => title.element(Level::NOTE.message(label)),
    };
    if let Some(help) = &finding.help {
        group = group.element(Level::HELP.message(neutral(help)));
    }
    let renderer = match look {
        RenderStyle::Plain => Renderer::plain(),
        RenderStyle::Coloured => Renderer::styled(),
    };
    renderer.render(&[group])
}

/// Counts findings as text: `2 errors, 1 warning`.
pub fn count(findings: &[Finding]) -> String {
    let errors = counted(findings, Severity::Error, "error");
    let warnings = counted(findings, Severity::Warning, "warning");
    match (errors, warnings) {
        (Some(errors), Some(warnings)) => format!("{errors}, {warnings}"),
        (errors, warnings) => errors.or(warnings).unwrap_or_else(|| "no findings".to_owned()),
    }
}

/// Counts the findings of a severity in words; none if there are none.
fn counted(findings: &[Finding], severity: Severity, word: &str) -> Option<String> {
    match findings.iter().filter(|finding| finding.severity == severity).count() {
        0 => None,
        1 => Some(format!("1 {word}")),
        n => Some(format!("{n} {word}s")),
    }
}

/// The line on which a span starts, safe to print, and the span within it.
struct Excerpt {
    text: String,
    start: usize,
    end: usize,
}

impl Excerpt {
    fn of(at: &Span) -> Self {
        let source = &at.source.text;
        let from = source[..at.start].rfind('\n').map_or(0, |newline| newline + 1);
        let to = source[from..].find('\n').map_or(source.len(), |newline| from + newline);
        let mut excerpt = Self { text: String::new(), start: usize::MAX, end: usize::MAX };
        // A byte order mark has no width; columns would be off by one.
        let line = source[from..to].trim_end_matches('\r');
        for (offset, c) in line.char_indices() {
            excerpt.mark(from + offset, at);
            if c != '\u{feff}' {
                excerpt.text.push(if hidden(c) { char::REPLACEMENT_CHARACTER } else { c });
            }
        }
        let len = excerpt.text.len();
        excerpt.start = excerpt.start.min(len);
        excerpt.end = excerpt.end.clamp(excerpt.start, len);
        excerpt
    }

    /// Notes where the span starts and ends, when the copy gets there.
    fn mark(&mut self, offset: usize, at: &Span) {
        if offset >= at.start {
            self.start = self.start.min(self.text.len());
        }
        if offset >= at.end {
            self.end = self.end.min(self.text.len());
        }
    }
}

/// Replaces the characters of a file's text that could steer the terminal.
fn neutral(text: &str) -> String {
    text.chars().map(|c| if hidden(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// True for control characters, and for characters that reorder the text.
fn hidden(c: char) -> bool {
    (c.is_control() && c != '\t')
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::MappedText;

    #[test]
    fn a_list_is_sorted_and_counted() {
        let text = MappedText::whole("dir/a.yaml", "spec: 1\ndims:\n  hidden: hiden\n");
        let findings = [
            Finding::unplaced("the checkpoint has no `lm_head.weight`").help("tie the weights"),
            Finding::error(&text.at(24..29), "no such key").label("found `hiden`").help("look"),
            Finding::error(&text.at(0..4), "old version").warning(),
        ];
        let want = "\
warning: old version
 --> dir/a.yaml:1:1
  |
1 | spec: 1
  | ^^^^

error: no such key
 --> dir/a.yaml:3:11
  |
3 |   hidden: hiden
  |           ^^^^^ found `hiden`
  |
  = help: look

error: the checkpoint has no `lm_head.weight`
 |
 = help: tie the weights

2 errors, 1 warning
";
        assert_eq!(render(&findings, RenderStyle::Plain), want);
        assert!(render(&findings, RenderStyle::Coloured).contains("\u{1b}["));
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let text = MappedText::whole("a\u{1b}.yaml", "\u{feff}k\u{1b}[2J: \u{202e}v\u{9b}\r\n");
        let end = text.value().len();
        for range in [0..end, 3..4, 4..5, end - 1..end, 0..0] {
            let finding =
                Finding::error(&text.at(range), "bad \u{1b}[31m").label("x\u{7}").help("\u{0}");
            let shown = render_one(&finding, RenderStyle::Plain);
            assert!(!shown.contains(|c| hidden(c) && c != '\n'), "{shown:?}");
            assert!(shown.contains("1:"), "{shown}");
        }
    }
}
