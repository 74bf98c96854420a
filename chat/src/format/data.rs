//! A format, as its YAML file describes it.

use indexmap::IndexMap;

use super::parts::CallKeys;
use super::pattern::CallPattern;
use super::value::ValueType;

/// Form of tool calls and reasoning in the output of a family of models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    pub(super) name: String,
    pub(super) about: String,
    /// Texts of chat templates: each item is a list of texts that all have to be there.
    pub(super) find: Vec<Vec<String>>,
    /// Texts that must not be in the chat template.
    pub(super) without: Vec<String>,
    /// Parsers of engines, by engine and part.
    pub(super) engines: IndexMap<String, EngineParsers>,
    pub(super) reasoning: Option<ReasoningMarks>,
    pub(super) section: Option<SectionMarks>,
    pub(super) calls: Vec<CallPattern>,
    pub(super) pair: Option<CallPattern>,
    pub(super) value: PairValue,
    pub(super) keys: CallKeys,
    /// Text before names that is no part of them.
    pub(super) name_prefix: String,
    /// Characters that may stand between two calls, besides white space.
    pub(super) between: String,
    /// Mark before and after strings of `{object}`.
    pub(super) strings: String,
    /// Mark before each tag of `{tags}`.
    pub(super) tags: String,
    /// Marks that are no text.
    pub(super) drop: Vec<String>,
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
pub(super) struct ReasoningMarks {
    /// Mark before the reasoning.
    pub(super) open: String,
    /// Mark behind the reasoning.
    pub(super) close: String,
    /// True if a call ends the reasoning too.
    pub(super) ends_at_calls: bool,
    /// True if reasoning may follow other text.
    pub(super) repeats: bool,
}

/// Marks around the calls of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SectionMarks {
    /// Mark before the calls.
    pub(super) open: String,
    /// Mark behind the calls.
    pub(super) close: String,
}

/// Reading of the values of pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PairValue {
    /// White space around the value that is no part of it.
    pub(super) trim: ValueTrim,
    /// Reading of a value whose schema gives no type.
    pub(super) untyped: ValueType,
    /// Texts before and behind a value that are no part of it.
    pub(super) wrap: Option<(String, String)>,
    /// Readings by the word of `{type}`.
    pub(super) types: IndexMap<String, ValueType>,
}

/// White space around values of pairs that is no part of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueTrim {
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

    /// True if the format has tool calls, and not reasoning alone.
    pub fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Returns the marks around reasoning.
    pub fn reasoning(&self) -> Option<(&str, &str)> {
        self.reasoning.as_ref().map(|marks| (marks.open.as_str(), marks.close.as_str()))
    }

    /// True if a prompt ends inside the reasoning: its last mark of reasoning is the opening one.
    pub fn reasons_after(&self, prompt: &str) -> bool {
        self.reasoning
            .as_ref()
            .is_some_and(|marks| prompt.trim_end().ends_with(marks.open.trim_end()))
    }

    /// True if the texts of the format are in a chat template.
    pub(super) fn is_in(&self, template: &str) -> Option<usize> {
        let has = |text: &String| template.contains(text.as_str());
        if self.without.iter().any(has) {
            return None;
        }
        let whole = self.find.iter().filter(|texts| texts.iter().all(has));
        whole.map(|texts| texts.iter().map(String::len).sum()).max()
    }
}
