//! Patterns of calls: literal texts with holes, as YAML files of formats write them.

use std::fmt;

/// Part of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PatternStep {
    /// This text.
    Literal(String),
    /// White space, or nothing.
    Space,
    /// A hole.
    Hole(Hole),
}

/// Parts of a call that a pattern can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hole {
    /// Name of the tool.
    Name,
    /// Text that is read and not kept.
    Id,
    /// JSON object of the arguments.
    Arguments,
    /// JSON object with the name and the arguments.
    Call,
    /// JSON list of such objects, or one of them.
    Calls,
    /// Python list of calls.
    Python,
    /// Object with bare keys and strings between markers.
    Object,
    /// Any number of pairs.
    Pairs,
    /// Nested tags, each behind a mark.
    Tags,
    /// Key of a pair.
    Key,
    /// Value of a pair.
    Value,
    /// Word for the kind of a pair's value.
    Type,
}

const HOLES: [(&str, Hole); 12] = [
    ("name", Hole::Name),
    ("id", Hole::Id),
    ("arguments", Hole::Arguments),
    ("call", Hole::Call),
    ("calls", Hole::Calls),
    ("python", Hole::Python),
    ("object", Hole::Object),
    ("pairs", Hole::Pairs),
    ("tags", Hole::Tags),
    ("key", Hole::Key),
    ("value", Hole::Value),
    ("type", Hole::Type),
];

/// Parts of a call or of a pair in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallPattern {
    /// The steps.
    pub(crate) steps: Vec<PatternStep>,
}

impl CallPattern {
    /// Reads a pattern: `{name}` is a hole, `{ }` optional white space, all else literal text.
    pub(crate) fn parse(text: &str) -> Result<Self, CallPatternError> {
        let mut steps = Vec::new();
        let mut remaining = text;
        while !remaining.is_empty() {
            let Some(open) = remaining.find('{') else {
                steps.push(PatternStep::Literal(remaining.to_owned()));
                break;
            };
            if open > 0 {
                steps.push(PatternStep::Literal(remaining[..open].to_owned()));
            }
            let Some(close) = remaining[open..].find('}') else {
                return Err(CallPatternError::Unclosed);
            };
            let word = &remaining[open + 1..open + close];
            steps.push(if word == " " {
                PatternStep::Space
            } else {
                let hole = HOLES.iter().find(|(name, _)| *name == word);
                PatternStep::Hole(hole.ok_or_else(|| CallPatternError::Unknown(word.to_owned()))?.1)
            });
            remaining = &remaining[open + close + 1..];
        }
        Ok(Self { steps })
    }

    /// Returns the literal text at the start of the pattern; empty if the pattern begins with a hole.
    pub(crate) fn opener(&self) -> &str {
        match self.steps.first() {
            Some(PatternStep::Literal(text)) => text,
            _ => "",
        }
    }

    /// True if a hole is part of the pattern.
    pub(crate) fn has(&self, hole: Hole) -> bool {
        self.steps.contains(&PatternStep::Hole(hole))
    }

    /// Returns the names of holes.
    pub(crate) fn words() -> impl Iterator<Item = &'static str> + Clone {
        HOLES.iter().map(|(name, _)| *name)
    }
}

/// Mistake in a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallPatternError {
    /// A `{` without `}`.
    Unclosed,
    /// No such hole.
    Unknown(String),
}

impl fmt::Display for CallPatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unclosed => f.write_str("a `{` of this pattern has no `}`"),
            Self::Unknown(word) => write!(f, "patterns have no hole `{{{word}}}`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_text_with_holes() {
        let pattern = CallPattern::parse("<f={name}>{ }{pairs}</f>").unwrap();
        assert_eq!(
            pattern.steps,
            [
                PatternStep::Literal("<f=".into()),
                PatternStep::Hole(Hole::Name),
                PatternStep::Literal(">".into()),
                PatternStep::Space,
                PatternStep::Hole(Hole::Pairs),
                PatternStep::Literal("</f>".into()),
            ]
        );
        assert_eq!(pattern.opener(), "<f=");
        assert_eq!(CallPattern::parse("{call}").unwrap().opener(), "");
        assert_eq!(CallPattern::parse("a{name"), Err(CallPatternError::Unclosed));
        assert_eq!(CallPattern::parse("{nam}"), Err(CallPatternError::Unknown("nam".into())));
    }
}
