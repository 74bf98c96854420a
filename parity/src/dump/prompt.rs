//! Prompts of a dump, and their checks.

use std::fmt;

use engine::ChunkMask;
use formats::shown;
use registry::listing;
use registry::rope::MAX_AXES;
use serde::Deserialize;

/// Maximum length of a prompt.
const LONGEST_PROMPT: usize = 1 << 20;

/// Maximum number of layers behind which rows are added.
const MAX_BESIDE: usize = 1024;

/// Phase of a run: the way in which a prompt is fed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// All tokens in one forward pass from an empty cache.
    Prefill,
    /// A prefix in one forward pass, then token by token.
    Decode,
}

impl Phase {
    /// Both phases, in the order in which they run.
    pub const ALL: [Self; 2] = [Self::Prefill, Self::Decode];

    /// Returns the name in tensor names and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Token sequence.
#[derive(Debug, Clone, Deserialize)]
pub struct Prompt {
    /// Name of the prompt, a part of tensor names.
    pub name: String,
    /// Tokens of the prompt.
    pub tokens: Vec<u32>,
    /// Number of tokens that the decode phase feeds at once.
    pub split: usize,
    /// Number of tokens at the start that see each other; 0 for none.
    #[serde(default)]
    pub prefix: usize,
    /// Positions at which documents begin, ascending from 0; empty if the prompt is one document.
    #[serde(default)]
    pub documents: Vec<usize>,
    /// Positions of the tokens whose embedding was replaced by a row, ascending; empty for text.
    #[serde(default)]
    pub given: Vec<usize>,
    /// For each axis the positions of the tokens, by which rotary tables turned; empty if they count the tokens.
    #[serde(default)]
    pub positions: Vec<Vec<u32>>,
    /// Ranges of tokens that see each other, ascending.
    #[serde(default)]
    pub spans: Vec<(usize, usize)>,
    /// Number of first layers behind which rows were added.
    #[serde(default)]
    pub beside: usize,
    /// Phases in which taps and states were recorded for the prompt.
    #[serde(default)]
    pub taps: Vec<String>,
    /// Positions of the recorded rows, ascending; all positions if absent.
    #[serde(default)]
    pub rows: Option<Vec<usize>>,
    /// Lengths after which decode recorded the blocks of convolutions and recurrences, ascending. If
    /// absent, they are the length of the prefix and every later one.
    #[serde(default)]
    pub snapshots: Option<Vec<usize>>,
}

impl Prompt {
    /// Returns a prompt of these tokens that is causal and records all rows.
    pub fn causal(tokens: Vec<u32>) -> Self {
        Self {
            name: String::new(),
            split: tokens.len().saturating_sub(1).max(1),
            tokens,
            prefix: 0,
            documents: Vec::new(),
            given: Vec::new(),
            positions: Vec::new(),
            spans: Vec::new(),
            beside: 0,
            taps: Vec::new(),
            rows: None,
            snapshots: None,
        }
    }

    /// True if the prompt is more than tokens: rows or positions come with it.
    pub fn has_rows(&self) -> bool {
        !self.given.is_empty() || !self.positions.is_empty()
    }

    /// True if attention is causal over one document of tokens.
    pub fn is_plain(&self) -> bool {
        self.prefix <= 1 && self.documents.len() <= 1 && self.spans.is_empty() && !self.has_rows()
    }

    /// Returns the positions of the rows of a phase's log-probabilities and taps.
    pub fn positions(&self, phase: Phase) -> Vec<usize> {
        let first = if phase == Phase::Decode { self.split } else { 0 };
        match &self.rows {
            None => (first..self.tokens.len()).collect(),
            Some(rows) => rows.iter().copied().filter(|row| *row >= first).collect(),
        }
    }

    /// Returns the lengths after which decode recorded blocks of convolutions and recurrences.
    pub fn snapshots(&self) -> Vec<usize> {
        match &self.snapshots {
            None => (self.split..=self.tokens.len()).collect(),
            Some(lengths) => lengths.clone(),
        }
    }

    /// True if module outputs and states of a phase were recorded.
    pub fn tapped(&self, phase: Phase) -> bool {
        self.taps.iter().any(|name| name == phase.name())
    }

    /// Returns the mask of the first `count` tokens, fed as one chunk.
    pub fn mask(&self, count: usize) -> ChunkMask<'_> {
        let inside = self.documents.partition_point(|start| *start < count);
        let spans = self.spans.partition_point(|(start, _)| *start < count);
        ChunkMask {
            prefix: self.prefix,
            documents: &self.documents[..inside],
            spans: &self.spans[..spans],
        }
    }

    /// Returns the position at which the document of the decode phase begins.
    pub fn last_document(&self) -> usize {
        self.documents.last().copied().unwrap_or(0)
    }

    /// Returns an error for a prefix and for documents that no run of the prompt has.
    fn check_mask(&self) -> Result<(), PromptError> {
        let split = self.split;
        let documents = &self.documents;
        let ascends = documents.windows(2).all(|pair| pair[0] < pair[1]);
        // Decode continues the last document, behind the prefix.
        let inside = documents.first().is_none_or(|first| *first == 0)
            && documents.last().is_none_or(|last| *last < split);
        if !ascends || !inside || self.prefix > split || (self.prefix > 0 && !documents.is_empty())
        {
            let name = shown(&self.name);
            let prefix = self.prefix;
            let documents = documents.clone();
            return Err(PromptError::Mask { name, prefix, documents, split });
        }
        Ok(())
    }

    /// Returns an error for rows in the place of embeddings that no run of the prompt has.
    fn check_given(&self) -> Result<(), PromptError> {
        let tokens = self.tokens.len();
        let name = || shown(&self.name);
        if !ascends(&self.given) || self.given.last().is_some_and(|last| *last >= tokens) {
            let given = self.given.clone();
            return Err(PromptError::Given { name: name(), given, tokens });
        }
        if self.positions.len() > MAX_AXES
            || self.positions.iter().any(|axis| axis.len() != tokens)
            || self.positions.iter().flatten().any(|at| *at as usize > 2 * LONGEST_PROMPT)
        {
            let lengths = self.positions.iter().map(Vec::len).collect();
            return Err(PromptError::Positions { name: name(), lengths, tokens });
        }
        let ranges_ascend = self.spans.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        let inside = self.spans.iter().all(|(start, end)| start < end && *end <= self.split);
        // The windows of an image lie inside of it.
        let in_prefix = self.prefix == 0 || self.spans.iter().all(|(_, end)| *end <= self.prefix);
        let alone = self.spans.is_empty() || (in_prefix && self.documents.is_empty());
        if !ranges_ascend || !inside || !alone {
            let spans = format!("{:?}", self.spans);
            return Err(PromptError::Spans { name: name(), spans, split: self.split });
        }
        if self.beside > MAX_BESIDE || (self.beside > 0 && self.given.is_empty()) {
            return Err(PromptError::Beside { name: name(), found: self.beside });
        }
        if self.has_rows() && self.documents.len() > 1 {
            return Err(PromptError::Packed { name: name() });
        }
        Ok(())
    }

    /// Returns an error for rows and snapshots that no run of the prompt has.
    fn check_rows(&self) -> Result<(), PromptError> {
        let tokens = self.tokens.len();
        if let Some(rows) = &self.rows
            && (rows.is_empty() || !ascends(rows) || rows.last().is_some_and(|row| *row >= tokens))
        {
            let name = shown(&self.name);
            return Err(PromptError::Rows { name, rows: rows.clone(), tokens });
        }
        if let Some(lengths) = &self.snapshots
            && (!ascends(lengths)
                || !lengths.iter().all(|length| (self.split..=tokens).contains(length)))
        {
            let lengths = lengths.clone();
            let split = self.split;
            let name = shown(&self.name);
            return Err(PromptError::Snapshots { name, lengths, split, tokens });
        }
        Ok(())
    }
}

/// Fault of a prompt. Names are escaped and shortened, ready to print.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum PromptError {
    #[error("prompt name `{name}` is empty, has a `/` or is used twice")]
    Name { name: String },
    #[error("prompt `{name}` has {found} tokens; expected 1 to {LONGEST_PROMPT}")]
    Length { name: String, found: usize },
    #[error("`split` of prompt `{name}` is {found}; expected 1 to {last}")]
    Split { name: String, found: usize, last: usize },
    #[error(
        "`rows` of prompt `{name}` is [{}]; expected ascending positions below {tokens}",
        listing::items(rows)
    )]
    Rows { name: String, rows: Vec<usize>, tokens: usize },
    #[error(
        "`snapshots` of prompt `{name}` is [{}]; expected ascending lengths from {split} to {tokens}",
        listing::items(lengths)
    )]
    Snapshots { name: String, lengths: Vec<usize>, split: usize, tokens: usize },
    #[error(
        "prompt `{name}` has a `prefix` of {prefix} and `documents` at [{}]; expected one of them: a prefix \
         of at most {split} (its `split`), or ascending starts from 0 and below {split}",
        listing::items(documents)
    )]
    Mask { name: String, prefix: usize, documents: Vec<usize>, split: usize },
    #[error(
        "`given` of prompt `{name}` is [{}]; expected ascending positions below {tokens}",
        listing::items(given)
    )]
    Given { name: String, given: Vec<usize>, tokens: usize },
    #[error(
        "`positions` of prompt `{name}` has axes of [{}] positions; expected at most {MAX_AXES} axes, each with {tokens} \
         positions of at most {}",
        listing::items(lengths),
        2 * LONGEST_PROMPT
    )]
    Positions { name: String, lengths: Vec<usize>, tokens: usize },
    #[error(
        "`spans` of prompt `{name}` is {spans}; expected ascending ranges that end at {split} (its `split`) at most, in a \
         prompt without `documents`, inside its `prefix` if it has one"
    )]
    Spans { name: String, spans: String, split: usize },
    #[error(
        "`beside` of prompt `{name}` is {found}; expected at most {MAX_BESIDE} layers, in a prompt with `given`"
    )]
    Beside { name: String, found: usize },
    #[error(
        "prompt `{name}` has several `documents` and `given` rows or `positions`; expected one of them"
    )]
    Packed { name: String },
    #[error("prompt `{name}` has token {token}; `vocab` is {vocab}")]
    Token { name: String, token: u32, vocab: usize },
}

/// True if each number is larger than the one before it.
fn ascends(list: &[usize]) -> bool {
    list.windows(2).all(|pair| pair[0] < pair[1])
}

/// Checks prompts against each other and a vocabulary.
pub fn check_prompts(prompts: &[Prompt], vocab: usize) -> Result<(), PromptError> {
    let mut names = std::collections::BTreeSet::new();
    for prompt in prompts {
        let name = &prompt.name;
        let shown_name = shown(name);
        let count = prompt.tokens.len();
        if name.is_empty() || name.contains('/') || !names.insert(name) {
            return Err(PromptError::Name { name: shown_name });
        }
        if count == 0 || count > LONGEST_PROMPT {
            return Err(PromptError::Length { name: shown_name, found: count });
        }
        // Nothing is left for decode where all tokens see each other.
        let last = if count == 1 || prompt.prefix == count { count } else { count - 1 };
        if prompt.split == 0 || prompt.split > last {
            return Err(PromptError::Split { name: shown_name, found: prompt.split, last });
        }
        prompt.check_rows()?;
        prompt.check_mask()?;
        prompt.check_given()?;
        if let Some(&token) = prompt.tokens.iter().find(|t| **t as usize >= vocab) {
            return Err(PromptError::Token { name: shown_name, token, vocab });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(more: &serde_json::Value) -> String {
        let mut prompt = json!({ "name": "a", "tokens": [1, 2, 3, 4, 5], "split": 3 });
        let entries = more.as_object().unwrap().clone();
        prompt.as_object_mut().unwrap().extend(entries);
        let prompt: Prompt = serde_json::from_value(prompt).unwrap();
        check_prompts(&[prompt], 9).map_or_else(|why| why.to_string(), |()| String::new())
    }

    #[test]
    fn rows_positions_and_spans_of_a_prompt_are_checked() {
        let positions = json!([[0, 1, 1, 1, 2], [0, 1, 2, 1, 3]]);
        let good = json!({ "given": [1, 2], "positions": positions, "spans": [[0, 2], [2, 3]], "beside": 2 });
        assert_eq!(checked(&good), "");
        for (more, want) in [
            (
                json!({ "given": [1, 1] }),
                "`given` of prompt `a` is [1, 1]; expected ascending positions below 5",
            ),
            (json!({ "given": [5] }), "expected ascending positions below 5"),
            (
                json!({ "positions": [[0, 1]] }),
                "has axes of [2] positions; expected at most 8 axes, each with 5",
            ),
            (json!({ "positions": vec![[0; 5]; 9] }), "expected at most 8 axes"),
            (json!({ "positions": [[0, 1, 2, 3, 4_000_000]] }), "positions of at most 2097152"),
            (
                json!({ "spans": [[1, 1]] }),
                "`spans` of prompt `a` is [(1, 1)]; expected ascending ranges that end at 3",
            ),
            (json!({ "spans": [[0, 2], [1, 3]] }), "expected ascending ranges"),
            (json!({ "spans": [[2, 4]] }), "that end at 3 (its `split`) at most"),
            (
                json!({ "spans": [[0, 2]], "prefix": 1 }),
                "in a prompt without `documents`, inside its `prefix` if it has one",
            ),
            (
                json!({ "beside": 1 }),
                "`beside` of prompt `a` is 1; expected at most 1024 layers, in a prompt with `given`",
            ),
            (json!({ "given": [1], "beside": 5000 }), "expected at most 1024 layers"),
            (json!({ "given": [1], "documents": [0, 2] }), "several `documents` and `given` rows"),
        ] {
            let said = checked(&more);
            assert!(said.contains(want), "{more}: {said}");
        }
    }
}
