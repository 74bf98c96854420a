//! Patterns of tensor names with holes.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::numbered::NumberedHole;

/// The texts that fill the holes of a pattern, by the text of the hole (`i`, `q|k|v`, `*`).
pub type Holes = BTreeMap<String, String>;

/// A pattern of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// The pattern as it was written.
    pub text: String,
}

/// The most holes of a pattern: matching tries their lengths, so they must be few.
const MAX_HOLES: usize = 6;

/// Fault of the text of a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum PatternError {
    #[error("a brace is not closed, or not opened")]
    Brace,
    #[error("a hole has no name")]
    NoName,
    #[error(
        "`{{{hole}}}` is no number of a hole; expected a factor above 0, the hole and an offset, \
as in `{{2 * i + 1}}`"
    )]
    Number { hole: String },
    #[error("{found} holes, at most {MAX_HOLES} are allowed")]
    Holes { found: usize },
}

/// A piece of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatternPart<'p> {
    /// A fixed text.
    Text(&'p str),
    /// `{i}`.
    Word(&'p str),
    /// `{q|k|v}`.
    Choice(&'p str),
    /// `{2 * i + 1}`.
    Number(NumberedHole<'p>),
    /// `*`; stars are distinguished by their place, the first is 1.
    Any(usize),
}

impl<'p> PatternPart<'p> {
    /// Returns the name of the hole, if the piece is one.
    pub fn hole(self) -> Option<String> {
        match self {
            Self::Text(_) => None,
            Self::Word(name) | Self::Choice(name) => Some(name.to_owned()),
            Self::Number(numbered) => Some(numbered.hole.to_owned()),
            Self::Any(1) => Some("*".to_owned()),
            Self::Any(n) => Some(format!("*{n}")),
        }
    }

    /// Returns the words of a choice.
    pub fn words(self) -> Vec<&'p str> {
        match self {
            Self::Choice(words) => words.split('|').collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the text that stands in a name for this piece, if it is fixed or its hole is filled.
    pub(super) fn filled<'t>(self, holes: &'t Holes) -> Option<Cow<'t, str>>
    where
        'p: 't,
    {
        match self {
            Self::Text(text) => Some(Cow::Borrowed(text)),
            Self::Number(numbered) => {
                numbered.number_for(holes.get(numbered.hole)?).map(Cow::Owned)
            }
            _ => holes.get(&self.hole()?).map(|filling| Cow::Borrowed(filling.as_str())),
        }
    }
}

impl Pattern {
    /// Parses a pattern. The error is the fault of the text.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let pattern = Self { text: text.to_owned() };
        let pieces = pattern.pieces();
        if pieces
            .iter()
            .any(|piece| matches!(piece, PatternPart::Text(text) if text.contains(['{', '}'])))
        {
            return Err(PatternError::Brace);
        }
        if pieces
            .iter()
            .any(|piece| matches!(piece, PatternPart::Word("") | PatternPart::Choice("|")))
        {
            return Err(PatternError::NoName);
        }
        let faulty = pieces.iter().find_map(|piece| match piece {
            PatternPart::Word(hole) if NumberedHole::is_arithmetic(hole) => Some(*hole),
            _ => None,
        });
        if let Some(hole) = faulty {
            return Err(PatternError::Number { hole: hole.to_owned() });
        }
        let holes = pieces.iter().filter(|piece| piece.hole().is_some()).count();
        if holes > MAX_HOLES {
            return Err(PatternError::Holes { found: holes });
        }
        Ok(pattern)
    }

    /// Returns the pieces in their order.
    pub fn pieces(&self) -> Vec<PatternPart<'_>> {
        let mut pieces = Vec::new();
        let mut remaining = self.text.as_str();
        let mut stars = 0;
        while !remaining.is_empty() {
            let end = remaining.find(['{', '*']).unwrap_or(remaining.len());
            if end > 0 {
                pieces.push(PatternPart::Text(&remaining[..end]));
                remaining = &remaining[end..];
            } else if let Some(after) = remaining.strip_prefix('*') {
                stars += 1;
                pieces.push(PatternPart::Any(stars));
                remaining = after;
            } else if let Some((hole, after)) =
                remaining.strip_prefix('{').and_then(|remaining| remaining.split_once('}'))
            {
                pieces.push(if hole.contains('|') {
                    PatternPart::Choice(hole)
                } else {
                    NumberedHole::parse(hole).map_or(PatternPart::Word(hole), PatternPart::Number)
                });
                remaining = after;
            } else {
                // An open brace that is never closed is a character.
                pieces.push(PatternPart::Text(remaining));
                remaining = "";
            }
        }
        pieces
    }

    /// Returns the fixed beginning of the names, if the rest of the pattern is a single `*`.
    pub(super) fn beginning(&self) -> Option<&str> {
        self.text.strip_suffix('*').filter(|text| !text.contains(['*', '{']))
    }

    /// Returns the names of the holes.
    pub fn holes(&self) -> BTreeSet<String> {
        self.pieces().into_iter().filter_map(PatternPart::hole).collect()
    }

    /// Returns the texts that fill the holes if the name fits; a hole that stands twice has one filling.
    pub fn fit(&self, name: &str) -> Option<Holes> {
        self.fit_with(name, &Holes::new())
    }

    /// Fits a name like [`Pattern::fit`], with some holes filled already.
    pub(super) fn fit_with(&self, name: &str, holes: &Holes) -> Option<Holes> {
        // Most names fail at the text before the first hole or behind the last.
        let first = self.text.find(['{', '*']).unwrap_or(self.text.len());
        let last = self.text.rfind(['}', '*']).map_or(0, |at| at + 1);
        if !name.starts_with(&self.text[..first]) || !name.ends_with(&self.text[last..]) {
            return None;
        }
        fit(&self.pieces(), name, holes)
    }

    /// Returns the name that filled holes give.
    pub fn fill(&self, holes: &Holes) -> Option<String> {
        self.pieces().into_iter().map(|piece| piece.filled(holes)).collect()
    }

    /// Returns every name that filled holes give where a choice is still open, the last choice fastest. None
    /// if another kind of hole is open.
    pub fn spread(&self, holes: &Holes) -> Option<Vec<String>> {
        let mut names = vec![String::new()];
        for piece in self.pieces() {
            let fillings = match (piece, piece.filled(holes)) {
                (_, Some(filling)) => vec![filling],
                (PatternPart::Choice(_), None) => {
                    piece.words().into_iter().map(Cow::Borrowed).collect()
                }
                _ => return None,
            };
            names = names
                .iter()
                .flat_map(|name: &String| {
                    fillings.iter().map(|filling| format!("{name}{filling}")).collect::<Vec<_>>()
                })
                .collect();
        }
        Some(names)
    }
}

fn fit(pieces: &[PatternPart<'_>], name: &str, holes: &Holes) -> Option<Holes> {
    let Some((&first, remaining)) = pieces.split_first() else {
        return name.is_empty().then(|| holes.clone());
    };
    if let PatternPart::Text(text) = first {
        return fit(remaining, name.strip_prefix(text)?, holes);
    }
    let hole = first.hole()?;
    if holes.contains_key(&hole) {
        return fit(remaining, name.strip_prefix(&*first.filled(holes)?)?, holes);
    }
    if let PatternPart::Number(numbered) = first {
        let digits = name.find(|char: char| !char.is_ascii_digit()).unwrap_or(name.len());
        let mut holes = holes.clone();
        holes.insert(hole, numbered.filling_for(&name[..digits])?);
        return fit(remaining, &name[digits..], &holes);
    }
    let fill = |length: usize| {
        let mut holes = holes.clone();
        holes.insert(hole.clone(), name[..length].to_owned());
        fit(remaining, &name[length..], &holes)
    };
    match first {
        PatternPart::Choice(_) => first
            .words()
            .into_iter()
            .filter(|word| name.starts_with(word))
            .find_map(|word| fill(word.len())),
        PatternPart::Word(_) => {
            let limit = name.find('.').unwrap_or(name.len());
            ends(name, limit).filter(|&end| end > 0).find_map(fill)
        }
        _ => ends(name, name.len()).find_map(fill),
    }
}

/// Iterates over the places up to `limit` at which a hole may end, the longest first, as people expect.
fn ends(name: &str, limit: usize) -> impl Iterator<Item = usize> {
    (0..=limit).rev().filter(move |&end| name.is_char_boundary(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_filled() {
        for (pattern, name, expected) in [
            ("h.{i}.n", "h.12.n", Some("i=12")),
            ("h.{i}.n", "h.1.2.n", None),
            ("a.*", "a.b.c", Some("*=b.c")),
            ("*.a.*", "x.a.a.y", Some("*=x.a *2=y")),
            ("x.{q|k}.w", "x.k.w", Some("q|k=k")),
            ("x.{q|k}.w", "x.v.w", None),
            ("{i}.{i}", "1.2", None),
            ("{i}.{i}", "2.2", Some("i=2")),
            ("h.{2 * i + 1}.n", "h.25.n", Some("i=12")),
            ("h.{2*i}.n", "h.24.n", Some("i=12")),
            ("h.{2 * i}.n", "h.25.n", None),
            ("h.{2 * i}.n", "h.024.n", None),
            ("h.{2 * i}.n", "h.x.n", None),
            ("h.{i - 3}.n", "h.9.n", Some("i=12")),
            ("h.{i + 3}.n", "h.2.n", None),
            ("{i}.{i + 1}", "9.10", Some("i=9")),
            ("{i}.{i + 1}", "9.11", None),
            ("{i + 1}.{i}", "10.9", Some("i=9")),
            ("", "", Some("")),
        ] {
            let holes = Pattern::parse(pattern).unwrap().fit(name);
            let shown = holes.as_ref().map(|holes| {
                holes
                    .iter()
                    .map(|(hole, text)| format!("{hole}={text}"))
                    .collect::<Vec<_>>()
                    .join(" ")
            });
            assert_eq!(shown.as_deref(), expected, "{pattern} on {name}");
            if let Some(holes) = holes {
                assert_eq!(Pattern::parse(pattern).unwrap().fill(&holes).as_deref(), Some(name));
            }
        }
    }

    #[test]
    fn bad_patterns_are_refused() {
        for pattern in [
            "a{b",
            "a}b",
            "{}",
            "{a}{b}{c}{d}{e}{f}{g}",
            "{2 * }",
            "{0 * i}",
            "{i * 2}",
            "{i + x}",
            "{i / 2}",
        ] {
            assert!(Pattern::parse(pattern).is_err(), "{pattern}");
        }
    }
}
