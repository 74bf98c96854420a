//! The tokens that the reference chose, one after the other, fed to the engine.

use engine::Session;
use registry::dtype::Dtype;

use super::{Agreement, Error};
use crate::compare::Side;
use crate::dump::{Dump, Phase};
use crate::gate::{Mode, Verdict};
use crate::metrics::{log_softmax, top1};
use crate::report::{Flip, GreedyRow};
use crate::rule;
use crate::run::forced;

pub(super) fn greedy(
    session: &mut dyn Session,
    dump: &Dump,
    dtype: Dtype,
    sides: &[Side],
    bound: Option<f64>,
    agreement: &mut Agreement<'_>,
) -> Result<Vec<GreedyRow>, Error> {
    let mut rows = Vec::new();
    let Some(by_prompt) = dump.manifest.greedy.get(dtype.name()) else { return Ok(rows) };
    for (prompt, side) in dump.manifest.prompts.iter().zip(sides) {
        let spread = side.spread.as_ref().map(|spread| spread.logprobs.as_slice());
        // A bound that was given holds for each of two log-probabilities.
        let given = bound.filter(|_| dtype == Dtype::F32).map(|bound| 2.0 * bound);
        let noise = given.unwrap_or_else(|| rule::greedy(spread.unwrap_or_default()));
        let Some(chosen) = by_prompt.get(&prompt.name).filter(|c| !c.is_empty()) else { continue };
        let mut row = GreedyRow {
            prompt: prompt.name.clone(),
            tokens: chosen.len(),
            agree: 0,
            first_flip: None,
            verdict: Verdict::Pass,
        };
        let before = dump.choices(dtype, prompt, Phase::Prefill.name())?;
        let behind = dump.choices(dtype, prompt, "greedy")?;
        let mut steer = agreement.steer(Mode::Cumulative, format!("{} greedy", prompt.name));
        let logits = forced(session, &prompt.tokens, chosen, [&before, &behind], &mut steer)?;
        for (index, (logits, want)) in logits.iter().zip(chosen).enumerate() {
            let mut logprobs = vec![0.0; logits.len()];
            log_softmax(logits, &mut logprobs);
            let got = top1(&logprobs);
            if got == *want as usize {
                row.agree += 1;
                continue;
            }
            let at = |token: usize| logprobs.get(token).copied().map_or(f64::NAN, f64::from);
            let margin = at(got) - at(*want as usize);
            let least = logprobs.iter().copied().filter(|x| x.is_finite()).reduce(f32::min);
            if least.is_some_and(|least| noise >= at(got) - f64::from(least)) {
                // Any token would be within that.
                row.verdict =
                    if row.verdict == Verdict::Pass { Verdict::Skip } else { row.verdict };
            }
            let flip = Flip { index, margin, noise };
            let explained = margin <= noise;
            if !explained && row.verdict != Verdict::Fail {
                (row.first_flip, row.verdict) = (Some(flip), Verdict::Fail);
            }
            row.first_flip.get_or_insert(flip);
        }
        rows.push(row);
    }
    Ok(rows)
}
