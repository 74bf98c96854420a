//! Finds where a step stops giving finite numbers.
//!
//! Such a step is an error ([decision 13](../../docs/decisions/0013-nan-is-an-error.md)).

use crate::exec::{PreparedGraph, StepInputs, WorkerPool};
use crate::states::Slot;
use crate::{Error, Probe};

/// Runs a step again that gave NaN or infinite numbers, and names the first value that has one.
/// States are left as before the step.
pub(crate) fn diagnose(
    program: &PreparedGraph,
    feed: &StepInputs<'_>,
    slots: &mut [Option<Slot>],
    pool: &WorkerPool,
) -> Error {
    let mut first = FiniteCheck { feed, fault: None };
    undo_step(feed, slots);
    let rerun = program.run(feed, slots, pool, &mut first);
    undo_step(feed, slots);
    match (first.fault.take(), rerun) {
        (Some(fault), _) => fault,
        (None, Err(error)) => error,
        // No tap has it: it is made behind the last of them.
        (None, Ok(_)) => first.error("logits", f32::NAN, 0),
    }
}

fn undo_step(feed: &StepInputs<'_>, slots: &mut [Option<Slot>]) {
    for chunk in &feed.chunks {
        if let Some(slot) = slots[chunk.slot].as_mut() {
            slot.undo();
        }
    }
}

/// Looks at every tap until one has a number that is not finite.
struct FiniteCheck<'a> {
    feed: &'a StepInputs<'a>,
    fault: Option<Error>,
}

impl FiniteCheck<'_> {
    /// Creates the error for a value; `row` counts over all chunks.
    fn error(&self, tap: &str, value: f32, row: usize) -> Error {
        let chunk = self.feed.chunks.iter().find(|chunk| chunk.rows.contains(&row));
        let position = chunk.map_or(0, |chunk| chunk.start + row - chunk.rows.start);
        Error::NotFinite {
            tap: tap.to_owned(),
            value,
            position,
            slot: chunk.map_or(0, |chunk| chunk.slot),
            dtype: self.feed.activation,
        }
    }
}

impl Probe for FiniteCheck<'_> {
    fn wants(&self, _tap: &str) -> bool {
        true
    }

    fn tap(&mut self, tap: &str, shape: &[usize], data: &mut [f32]) {
        if self.fault.is_some() {
            return;
        }
        let Some(at) = data.iter().position(|x| !x.is_finite()) else { return };
        let rows = shape.first().copied().unwrap_or(1).max(1);
        let row = at / (data.len() / rows).max(1);
        // Behind the head of the graph only rows exist whose logits are wanted.
        let row = if rows == self.feed.tokens.len() {
            row
        } else {
            self.feed.wanted.get(row).copied().unwrap_or(0)
        };
        self.fault = Some(self.error(tap, data[at], row));
    }
}
