//! Cuts the text of an expression or program into tokens.
//!
//! Newlines count only outside brackets, as in Python; indentation never does.

use std::ops::Range;

use crate::diag::Finding;
use crate::text::MappedText;

/// Findings after which a text is given up: it is not a program at all.
const MAX_FINDINGS: usize = 20;

/// One token, by its range in the text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lexeme {
    pub(crate) kind: LexemeKind,
    pub(crate) range: Range<usize>,
}

/// The kinds of token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LexemeKind {
    /// A name, or a dotted path: the ranges of its segments.
    Path(Vec<Range<usize>>),
    Int(i64),
    Float(f64),
    Str(String),
    /// An operator, a bracket, or a keyword.
    Op(&'static str),
    Newline,
    End,
}

/// Longest first, so that `//` is not two `/`.
const OPS: [&str; 23] = [
    "**", "//", "==", "!=", "<=", ">=", "<", ">", "=", "+", "-", "*", "/", "%", "(", ")", "[", "]",
    ",", ":", ".", "{", "}",
];

const KEYWORDS: [&str; 8] = ["and", "or", "not", "in", "if", "else", "for", "return"];

/// Cuts `text` into tokens; the last is always `End`.
pub(crate) fn lex(text: &MappedText, findings: &mut Vec<Finding>) -> Vec<Lexeme> {
    let mut lexer = Lexer { text, pos: 0, depth: 0, tokens: Vec::new(), findings };
    let limit = lexer.findings.len() + MAX_FINDINGS;
    while lexer.pos < text.value().len() && lexer.findings.len() < limit {
        lexer.next();
    }
    let end = text.value().len();
    lexer.tokens.push(Lexeme { kind: LexemeKind::End, range: end..end });
    lexer.tokens
}

struct Lexer<'a> {
    text: &'a MappedText,
    pos: usize,
    /// Open brackets; a newline inside them is white space.
    depth: usize,
    tokens: Vec<Lexeme>,
    findings: &'a mut Vec<Finding>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.text.value()[self.pos..]
    }

    fn push(&mut self, kind: LexemeKind, len: usize) {
        self.tokens.push(Lexeme { kind, range: self.pos..self.pos + len });
        self.pos += len;
    }

    fn find(&mut self, range: Range<usize>, message: impl Into<String>, label: String) {
        self.findings.push(Finding::error(&self.text.at(range), message).label(label));
    }

    fn next(&mut self) {
        let remaining = self.rest();
        let first = remaining.chars().next().expect("not at the end");
        match first {
            '\n' if self.depth == 0 => self.push(LexemeKind::Newline, 1),
            ' ' | '\t' | '\r' | '\n' => self.pos += 1,
            '#' => self.pos += remaining.find('\n').unwrap_or(remaining.len()),
            'a'..='z' | 'A'..='Z' | '_' => self.path(),
            '0'..='9' => self.number(),
            '\'' | '"' => self.string(first),
            _ => self.operator(first),
        }
    }

    fn path(&mut self) {
        let remaining = self.rest();
        let mut end = word_length(remaining);
        if let Some(keyword) = KEYWORDS.iter().find(|keyword| **keyword == &remaining[..end]) {
            return self.push(LexemeKind::Op(keyword), end);
        }
        let first = self.pos..self.pos + end;
        let mut segments = vec![first];
        while remaining[end..].starts_with('.') && word_length(&remaining[end + 1..]) > 0 {
            let len = word_length(&remaining[end + 1..]);
            segments.push(self.pos + end + 1..self.pos + end + 1 + len);
            end += 1 + len;
        }
        self.push(LexemeKind::Path(segments), end);
    }

    fn number(&mut self) {
        let remaining = self.rest();
        let bytes = remaining.as_bytes();
        let mut end = digit_count(bytes);
        let mut float = false;
        if bytes.get(end) == Some(&b'.') {
            float = true;
            end += 1 + digit_count(&bytes[end + 1..]);
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            if bytes.get(end + 1 + sign).is_some_and(u8::is_ascii_digit) {
                float = true;
                end += 1 + sign + digit_count(&bytes[end + 1 + sign..]);
            }
        }
        let tail = bytes[end..].iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_');
        let tail = tail.count();
        let range = self.pos..self.pos + end + tail;
        if tail > 0 {
            let shown = self.text.value()[range.clone()].to_owned();
            let message = format!("`{shown}` is neither a number nor a name");
            self.find(range, message, String::new());
            // An unreadable number is read as one, so that the parser finds the other errors.
            return self.push(LexemeKind::Int(0), end + tail);
        }
        let plain = remaining[..end].replace('_', "");
        if float {
            let value: f64 = plain.parse().unwrap_or(f64::INFINITY);
            if !value.is_finite() {
                self.find(range, "this number is too large", "beyond 1.8e308".into());
            }
            self.push(LexemeKind::Float(value), end);
        } else {
            let value = plain.parse().unwrap_or_else(|_| {
                self.find(range, "this number is too large", format!("beyond {}", i64::MAX));
                0
            });
            self.push(LexemeKind::Int(value), end);
        }
    }

    fn string(&mut self, quote: char) {
        let remaining = self.rest();
        let stop = remaining[1..].find([quote, '\n']).map_or(remaining.len(), |len| len + 1);
        if !remaining[stop..].starts_with(quote) {
            let line = &remaining[..stop];
            let message = "this string does not end on its line";
            self.find(self.pos..self.pos + line.len(), message, format!("no closing {quote}"));
            return self.push(LexemeKind::Str(line[1..].to_owned()), line.len());
        }
        let inner = &remaining[1..stop];
        if inner.contains('\\') {
            let at = self.pos + 1 + inner.find('\\').expect("it is there");
            self.find(at..at + 1, "strings have no escapes", "a backslash".into());
        }
        self.push(LexemeKind::Str(inner.to_owned()), stop + 1);
    }

    fn operator(&mut self, first: char) {
        let remaining = self.rest();
        if let Some(op) = OPS.iter().find(|op| remaining.starts_with(**op)) {
            match *op {
                "(" | "[" => self.depth += 1,
                ")" | "]" => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            return self.push(LexemeKind::Op(op), op.len());
        }
        // A run of the same stranger is one finding.
        let len = remaining.find(|c| c != first).unwrap_or(remaining.len());
        let help = match first {
            '!' => Some("write `not x`, or `a != b`"),
            '&' => Some("write `a and b`"),
            '|' => Some("write `a or b`"),
            '^' => Some("write `a ** b`"),
            ';' => Some("write one statement per line"),
            '?' => Some("write `a if condition else b`"),
            '\u{2018}' | '\u{2019}' | '\u{201c}' | '\u{201d}' => Some("quote with ' or \""),
            _ => None,
        };
        let shown: String = first.escape_debug().collect();
        let at = self.text.at(self.pos..self.pos + len);
        let mut finding = Finding::error(&at, format!("`{shown}` has no meaning here"));
        finding.help = help.map(Into::into);
        self.findings.push(finding);
        self.pos += len;
    }
}

/// Returns the length of the name at the start of a text.
fn word_length(text: &str) -> usize {
    text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len())
}

/// Counts the digits at the start of a text, `_` among them.
fn digit_count(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|b| b.is_ascii_digit() || **b == b'_').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> (Vec<LexemeKind>, Vec<String>) {
        let mut findings = Vec::new();
        let tokens = lex(&MappedText::whole("t", text), &mut findings);
        let kinds = tokens.into_iter().map(|token| token.kind).collect();
        (kinds, findings.into_iter().map(|finding| finding.message).collect())
    }

    #[test]
    fn tokens() {
        let (lexemes, findings) = kinds("a.0.b_c // 1e-6 ** 12.5 != 'x' and 7 # why\n(\n)");
        assert!(findings.is_empty(), "{findings:?}");
        assert_eq!(
            lexemes,
            [
                LexemeKind::Path(vec![0..1, 2..3, 4..7]),
                LexemeKind::Op("//"),
                LexemeKind::Float(1e-6),
                LexemeKind::Op("**"),
                LexemeKind::Float(12.5),
                LexemeKind::Op("!="),
                LexemeKind::Str("x".into()),
                LexemeKind::Op("and"),
                LexemeKind::Int(7),
                LexemeKind::Newline,
                LexemeKind::Op("("),
                LexemeKind::Op(")"),
                LexemeKind::End,
            ]
        );
    }

    #[test]
    fn findings() {
        for (text, want) in [
            ("99999999999999999999", "this number is too large"),
            ("1e999", "this number is too large"),
            ("12abc", "`12abc` is neither a number nor a name"),
            ("'open", "this string does not end on its line"),
            ("'a\\n'", "strings have no escapes"),
            ("a && b", "`&` has no meaning here"),
            ("a \u{7} b", "`\\u{7}` has no meaning here"),
        ] {
            assert_eq!(kinds(text).1, [want], "{text}");
        }
        assert_eq!(kinds(&"@ ".repeat(1000)).1.len(), MAX_FINDINGS);
    }
}
