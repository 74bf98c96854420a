//! What rounding is worth to an op by itself: how far its output moves when the reference's inputs move by a unit in
//! the last place. A norm of small numbers or a long product of decays makes more of it than a sum, and no bound for all
//! ops allows for that; so it is measured, where an op is beyond its bound and by little.

use std::borrow::Cow;

use engine::Session;
use registry::dtype::Dtype;

use super::Agreement;
use crate::compare::Comparison;
use crate::dump::Phase;
use crate::gate::{Bound, Gate, Mode, Subject, Verdict};
use crate::metrics::{TensorError, tensor_error};
use crate::route::{RouterRow, Steer};
use crate::run::{Feed, Shake, Trace, trace};
use crate::tolerance;

/// How often inputs are moved.
const SHAKES: u64 = 2;

/// Gives ops that failed on the reference's own inputs as much as those inputs' rounding is worth to them. `clean` is the run
/// that the gates are of. Tells how many pass for it.
pub(super) fn condition(
    session: &mut dyn Session,
    comparison: &Comparison<'_>,
    phase: Phase,
    clean: &Trace,
    gates: &mut [Gate],
    agreement: &Agreement<'_>,
) -> Result<usize, engine::Error> {
    let close = |gate: &&mut Gate| {
        let most = tolerance::CONDITION_MOST;
        gate.fails()
            && gate.finding.is_none()
            && gate.bounds.iter().all(|bound| bound.value <= most * bound.limit)
    };
    let mut failing: Vec<&mut Gate> = gates.iter_mut().filter(close).collect();
    if failing.is_empty() {
        return Ok(0);
    }
    let mut moved = Vec::new();
    for seed in 0..SHAKES {
        let (dtype, taps) = (comparison.dtype, &comparison.own.taps);
        let mut row = RouterRow::new(Mode::Local);
        let mut steer = Steer::new(agreement.routers, dtype, String::new(), &mut row);
        let feed = Feed::Shaken(taps, Shake { dtype, units: 1, seed });
        moved.push(trace(session, comparison.prompt, phase, taps, feed, &mut steer)?);
    }
    let mut passed = 0;
    for gate in &mut failing {
        let apart = moved.iter().filter_map(|moved| apart(&gate.subject, clean, moved));
        for error in apart {
            for (measure, worth) in error.measures() {
                let worth = tolerance::condition(comparison.dtype, worth);
                let bounds = gate.bounds.iter_mut().filter(|bound| bound.measure == measure);
                bounds.for_each(|bound| bound.limit = bound.limit.max(worth));
            }
        }
        if gate.bounds.iter().all(Bound::holds) {
            (gate.verdict, gate.step) = (Verdict::Pass, None);
            passed += 1;
        }
    }
    Ok(passed)
}

/// What a report says of it.
pub(super) fn said(dtype: Dtype, passed: usize) -> Option<String> {
    let (gates, are) = if passed == 1 { ("gate", "is") } else { ("gates", "are") };
    let most = tolerance::CONDITION_MOST;
    (passed > 0).then(|| {
        format!(
            "{dtype}: {passed} {gates} of ops on the reference's own inputs {are} beyond the usual bound, up to {most} times, \
             and within what a unit in the last place of those inputs is worth to the op"
        )
    })
}

/// How far two runs are apart in one thing.
pub(super) fn apart(subject: &Subject, clean: &Trace, moved: &Trace) -> Option<TensorError> {
    let (was, is, rows) = match subject {
        Subject::Logprobs => return None,
        Subject::Tap { name } => {
            let (was, is) = (clean.taps.get(name)?, moved.taps.get(name)?);
            let width: usize = was.row.iter().product();
            (Cow::from(&was.data), Cow::from(&is.data), was.data.len() / width.max(1))
        }
        Subject::State { layer, part, .. } => {
            let all = |trace: &Trace| -> Cow<'_, [f32]> {
                let values = trace.states.iter().flatten();
                let these = values.filter(|value| value.layer == *layer && value.part == *part);
                these.flat_map(|value| value.data.iter().copied()).collect()
            };
            (all(clean), all(moved), clean.states.len())
        }
    };
    let fits = was.len() == is.len() && rows > 0 && was.len() % rows == 0;
    fits.then(|| tensor_error(&is, &was, rows))
}
