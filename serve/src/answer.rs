//! Parts of answers: log-probabilities in the forms of OpenAI and of vLLM.
//!
//! They are written as f64, so that whole answers and chunks have the same digits, which are exact.

use std::collections::BTreeMap;

use serde::ser::{SerializeMap as _, SerializeSeq as _};
use serde::{Serialize, Serializer};

use crate::logprobs::TokenScore;
use crate::sequence::{CancelFlag, EndReason};
use crate::text_stream::TextStream;
use crate::tokens::TokenTexts;

/// Log-probabilities of consecutive tokens, in the form of `/v1/completions`.
#[derive(Debug, Default, Serialize)]
pub(crate) struct LogprobLists {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f64>>,
    top_logprobs: Vec<Option<BTreeMap<String, f64>>>,
    text_offset: Vec<usize>,
}

impl LogprobLists {
    /// Adds a token that begins after so many characters of the text; the first token of a text has no score.
    pub(crate) fn push(
        &mut self,
        id: u32,
        score: Option<&TokenScore>,
        count: usize,
        names: &TokenNames<'_>,
        offset: usize,
    ) {
        let name = names.name(id);
        self.text_offset.push(offset);
        self.token_logprobs.push(score.map(|score| f64::from(score.logprob)));
        self.top_logprobs.push(score.map(|score| {
            let mut top = BTreeMap::from([(name.clone(), f64::from(score.logprob))]);
            for (other, logprob) in score.top.iter().take(count).filter(|(other, _)| *other != id) {
                let mut name = names.name(*other);
                if top.contains_key(&name) {
                    // Several tokens may have the same text, and every one has an entry.
                    name = token_id(*other);
                }
                top.entry(name).or_insert(f64::from(*logprob));
            }
            top
        }));
        self.tokens.push(name);
    }

    /// Takes the lists out; later tokens continue them.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::take(self)
    }
}

fn token_id(id: u32) -> String {
    format!("token_id:{id}")
}

/// Names of tokens in answers.
#[derive(Clone, Copy)]
pub(crate) struct TokenNames<'a> {
    pub(crate) texts: &'a TokenTexts,
    /// True for `token_id:17` in place of texts.
    pub(crate) ids: bool,
}

impl TokenNames<'_> {
    fn name(&self, id: u32) -> String {
        if self.ids { token_id(id) } else { self.texts.name(id) }
    }
}

/// Scores of a prompt in the form of vLLM: nothing for the first token, then maps by token id.
pub(crate) struct PromptRows<'a> {
    pub(crate) scores: &'a [TokenScore],
    pub(crate) count: usize,
    pub(crate) texts: &'a TokenTexts,
}

impl Serialize for PromptRows<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut list = to.serialize_seq(Some(self.scores.len() + 1))?;
        list.serialize_element(&None::<()>)?;
        for score in self.scores {
            list.serialize_element(&PromptRow { score, count: self.count, texts: self.texts })?;
        }
        list.end()
    }
}

struct PromptRow<'a> {
    score: &'a TokenScore,
    count: usize,
    texts: &'a TokenTexts,
}

#[derive(Serialize)]
struct PromptRowEntry<'a> {
    logprob: f64,
    rank: usize,
    decoded_token: &'a str,
}

impl PromptRow<'_> {
    /// Returns the entry of a token.
    fn entry(&self, id: u32, logprob: f32, rank: usize) -> PromptRowEntry<'_> {
        PromptRowEntry { logprob: f64::from(logprob), rank, decoded_token: self.texts.text(id) }
    }
}

impl Serialize for PromptRow<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Self { score, count, .. } = self;
        let mut map = to.serialize_map(None)?;
        let shown = score.top.iter().take(*count);
        if !shown.clone().any(|(id, _)| *id == score.id) {
            map.serialize_entry(&score.id, &self.entry(score.id, score.logprob, score.rank))?;
        }
        for (n, (id, logprob)) in shown.enumerate() {
            map.serialize_entry(id, &self.entry(*id, *logprob, n + 1))?;
        }
        map.end()
    }
}

/// Progress of the text of one choice.
pub(crate) struct ChoiceText {
    stream: TextStream,
    cancel: CancelFlag,
    /// Text that is not taken yet.
    pub(crate) text: String,
    /// Number of tokens.
    pub(crate) count: usize,
    begin: usize,
    pub(crate) finish: Option<&'static str>,
}

impl ChoiceText {
    pub(crate) fn new(stream: TextStream, cancel: CancelFlag) -> Self {
        Self { stream, cancel, text: String::new(), count: 0, begin: 0, finish: None }
    }

    /// Adds a token; an end token has no text. A stop text ends the choice and cancels its sequence.
    pub(crate) fn push(&mut self, id: u32, is_end: bool) {
        self.count += 1;
        if is_end {
            self.begin = self.stream.chars();
            return;
        }
        let text = self.stream.push(id);
        self.begin = self.stream.begin();
        self.text.push_str(&text);
        if self.stream.is_stopped() {
            self.finish = Some(EndReason::Stop.name());
            self.cancel.set();
        }
    }

    /// Ends the choice for this reason, and cancels its sequence.
    pub(crate) fn stop(&mut self, reason: &'static str) {
        self.finish = Some(reason);
        self.cancel.set();
    }

    /// Counts the characters before the last token.
    pub(crate) fn begin(&self) -> usize {
        self.begin
    }

    /// Ends the choice.
    pub(crate) fn end(&mut self, reason: EndReason) {
        let text = self.stream.finish();
        self.text.push_str(&text);
        let reason = if self.stream.is_stopped() { EndReason::Stop } else { reason };
        self.finish = Some(reason.name());
    }
}
