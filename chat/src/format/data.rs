//! A format, as its YAML file describes it.

use indexmap::IndexMap;

use super::parts::CallKeys;
use super::pattern::CallPattern;
use super::value::ValueType;

/// Form of tool calls and reasoning in the output of a family of models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    pub(crate) name: String,
    pub(crate) about: String,
    /// Texts of chat templates: each item is a list of texts that all have to be there.
    pub(crate) find: Vec<Vec<String>>,
    /// Texts that must not be in the chat template.
    pub(crate) without: Vec<String>,
    /// Parsers of engines, by engine and part.
    pub(crate) engines: IndexMap<String, EngineParsers>,
    pub(crate) reasoning: Option<ReasoningMarks>,
    pub(crate) section: Option<SectionMarks>,
    pub(crate) calls: Vec<CallPattern>,
    pub(crate) pair: Option<CallPattern>,
    pub(crate) value: PairValue,
    pub(crate) keys: CallKeys,
    /// Text before names that is no part of them.
    pub(crate) name_prefix: String,
    /// Characters that may stand between two calls, besides white space.
    pub(crate) between: String,
    /// Mark before and after strings of `{object}`.
    pub(crate) strings: String,
    /// Mark before each tag of `{tags}`.
    pub(crate) tags: String,
    /// Marks that are no text.
    pub(crate) drop: Vec<String>,
    /// True for the format of forced calls that no other format can express.
    pub(crate) fallback: bool,
}

/// Names of an engine's parsers for a format.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineParsers {
    /// Parser of tool calls.
    pub tools: Option<String>,
    /// Parser of reasoning.
    pub reasoning: Option<String>,
}

/// Marks of reasoning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReasoningMarks {
    /// Mark before the reasoning.
    pub(crate) open: String,
    /// Mark behind the reasoning.
    pub(crate) close: String,
    /// True if a call ends the reasoning too.
    pub(crate) ends_at_calls: bool,
    /// True if reasoning may follow other text.
    pub(crate) repeats: bool,
}

/// Marks around the calls of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SectionMarks {
    /// Mark before the calls.
    pub(crate) open: String,
    /// Mark behind the calls.
    pub(crate) close: String,
    /// True if a call of a given tool counts without the opening mark.
    pub(crate) optional: bool,
}

/// Reading of the values of pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PairValue {
    /// White space around the value that is no part of it.
    pub(crate) trim: ValueTrim,
    /// Reading of a value whose schema gives no type.
    pub(crate) untyped: ValueType,
    /// Texts before and behind a value that are no part of it.
    pub(crate) wrap: Option<(String, String)>,
    /// Readings by the word of `{type}`.
    pub(crate) types: IndexMap<String, ValueType>,
}

/// White space around values of pairs that is no part of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueTrim {
    /// None.
    Nothing,
    /// One newline at each end.
    Newline,
    /// All of it.
    Space,
}

impl Format {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns one line on the models that write the format.
    pub fn about(&self) -> &str {
        &self.about
    }

    /// Returns the names of an engine's parsers for the format.
    pub fn engine(&self, engine: &str) -> Option<&EngineParsers> {
        self.engines.get(engine)
    }

    /// Returns the parsers of all engines by the engine's name.
    pub fn engines(&self) -> impl Iterator<Item = (&str, &EngineParsers)> {
        self.engines.iter().map(|(name, parsers)| (name.as_str(), parsers))
    }

    /// True for the format of forced calls that no other format can express.
    pub fn is_fallback(&self) -> bool {
        self.fallback
    }

    /// True if the format has tool calls, and not reasoning alone.
    pub fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Returns the marks around reasoning.
    pub fn reasoning(&self) -> Option<(&str, &str)> {
        self.reasoning.as_ref().map(|marks| (marks.open.as_str(), marks.close.as_str()))
    }

    /// Returns the literal texts of the format.
    #[cfg(test)]
    pub(crate) fn marks(&self) -> impl Iterator<Item = &str> {
        let patterns = self.calls.iter().chain(&self.pair).flat_map(|pattern| &pattern.steps);
        let literals = patterns.filter_map(|step| match step {
            super::pattern::PatternStep::Literal(text) => Some(text.as_str()),
            _ => None,
        });
        let section = self.section.iter().flat_map(|marks| [&marks.open, &marks.close]);
        let strings = std::iter::once(&self.strings).filter(|mark| !mark.is_empty());
        literals.chain(section.chain(strings).map(String::as_str))
    }

    /// Returns the marks that are no text.
    pub fn dropped(&self) -> &[String] {
        &self.drop
    }

    /// True if a prompt ends behind the reasoning: with its closing mark.
    pub fn reasoned_before(&self, prompt: &str) -> bool {
        self.reasoning
            .as_ref()
            .is_some_and(|marks| prompt.trim_end().ends_with(marks.close.trim_end()))
    }

    /// True if a prompt ends inside the reasoning: its last mark of reasoning is the opening one.
    pub fn reasons_after(&self, prompt: &str) -> bool {
        self.reasoning
            .as_ref()
            .is_some_and(|marks| prompt.trim_end().ends_with(marks.open.trim_end()))
    }

    /// True if the texts of the format are in a chat template.
    pub(crate) fn is_in(&self, template: &str) -> Option<usize> {
        if self.without.iter().any(|text| template.contains(text.as_str())) {
            return None;
        }
        let matching = self
            .find
            .iter()
            .filter(|texts| texts.iter().all(|text| template.contains(text.as_str())));
        matching.map(|texts| texts.iter().map(String::len).sum()).max()
    }
}
