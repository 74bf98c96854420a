//! Scores choices by log-likelihood. Choices with the same prompt are scored on forks of one slot, and short prompts
//! share a step.

use std::collections::BTreeMap;

use engine::sample::greedy;
use engine::{Chunk, NoProbe, OutputRows, Session, SlotId};
use registry::graph::{Graph, StateKind};

/// Choice with its prompt, in tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenizedChoice {
    pub context: Vec<u32>,
    pub tokens: Vec<u32>,
    /// Number of prompt tokens that did not fit.
    pub dropped: usize,
}

/// Score of a choice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ChoiceScore {
    /// Sum of its tokens' log-probabilities.
    pub logprob: f64,
    /// True if every token is the most likely one.
    pub greedy: bool,
}

/// Prompt, and the choices that continue it.
struct PromptGroup<'a> {
    context: &'a [u32],
    /// Indices in the list of choices.
    choices: Vec<usize>,
}

/// Maximum number of logits of one step.
const LOGITS: usize = 1 << 24;
/// Tokens of the prompts that share a step.
const PROMPT_TOKENS: usize = 512;
/// Bytes of the states of fixed size of all slots that are open together.
const STATE_BYTES: usize = 1 << 30;
/// Maximum number of slots that are open together.
const SLOTS: usize = 128;

/// Scores all choices.
pub(super) fn score(
    session: &mut dyn Session,
    choices: &[&TokenizedChoice],
) -> Result<Vec<ChoiceScore>, engine::Error> {
    let mut groups: Vec<PromptGroup<'_>> = Vec::new();
    let mut places = BTreeMap::new();
    for (at, choice) in choices.iter().enumerate() {
        let context = choice.context.as_slice();
        let place = *places.entry(context).or_insert(groups.len());
        if place == groups.len() {
            groups.push(PromptGroup { context, choices: Vec::new() });
        }
        groups[place].choices.push(at);
    }
    let mut scored = vec![ChoiceScore { logprob: 0.0, greedy: true }; choices.len()];
    let limit = most_slots(&session.model().graph);
    let mut left = groups.as_slice();
    while !left.is_empty() {
        let mut tokens = 0;
        let mut slots = 0;
        let fitting = left.iter().take_while(|group| {
            tokens += group.context.len();
            slots += 1 + group.choices.len();
            tokens <= PROMPT_TOKENS && slots <= limit
        });
        let (together, remaining) = left.split_at(fitting.count().max(1));
        score_together(session, together, choices, &mut scored)?;
        left = remaining;
    }
    Ok(scored)
}

/// Returns the number of slots whose states of fixed size fit into memory.
fn most_slots(graph: &Graph) -> usize {
    let fixed =
        graph.states.iter().filter(|s| matches!(s.kind, StateKind::Conv | StateKind::Recurrent));
    let numbers: usize =
        fixed.flat_map(|s| &s.parts).map(|p| p.shape.iter().product::<usize>()).sum();
    (STATE_BYTES / (numbers * size_of::<f32>()).max(1)).min(SLOTS)
}

/// Scores the choices of some prompts.
fn score_together(
    session: &mut dyn Session,
    groups: &[PromptGroup<'_>],
    choices: &[&TokenizedChoice],
    scored: &mut [ChoiceScore],
) -> Result<(), engine::Error> {
    let slots: Vec<SlotId> = groups.iter().map(|_| session.open_slot()).collect();
    let chunks: Vec<Chunk<'_>> = groups
        .iter()
        .zip(&slots)
        .map(|(group, &slot)| Chunk { slot, tokens: group.context, rows: OutputRows::Last })
        .collect();
    let last = session.step(&chunks, &mut NoProbe)?;
    for (group, logits) in groups.iter().zip(&last) {
        for &at in &group.choices {
            if let Some(&token) = choices[at].tokens.first() {
                add(&mut scored[at], logits.row(0), token);
            }
        }
    }
    let vocab = last.first().map_or(1, |logits| logits.vocab.max(1));
    let rows = (LOGITS / vocab).max(1);
    let longer: Vec<(usize, SlotId)> = groups
        .iter()
        .zip(&slots)
        .flat_map(|(group, &slot): (&PromptGroup<'_>, &SlotId)| {
            group.choices.iter().map(|&at| (at, slot)).collect::<Vec<_>>()
        })
        .filter(|&(at, _)| !fed(choices[at]).is_empty())
        .collect();
    let mut from = 0;
    while from < longer.len() {
        // As many choices as fit into one step, and at least one.
        let mut sum = 0;
        let count = longer[from..]
            .iter()
            .take_while(|&&(at, _)| {
                sum += fed(choices[at]).len();
                sum <= rows
            })
            .count()
            .max(1);
        let part = &longer[from..from + count];
        let forks =
            part.iter().map(|&(_, slot)| session.fork(slot)).collect::<Result<Vec<_>, _>>()?;
        let longest = part.iter().map(|&(at, _)| fed(choices[at]).len()).max().unwrap_or(0);
        let step = if count == 1 { rows } else { longest.max(1) };
        for begin in (0..longest).step_by(step) {
            let chunks: Vec<Chunk<'_>> = part
                .iter()
                .zip(&forks)
                .map(|(&(at, _), &slot)| {
                    let all = fed(choices[at]);
                    let tokens = &all[begin.min(all.len())..(begin + step).min(all.len())];
                    Chunk { slot, tokens, rows: OutputRows::All }
                })
                .collect();
            let logits = session.step(&chunks, &mut NoProbe)?;
            for (&(at, _), logits) in part.iter().zip(&logits) {
                for row in 0..logits.rows {
                    add(&mut scored[at], logits.row(row), choices[at].tokens[begin + row + 1]);
                }
            }
        }
        for fork in forks {
            session.release(fork)?;
        }
        from += count;
    }
    for slot in slots {
        session.release(slot)?;
    }
    Ok(())
}

/// Returns the tokens of a choice that are fed: all but the last.
fn fed(choice: &TokenizedChoice) -> &[u32] {
    choice.tokens.split_last().map_or(&[][..], |(_, fed)| fed)
}

/// Adds one token.
fn add(likely: &mut ChoiceScore, row: &[f32], token: u32) {
    likely.logprob += logprob(row, token);
    likely.greedy &= greedy(row) == token;
}

/// Returns the log-probability of a token.
fn logprob(row: &[f32], token: u32) -> f64 {
    let Some(&logit) = row.get(token as usize) else { return f64::NEG_INFINITY };
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&x| f64::from(x - largest).exp()).sum();
    f64::from(logit) - f64::from(largest) - sum.ln()
}
