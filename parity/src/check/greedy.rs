//! Feeds the reference's greedy tokens to the engine, one after the other.

use engine::{NoProbe, OutputRows, Session};
use registry::dtype::Dtype;

use super::{Agreement, Error};
use crate::compare::ReferenceResults;
use crate::dump::{Dump, Phase};
use crate::gate::{Mode, Verdict};
use crate::metrics::{log_softmax, top1};
use crate::report::{Flip, GreedyRow};
use crate::rule;
use crate::run::{feed_chunk, teacher_forced};

pub(super) fn greedy(
    session: &mut dyn Session,
    dump: &Dump,
    dtype: Dtype,
    sides: &[ReferenceResults],
    bound: Option<f64>,
    agreement: &mut Agreement<'_>,
) -> Result<Vec<GreedyRow>, Error> {
    let mut rows = Vec::new();
    let Some(by_prompt) = dump.manifest.greedy.get(dtype.name()) else { return Ok(rows) };
    for (prompt, side) in dump.manifest.prompts.iter().zip(sides) {
        let noise = noise(side, dtype, bound);
        let Some(chosen) = by_prompt.get(&prompt.name).filter(|c| !c.is_empty()) else { continue };
        let mut row = empty_row(&prompt.name, chosen.len());
        let before = dump.choices(dtype, prompt, Phase::Prefill.name())?;
        let behind = dump.choices(dtype, prompt, "greedy")?;
        let mut steer = agreement.steer(Mode::Cumulative, format!("{} greedy", prompt.name));
        let logits = teacher_forced(session, prompt, chosen, [&before, &behind], &mut steer)?;
        for (index, (logits, want)) in logits.iter().zip(chosen).enumerate() {
            let logprobs = normal(logits);
            let got = top1(&logprobs);
            if got == *want as usize {
                row.agree += 1;
                continue;
            }
            judge(&mut row, Flip { index, margin: below(&logprobs, *want), noise }, &logprobs);
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Compares tokens that the engine chose itself with the reference's, for an engine that cannot continue a
/// prompt. After the first difference, the two sequences are not comparable.
pub(super) fn generated(
    session: &mut dyn Session,
    dump: &Dump,
    dtype: Dtype,
    sides: &[ReferenceResults],
    bound: Option<f64>,
) -> Result<Vec<GreedyRow>, Error> {
    let mut rows = Vec::new();
    let Some(by_prompt) = dump.manifest.greedy.get(dtype.name()) else { return Ok(rows) };
    for (prompt, side) in dump.manifest.prompts.iter().zip(sides) {
        let Some(chosen) = by_prompt.get(&prompt.name).filter(|c| !c.is_empty()) else { continue };
        if !prompt.is_plain() {
            // An engine's own call takes tokens only.
            continue;
        }
        let Some(ours) = session.generate(&prompt.tokens, chosen.len())? else { return Ok(rows) };
        let mut row = empty_row(&prompt.name, chosen.len());
        row.agree = ours.iter().zip(chosen).take_while(|(ours, want)| ours == want).count();
        let index = row.agree;
        // Sequences end early at a token that the engine treats as an end token; that is no other choice.
        if let (Some(got), Some(want)) = (ours.get(index), chosen.get(index)) {
            let so_far = [prompt.tokens.as_slice(), &chosen[..index]].concat();
            let slot = session.open_slot();
            let scored = feed_chunk(session, slot, &so_far, OutputRows::Last, &mut NoProbe);
            session.release(slot)?;
            let logprobs = normal(&scored?.data);
            // By the engine's own values both have to be the most likely, up to rounding.
            let margin = below(&logprobs, *want).max(below(&logprobs, *got));
            let noise = noise(side, dtype, bound);
            judge(&mut row, Flip { index, margin, noise }, &logprobs);
        }
        rows.push(row);
    }
    Ok(rows)
}

fn empty_row(prompt: &str, tokens: usize) -> GreedyRow {
    let agree = 0;
    let first_flip = None;
    let verdict = Verdict::Pass;
    GreedyRow { prompt: prompt.to_owned(), tokens, agree, first_flip, verdict }
}

/// Returns the maximum margin of the engine's token over the reference's.
fn noise(side: &ReferenceResults, dtype: Dtype, bound: Option<f64>) -> f64 {
    let spread = side.spread.as_ref().map(|spread| spread.logprobs.as_slice());
    // A given bound applies to each of two log-probabilities.
    let given = bound.filter(|_| dtype == Dtype::F32).map(|bound| 2.0 * bound);
    given.unwrap_or_else(|| rule::greedy(spread.unwrap_or_default()))
}

fn normal(logits: &[f32]) -> Vec<f32> {
    let mut logprobs = vec![0.0; logits.len()];
    log_softmax(logits, &mut logprobs);
    logprobs
}

/// Returns the log-probability of the most likely token less that of this one.
fn below(logprobs: &[f32], token: u32) -> f64 {
    logprob_of(logprobs, top1(logprobs)) - logprob_of(logprobs, token as usize)
}

/// Returns the log-probability of a token; NaN for a token beyond the row.
fn logprob_of(logprobs: &[f32], token: usize) -> f64 {
    logprobs.get(token).copied().map_or(f64::NAN, f64::from)
}

/// Keeps the first flip that rounding does not explain, or else the first. A row in which even the least
/// likely token is within the noise is not judged.
fn judge(row: &mut GreedyRow, flip: Flip, logprobs: &[f32]) {
    let explained = flip.margin <= flip.noise;
    if !explained && row.verdict != Verdict::Fail {
        (row.first_flip, row.verdict) = (Some(flip), Verdict::Fail);
    }
    let finite = logprobs.iter().copied().filter(|x| x.is_finite());
    let range = finite.clone().fold(f32::MIN, f32::max) - finite.fold(f32::MAX, f32::min);
    if explained && row.verdict == Verdict::Pass && flip.noise >= f64::from(range) {
        row.verdict = Verdict::Skip;
    }
    row.first_flip.get_or_insert(flip);
}
