//! Constrained output: the tokens that a schema, a grammar or forced calls allow at each step.
//!
//! A [`ConstraintCompiler`] holds the bytes of a model's vocabulary. It turns an [`OutputRule`] into an
//! [`OutputConstraint`], which masks a row of logits before a token is chosen. The grammars run in the crate
//! `llguidance`. Rules come from clients, so their size, the time to compile them and the work of each step have
//! limits, and a failure of the crate is an error.
//!
//! The limits are in [decision 80](../../docs/decisions/0080-constraints-by-llguidance.md).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use llguidance::api::{GrammarWithLexer, ParserLimits, StopReason, TopLevelGrammar};
use llguidance::toktrie::{
    ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie,
};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;
use tokenizer::{TokenBytes, catch_panic};

use crate::format::Format;

mod alternatives;
mod calls;
mod error;
mod forms;
mod keywords;
mod lark;
mod marks;
mod numbers;
mod references;
mod schema;

pub use calls::{CallableTool, ForcedCalls};
pub use error::ConstraintError;
use lark::{LarkText, SpecialToken};
pub use schema::JsonLayout;

/// Longest rule, in bytes of its text.
const MAX_RULE: usize = 256 << 10;
/// Longest regular expression. Its derivatives recurse over its length.
const MAX_REGEX: usize = 8 << 10;
/// Longest time to compile a rule.
const COMPILE_TIME: Duration = Duration::from_secs(10);
/// Most rules that are compiled at a time.
const COMPILING: usize = 4;
/// Longest time that the steps of one output may take: so much in all, and so much for each token. They hold up the
/// other outputs of a batch. A usual step takes less than a millisecond.
const STEPS_TIME: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(10));
/// Stack of the thread that compiles a rule. Schemas nest, and the crate recurses over them.
const STACK: usize = 128 << 20;

/// Form that an output has to have.
#[derive(Debug, Clone)]
pub enum OutputRule {
    /// JSON that fits a schema.
    Schema(Value, JsonLayout),
    /// Any JSON object.
    JsonObject(JsonLayout),
    /// Text that a regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Grammar in the variant of Lark that llguidance reads.
    Grammar(String),
    /// Calls of tools.
    Calls(ForcedCalls),
}

/// Reasoning before the constrained part of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReasoningPrefix {
    /// None.
    #[default]
    Absent,
    /// The output may begin with reasoning between marks.
    Optional,
    /// The prompt ended inside the reasoning.
    Open,
}

/// Compiles rules for one vocabulary.
pub struct ConstraintCompiler {
    factory: Arc<ParserFactory>,
    specials: Vec<SpecialToken>,
    compiling: Arc<AtomicUsize>,
}

impl std::fmt::Debug for ConstraintCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConstraintCompiler")
            .field("specials", &self.specials.len())
            .finish_non_exhaustive()
    }
}

/// Limits of the parser of llguidance. A step that reaches one fails.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2_000,
        initial_lexer_fuel: 1_000_000,
        // About 15 ms, at 14,000 a millisecond (documentation of llguidance 1.9).
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        // 1 to 2 kB each.
        max_lexer_states: 20_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

impl ConstraintCompiler {
    /// Creates a compiler for the tokens of a model with so many rows of logits. Tokens that end a text are no part
    /// of one.
    pub fn new(
        vocabulary: &[TokenBytes],
        rows: usize,
        ends: &[u32],
    ) -> Result<Self, ConstraintError> {
        let count = u32::try_from(rows)
            .map_err(|_| ConstraintError::Vocabulary { why: format!("{rows} tokens") })?;
        let mut words = Vec::with_capacity(rows);
        let mut specials = Vec::new();
        for id in 0..count {
            let Some(token) = vocabulary.get(id as usize) else {
                words.push(Vec::new());
                continue;
            };
            if !token.special && !ends.contains(&id) {
                words.push(token.bytes.clone());
                continue;
            }
            if let Ok(text) = String::from_utf8(token.bytes.clone())
                && !text.is_empty()
            {
                specials.push(SpecialToken { text, id, ends: ends.contains(&id) });
            }
            // Text never matches the marker, which is no byte of UTF-8.
            let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
            word.extend_from_slice(&token.bytes);
            words.push(word);
        }
        let created = catch_panic(|| {
            let info = TokRxInfo::new(count, INVALID_TOKEN);
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)));
            let slices = llguidance::earley::SlicedBiasComputer::general_slices();
            ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
        });
        let mut factory = match created {
            Ok(Ok(factory)) => factory,
            Ok(Err(why)) => return Err(ConstraintError::Vocabulary { why: why.to_string() }),
            Err(why) => return Err(ConstraintError::Vocabulary { why: why.to_string() }),
        };
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Self { factory: Arc::new(factory), specials, compiling: Arc::default() })
    }

    /// Returns the rule of calls of these tools, in a format or in JSON where the format cannot express one.
    pub fn calls(
        &self,
        format: Option<&'static Format>,
        tools: &[CallableTool],
        several: bool,
    ) -> Result<ForcedCalls, ConstraintError> {
        ForcedCalls::new(format, tools, several, &self.specials)
    }

    /// Compiles a rule. The marks of reasoning are those of a format.
    pub fn compile(
        &self,
        rule: &OutputRule,
        reasoning: ReasoningPrefix,
        format: Option<&Format>,
    ) -> Result<OutputConstraint, ConstraintError> {
        let grammar = self.grammar(rule, reasoning, format)?;
        let compiling = Arc::clone(&self.compiling);
        if compiling.fetch_add(1, Ordering::Relaxed) >= COMPILING {
            compiling.fetch_sub(1, Ordering::Relaxed);
            return Err(ConstraintError::Busy);
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let factory = Arc::clone(&self.factory);
        let thread = thread::Builder::new().name("grammar".to_owned()).stack_size(STACK);
        let spawned = thread.spawn(move || {
            let result = catch_panic(|| OutputConstraint::begin(&factory, grammar));
            compiling.fetch_sub(1, Ordering::Relaxed);
            let result = result
                .unwrap_or_else(|why| Err(ConstraintError::Rejected { why: why.to_string() }));
            sender.send(result).ok();
        });
        if let Err(why) = spawned {
            self.compiling.fetch_sub(1, Ordering::Relaxed);
            return Err(ConstraintError::Rejected { why: why.to_string() });
        }
        let seconds = COMPILE_TIME.as_secs();
        receiver.recv_timeout(COMPILE_TIME).map_err(|_| ConstraintError::Slow { seconds })?
    }

    /// Returns the grammars of a rule; the first one begins.
    fn grammar(
        &self,
        rule: &OutputRule,
        reasoning: ReasoningPrefix,
        format: Option<&Format>,
    ) -> Result<TopLevelGrammar, ConstraintError> {
        let body = match rule {
            OutputRule::Schema(schema, layout) => {
                GrammarWithLexer::from_json_schema(schema::checked(schema, *layout)?)
            }
            OutputRule::JsonObject(layout) => {
                let schema = serde_json::json!({ "type": "object" });
                GrammarWithLexer::from_json_schema(schema::checked(&schema, *layout)?)
            }
            OutputRule::Regex(regex) => {
                check_size("the regular expression", regex.len(), MAX_REGEX)?;
                GrammarWithLexer::from_regex(regex)
            }
            OutputRule::Choice(texts) => {
                let bytes = texts.iter().map(|text| text.len() + 4).sum();
                check_size("the list of choices", bytes, MAX_RULE)?;
                if texts.is_empty() || texts.iter().any(String::is_empty) {
                    return Err(ConstraintError::Choices);
                }
                let texts = texts.iter().map(|text| lark::quoted(text)).collect::<Vec<_>>();
                GrammarWithLexer::from_lark(format!("start: CHOICE\nCHOICE: {}", texts.join(" | ")))
            }
            OutputRule::Grammar(text) => {
                check_size("the grammar", text.len(), MAX_RULE)?;
                GrammarWithLexer::from_lark(text.clone())
            }
            OutputRule::Calls(calls) => {
                check_size("the grammar of the tools", calls.grammar.len(), 4 * MAX_RULE)?;
                GrammarWithLexer::from_lark(calls.grammar.clone())
            }
        };
        let mut lark = LarkText::new(&self.specials);
        let marks = format.and_then(Format::reasoning);
        let thought = match (reasoning, marks) {
            (ReasoningPrefix::Absent, _) | (_, None) => String::new(),
            (ReasoningPrefix::Open, Some((_, close))) => {
                format!("{} {}", lark.until(close), lark.space())
            }
            (ReasoningPrefix::Optional, Some((open, close))) => {
                let open = lark.literal(open);
                let thought = lark.until(close);
                format!("({open} {thought} {})?", lark.space())
            }
        };
        // Marks that are no text may stand before it.
        let drops = format.map(Format::dropped).unwrap_or_default().iter();
        let drops = drops.filter(|mark| !lark.ends(mark)).map(|mark| lark.literal(mark));
        let drops = drops.collect::<Vec<_>>().join(" | ");
        let drops = if drops.is_empty() { drops } else { format!("({drops}){{0,2}}") };
        if thought.is_empty() && drops.is_empty() {
            return Ok(TopLevelGrammar::from_grammar(body));
        }
        let start = format!("{thought} {drops} @body");
        let first = GrammarWithLexer::from_lark(lark.finish(&start));
        let body = GrammarWithLexer { name: Some("body".to_owned()), ..body };
        Ok(TopLevelGrammar { grammars: vec![first, body], max_tokens: None })
    }
}

/// Returns an error if a rule has more than `limit` bytes.
fn check_size(what: &'static str, bytes: usize, limit: usize) -> Result<(), ConstraintError> {
    if bytes > limit {
        return Err(ConstraintError::Size { what, found: bytes, most: limit });
    }
    Ok(())
}

/// Progress of one output under a rule.
pub struct OutputConstraint {
    matcher: Matcher,
    /// Mask of the next step, once it is known.
    mask: Option<SimpleVob>,
    /// Tokens so far, and the time that they took.
    tokens: u32,
    spent: Duration,
}

impl std::fmt::Debug for OutputConstraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutputConstraint").finish_non_exhaustive()
    }
}

impl Clone for OutputConstraint {
    /// Copies the progress with its caches, so that no output changes the work of another one.
    fn clone(&self) -> Self {
        Self { matcher: self.matcher.deep_clone(), mask: self.mask.clone(), ..*self }
    }
}

impl OutputConstraint {
    fn begin(factory: &ParserFactory, grammar: TopLevelGrammar) -> Result<Self, ConstraintError> {
        let parser =
            factory.create_parser(grammar).map_err(|why| error::refused(&format!("{why:#}")))?;
        let mut constraint = Self {
            matcher: Matcher::new(Ok(parser)),
            mask: None,
            tokens: 0,
            spent: Duration::ZERO,
        };
        if let Some(why) = constraint.matcher.get_error() {
            return Err(error::refused(&why));
        }
        constraint.advance()?;
        Ok(constraint)
    }

    /// Computes the mask of the next step.
    fn advance(&mut self) -> Result<(), ConstraintError> {
        self.mask = None;
        if self.matcher.is_stopped() {
            return if self.is_accepted_end() { Ok(()) } else { Err(self.fault(None)) };
        }
        let accepting = self.accepts_end();
        match self.matcher.compute_mask() {
            Ok(mask) => self.mask = Some(mask),
            Err(_) if accepting && self.matcher.stop_reason() == StopReason::NoExtensionBias => {}
            Err(why) => return Err(self.fault(Some(&why.to_string()))),
        }
        Ok(())
    }

    fn is_accepted_end(&self) -> bool {
        matches!(self.matcher.stop_reason(), StopReason::NoExtension | StopReason::EndOfSentence)
    }

    fn fault(&self, why: Option<&str>) -> ConstraintError {
        match self.matcher.stop_reason() {
            StopReason::LexerTooComplex | StopReason::ParserTooComplex => ConstraintError::Complex,
            StopReason::NoExtensionBias => ConstraintError::NoToken,
            _ => {
                let known = self.matcher.get_error();
                let why = why.or(known.as_deref()).unwrap_or("the grammar has no continuation");
                if why.contains("NoExtensionBias") {
                    return ConstraintError::NoToken;
                }
                error::refused(why)
            }
        }
    }

    /// True if the output may end here.
    pub fn accepts_end(&mut self) -> bool {
        self.is_accepted_end() || self.matcher.is_accepting().unwrap_or(false)
    }

    /// True if no token can follow.
    pub fn is_complete(&self) -> bool {
        self.mask.is_none()
    }

    /// True if a token may come next.
    pub fn allows(&self, id: u32) -> bool {
        self.mask.as_ref().is_some_and(|mask| (id as usize) < mask.len() && mask.is_allowed(id))
    }

    /// Sets the logits of tokens that may not come next to minus infinity. Tokens of `ends` may come where the output
    /// may end.
    pub fn restrict(&mut self, logits: &mut [f32], ends: &[u32]) {
        let end = self.accepts_end();
        for (id, logit) in logits.iter_mut().enumerate() {
            let allowed = self.mask.as_ref().is_some_and(|mask| id < mask.len() && mask.get(id))
                || (end && ends.contains(&(id as u32)));
            if !allowed {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    /// Takes in the token that was chosen.
    pub fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        if !self.allows(id) {
            return Err(ConstraintError::NoToken);
        }
        let begun = Instant::now();
        if let Err(why) = self.matcher.consume_token(id) {
            return Err(self.fault(Some(&why.to_string())));
        }
        self.advance()?;
        self.tokens = self.tokens.saturating_add(1);
        self.spent += begun.elapsed();
        let (first, each) = STEPS_TIME;
        if self.mask.is_some() && self.spent > first + each * self.tokens {
            let milliseconds = self.spent.as_millis();
            return Err(ConstraintError::Costly { milliseconds, tokens: self.tokens });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
