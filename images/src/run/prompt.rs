//! The text in the place of an image's placeholder.

use std::fmt;

use indexmap::IndexMap;
use registry::diag::{Finding, Span};
use registry::scalar::Scalar;

use super::PictureScope;
use crate::sheet::{PartKind, PromptPart, TextPiece};

/// The text of one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagePrompt {
    /// The token that the text replaces.
    pub placeholder: String,
    /// Texts in order.
    pub pieces: Vec<PromptPiece>,
}

/// A text and its repetitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptPiece {
    /// A token or text.
    pub text: String,
    /// Number of repetitions.
    pub times: usize,
}

impl ImagePrompt {
    /// Returns the number of times that a token is in the text.
    pub fn count(&self, token: &str) -> usize {
        self.pieces.iter().filter(|piece| piece.text == token).map(|piece| piece.times).sum()
    }
}

impl fmt::Display for ImagePrompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in &self.pieces {
            for _ in 0..piece.times {
                f.write_str(&piece.text)?;
            }
        }
        Ok(())
    }
}

/// Writes the parts of a prompt.
pub(crate) fn write(
    scope: &mut PictureScope,
    parts: &[PromptPart],
    tokens: &IndexMap<String, String>,
    pieces: &mut Vec<PromptPiece>,
) -> Result<(), Finding> {
    for part in parts {
        if !scope.holds(part.when.as_ref())? {
            continue;
        }
        let times = part.times.as_ref().map_or(Ok(1), |times| scope.size(times))?;
        match &part.kind {
            PartKind::Token(name) => {
                let word = tokens.get(&name.name).cloned().unwrap_or_default();
                push(scope, PromptPiece { text: word, times }, &part.at, pieces)?;
            }
            PartKind::Text(text) => {
                let text = filled(scope, text)?;
                push(scope, PromptPiece { text, times }, &part.at, pieces)?;
            }
            PartKind::For(variable, below, inner) => {
                for n in 0..bounded(scope, scope.size(below)?, &part.at)? {
                    scope.count(&variable.name, n);
                    write(scope, inner, tokens, pieces)?;
                }
            }
            PartKind::Let(names) => scope.name_all(names)?,
            PartKind::Parts(inner) => {
                for _ in 0..bounded(scope, times, &part.at)? {
                    write(scope, inner, tokens, pieces)?;
                }
            }
        }
    }
    Ok(())
}

/// Appends a piece; tokens and pieces together stay within the limit.
fn push(
    scope: &PictureScope,
    piece: PromptPiece,
    at: &Span,
    pieces: &mut Vec<PromptPiece>,
) -> Result<(), Finding> {
    bounded(scope, piece.times.saturating_add(pieces.len()), at)?;
    if piece.times > 0 && !piece.text.is_empty() {
        pieces.push(piece);
    }
    Ok(())
}

fn bounded(scope: &PictureScope, count: usize, at: &Span) -> Result<usize, Finding> {
    if count > scope.limits.tokens {
        let label = format!("found {count}, expected at most {}", scope.limits.tokens);
        return Err(Finding::error(at, "the prompt has too many tokens").label(label));
    }
    Ok(count)
}

/// Fills the expressions of a text.
fn filled(scope: &PictureScope, text: &[TextPiece]) -> Result<String, Finding> {
    let mut filled = String::new();
    for piece in text {
        match piece {
            TextPiece::Plain(plain) => filled.push_str(plain),
            TextPiece::Hole(expr) => match scope.value(expr)? {
                Scalar::Str(word) => filled.push_str(&word),
                other => filled.push_str(&other.to_string()),
            },
        }
    }
    Ok(filled)
}
