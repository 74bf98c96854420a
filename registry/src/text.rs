//! Text extracted from a source, with the source place of each byte.
//!
//! A program in a block scalar is indented and a quoted expression may hold
//! escapes, so the text that is parsed is not always a range of the file.

use std::ops::Range;
use std::sync::Arc;

use crate::diag::{SourceText, Span};
use crate::syntax::Ident;

/// Text and where its parts come from.
#[derive(Debug, Clone, PartialEq)]
pub struct MappedText {
    value: String,
    source: Arc<SourceText>,
    /// In order, covering `value` completely.
    pieces: Vec<TextRun>,
    /// The place of the text as a whole, for when it is empty.
    whole: Range<usize>,
}

/// A run of the text: equal lengths are a verbatim copy, others one escape.
#[derive(Debug, Clone, PartialEq)]
struct TextRun {
    value: Range<usize>,
    raw: Range<usize>,
}

impl MappedText {
    /// Creates an empty text of the given place; filled by `copy` and `replace`.
    pub(crate) fn empty(source: &Arc<SourceText>, place: Range<usize>) -> Self {
        Self { value: String::new(), source: source.clone(), pieces: Vec::new(), whole: place }
    }

    /// Creates a text from a range of a source, unchanged.
    pub fn of(at: &Span) -> Self {
        let mut text = Self::empty(&at.source, at.start..at.end);
        text.copy(at.start..at.end);
        text
    }

    /// Creates a text that is a source of its own, named `path`.
    pub fn whole(path: impl Into<String>, text: impl Into<String>) -> Self {
        let source = SourceText { path: path.into(), text: text.into() };
        let end = source.text.len();
        Self::of(&Span { source: Arc::new(source), start: 0, end })
    }

    /// Appends a range of the source verbatim.
    pub(crate) fn copy(&mut self, raw: Range<usize>) {
        let start = self.value.len();
        self.value.push_str(&self.source.text[raw.clone()]);
        let value = start..self.value.len();
        match self.pieces.last_mut() {
            Some(last) if last.raw.end == raw.start && last.value.len() == last.raw.len() => {
                last.value.end = value.end;
                last.raw.end = raw.end;
            }
            _ if raw.is_empty() => {}
            _ => self.pieces.push(TextRun { value, raw }),
        }
    }

    /// Appends the text that an escape or a fold at `raw` encodes.
    pub(crate) fn replace(&mut self, with: char, raw: Range<usize>) {
        let start = self.value.len();
        self.value.push(with);
        self.pieces.push(TextRun { value: start..self.value.len(), raw });
    }

    /// Cuts what follows the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        *self = self.slice(0..len.min(self.value.len()));
    }

    /// Returns the text.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Returns the place of the whole text.
    pub fn span(&self) -> Span {
        if self.value.is_empty() {
            return Span {
                source: self.source.clone(),
                start: self.whole.start,
                end: self.whole.end,
            };
        }
        self.at(0..self.value.len())
    }

    /// Returns the place of a range of the text. An empty range is placed at its next byte, or after the last
    /// one.
    pub fn at(&self, range: Range<usize>) -> Span {
        let start = match self.piece(range.start) {
            Some(piece) if piece.verbatim() => piece.raw.start + (range.start - piece.value.start),
            Some(piece) => piece.raw.start,
            None => self.pieces.last().map_or(self.whole.start, |piece| piece.raw.end),
        };
        let end = match range.end.checked_sub(1).and_then(|last| self.piece(last)) {
            _ if range.is_empty() => start,
            Some(piece) if piece.verbatim() => piece.raw.start + (range.end - piece.value.start),
            Some(piece) => piece.raw.end,
            None => start,
        };
        Span { source: self.source.clone(), start, end: end.max(start) }
    }

    /// Returns a range of the text as a text.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let span = self.at(range.clone());
        let mut text = Self::empty(&self.source, span.start..span.end);
        text.value.push_str(&self.value[range.clone()]);
        for piece in &self.pieces {
            let from = piece.value.start.max(range.start);
            let to = piece.value.end.min(range.end);
            if from < to {
                let raw = if piece.verbatim() {
                    let shift = piece.raw.start;
                    shift + (from - piece.value.start)..shift + (to - piece.value.start)
                } else {
                    piece.raw.clone()
                };
                text.pieces.push(TextRun { value: from - range.start..to - range.start, raw });
            }
        }
        text
    }

    /// Returns the text without surrounding white space.
    #[must_use]
    pub fn trim(&self) -> Self {
        let start = self.value.len() - self.value.trim_start().len();
        self.slice(start..start + self.value.trim().len())
    }

    /// Returns the text as a name, without checking it.
    pub fn ident(&self) -> Ident {
        Ident { name: self.value.clone(), at: self.span() }
    }

    fn piece(&self, offset: usize) -> Option<&TextRun> {
        let n = self.pieces.partition_point(|piece| piece.value.end <= offset);
        self.pieces.get(n)
    }
}

impl TextRun {
    fn verbatim(&self) -> bool {
        self.value.len() == self.raw.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_survive_escapes_and_slices() {
        let source = Arc::new(SourceText { path: "s".into(), text: "'it''s so'".into() });
        let mut text = MappedText::empty(&source, 0..10);
        text.copy(1..3);
        text.replace('\'', 3..5);
        text.copy(5..9);
        assert_eq!(text.value(), "it's so");
        assert_eq!(text.at(0..7).text(), "it''s so");
        assert_eq!(text.at(2..3).text(), "''");
        assert_eq!(text.at(5..7).text(), "so");
        let tail = text.slice(2..7);
        assert_eq!(tail.value(), "'s so");
        assert_eq!(tail.at(1..2).text(), "s");
        assert_eq!(text.at(7..7).start, 9);
        assert_eq!(text.slice(4..5).trim().value(), "");
    }
}
