//! Scores choices by log-likelihood. Choices with the same prompt are scored on forks of one slot.

use engine::sample::greedy;
use engine::{Chunk, NoProbe, OutputRows, Session, SlotId};

use super::ScoringError;

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

/// Maximum number of logits of one step.
const LOGITS: usize = 1 << 24;

/// Scores all choices of an item.
pub(super) fn score(
    session: &mut dyn Session,
    id: &str,
    choices: &[TokenizedChoice],
) -> Result<Vec<ChoiceScore>, ScoringError> {
    let mut scored: Vec<Option<ChoiceScore>> = vec![None; choices.len()];
    for first in 0..choices.len() {
        if scored[first].is_some() {
            continue;
        }
        let context = &choices[first].context;
        let group: Vec<usize> =
            (first..choices.len()).filter(|&at| choices[at].context == *context).collect();
        let tokens: Vec<&[u32]> = group.iter().map(|&at| choices[at].tokens.as_slice()).collect();
        let likely = together(session, context, &tokens)
            .map_err(|why| ScoringError::Engine { id: id.to_owned(), why })?;
        for (at, likely) in group.into_iter().zip(likely) {
            scored[at] = Some(likely);
        }
    }
    Ok(scored
        .into_iter()
        .map(|likely| likely.expect("each choice is in the group of its prompt"))
        .collect())
}

/// Scores continuations of one prompt.
fn together(
    session: &mut dyn Session,
    context: &[u32],
    choices: &[&[u32]],
) -> Result<Vec<ChoiceScore>, engine::Error> {
    let slot = session.open_slot();
    let last =
        session.step(&[Chunk { slot, tokens: context, rows: OutputRows::Last }], &mut NoProbe)?;
    let mut likely: Vec<ChoiceScore> = choices
        .iter()
        .map(|tokens| {
            let mut likely = ChoiceScore { logprob: 0.0, greedy: true };
            if let (Some(logits), Some(&token)) = (last.first(), tokens.first()) {
                add(&mut likely, logits.row(0), token);
            }
            likely
        })
        .collect();
    let vocab = last.first().map_or(1, |logits| logits.vocab.max(1));
    let rows = (LOGITS / vocab).max(1);
    let longer: Vec<usize> = (0..choices.len()).filter(|&at| choices[at].len() > 1).collect();
    let mut from = 0;
    while from < longer.len() {
        // As many choices as fit into one step, and at least one.
        let mut sum = 0;
        let count = longer[from..]
            .iter()
            .take_while(|&&at| {
                sum += choices[at].len() - 1;
                sum <= rows
            })
            .count()
            .max(1);
        let part = &longer[from..from + count];
        let forks = part.iter().map(|_| session.fork(slot)).collect::<Result<Vec<SlotId>, _>>()?;
        let longest = part.iter().map(|&at| choices[at].len() - 1).max().unwrap_or(0);
        let step = if count == 1 { rows } else { longest.max(1) };
        for begin in (0..longest).step_by(step) {
            let fed = |at: usize| {
                let all = &choices[at][..choices[at].len() - 1];
                &all[begin.min(all.len())..(begin + step).min(all.len())]
            };
            let chunks: Vec<Chunk<'_>> = part
                .iter()
                .zip(&forks)
                .map(|(&at, &slot)| Chunk { slot, tokens: fed(at), rows: OutputRows::All })
                .collect();
            let logits = session.step(&chunks, &mut NoProbe)?;
            for (&at, logits) in part.iter().zip(&logits) {
                for row in 0..logits.rows {
                    add(&mut likely[at], logits.row(row), choices[at][begin + row + 1]);
                }
            }
        }
        for fork in forks {
            session.release(fork)?;
        }
        from += count;
    }
    session.release(slot)?;
    Ok(likely)
}

/// Adds one token.
fn add(likely: &mut ChoiceScore, row: &[f32], token: u32) {
    likely.logprob += logprob(row, token);
    likely.greedy &= greedy(row) == token;
}

/// Returns the log-probability of a token.
fn logprob(row: &[f32], token: u32) -> f64 {
    let Some(&own) = row.get(token as usize) else { return f64::NEG_INFINITY };
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&x| f64::from(x - most).exp()).sum();
    f64::from(own) - f64::from(most) - sum.ln()
}
