//! Changes of the states of a slot.

use std::collections::BTreeMap;

use engine::{Chunk, Error, ExtraInputs, Logits, Probe, Session, StateValue};
use registry::dtype::Dtype;
use registry::graph::{Graph, StateId, StateKind};

use super::faults::StateChange;

/// Rounds to a number of bits after the leading one, ties to even.
pub(super) fn rounded(x: f32, bits: u32) -> f32 {
    if !x.is_finite() {
        return x;
    }
    let drop = 23 - bits.min(23);
    if drop == 0 {
        return x;
    }
    let raw = x.to_bits();
    let half = (1_u32 << (drop - 1)) - 1 + ((raw >> drop) & 1);
    f32::from_bits((raw + half) >> drop << drop)
}

/// Rounds to the precision of a dtype.
pub(super) fn round_to_dtype(x: f32, dtype: Dtype) -> f32 {
    match dtype {
        Dtype::F32 => x,
        Dtype::Bf16 => rounded(x, 7),
        // Values below the normal range of f16 have fewer bits.
        Dtype::F16 if x.abs() < 2.0_f32.powi(-14) => {
            (x * 2.0_f32.powi(24)).round_ties_even() * 2.0_f32.powi(-24)
        }
        Dtype::F16 => rounded(x, 10),
    }
}

/// Applies a change to the states that it concerns; false if there is nothing to change at this position.
pub(super) fn change(
    values: &mut [StateValue],
    what: &StateChange,
    states: &[StateId],
    position: usize,
) -> bool {
    let mut changed = false;
    for value in values.iter_mut().filter(|value| states.contains(&value.state)) {
        match what {
            StateChange::Dropped(range)
                if position > (range.end).max(64) && value.shape.first() == Some(&position) =>
            {
                let width = value.data.len() / position;
                if let Some(rows) = value.data.get_mut(range.start * width..range.end * width) {
                    rows.fill(0.0);
                    changed = true;
                }
            }
            StateChange::Zeroed(every) if position.is_multiple_of(*every) => {
                value.data.fill(0.0);
                changed = true;
            }
            StateChange::Narrow(dtype) => {
                value.data.iter_mut().for_each(|x| *x = round_to_dtype(*x, *dtype));
                changed = true;
            }
            _ => {}
        }
    }
    changed
}

/// Copies some states from another source.
pub(super) fn take(values: &mut [StateValue], from: &[StateValue], states: &[StateId]) -> bool {
    for value in values.iter_mut().filter(|value| states.contains(&value.state)) {
        let other = from.iter().find(|o| o.state == value.state && o.part == value.part);
        if let Some(other) = other {
            value.data.clone_from(&other.data);
        }
    }
    true
}

/// Leaks the states of a released slot into a slot after its first chunk. They replace the inputs of a
/// convolution if the chunk is shorter than the kernel, and are added to a recurrence.
pub(super) fn leak_state(
    values: &mut [StateValue],
    stale: &[StateValue],
    graph: &Graph,
    position: usize,
) -> bool {
    let mut changed = false;
    for value in values {
        let Some(old) = stale.iter().find(|o| o.state == value.state && o.part == value.part)
        else {
            continue;
        };
        match (graph.states[value.state.0].kind, &value.shape[..]) {
            (StateKind::Conv, &[_, width]) if position < width => {
                value.data.clone_from(&old.data);
                changed = true;
            }
            (StateKind::Recurrent, _) => {
                value.data.iter_mut().zip(&old.data).for_each(|(x, old)| *x += old);
                changed = true;
            }
            _ => {}
        }
    }
    changed
}

/// Repeats the last row of states that have a row for every position.
pub(super) fn repeat_last(values: &mut [StateValue], graph: &Graph, position: usize) {
    for value in values {
        let state = &graph.states[value.state.0];
        // Pooled keys have rows of positions and of blocks.
        let grows =
            !matches!(state.kind, StateKind::Conv | StateKind::Recurrent | StateKind::Pooled);
        let rows = value.shape.first().copied().unwrap_or(0);
        if grows && rows > 0 {
            let width = value.data.len() / rows;
            value.data.extend_from_within((rows - 1) * width..);
            value.shape[0] = (rows + 1).min(position + 1);
        }
    }
}

/// Runs a single step on rounded states, and keeps the values that it computes from the exact states.
pub(super) fn read_narrow(
    session: &mut dyn Session,
    chunks: &[Chunk<'_>],
    extra: ExtraInputs<'_>,
    probe: &mut dyn Probe,
    states: &[StateId],
    dtype: Dtype,
) -> Result<Vec<Logits>, Error> {
    let [chunk] = chunks else { return session.step_with(chunks, extra, probe) };
    let position = session.position(chunk.slot)?;
    if position == 0 || chunk.tokens.len() > 1 {
        return session.step_with(chunks, extra, probe);
    }
    let mut values = session.states(chunk.slot)?;
    change(&mut values, &StateChange::Narrow(dtype), states, position);
    let document = session.document(chunk.slot)?;
    let narrow = session.seed_in_document(position, document, &values)?;
    let mut seen = RecordingProbe { probe, taps: BTreeMap::new() };
    let logits = session.step_with(&[Chunk { slot: narrow, ..*chunk }], extra, &mut seen);
    let mut replay = ReplayProbe(seen.taps);
    session.release(narrow)?;
    let logits = logits?;
    session.step_with(chunks, extra, &mut replay)?;
    Ok(logits)
}

/// Probe that records taps as another probe leaves them.
struct RecordingProbe<'a> {
    probe: &'a mut dyn Probe,
    taps: BTreeMap<String, Vec<f32>>,
}

impl Probe for RecordingProbe<'_> {
    fn wants(&self, tap: &str) -> bool {
        self.probe.wants(tap)
    }

    fn tap(&mut self, tap: &str, shape: &[usize], data: &mut [f32]) {
        self.probe.tap(tap, shape, data);
        self.taps.insert(tap.to_owned(), data.to_vec());
    }
}

/// Probe that replaces taps by recorded ones.
struct ReplayProbe(BTreeMap<String, Vec<f32>>);

impl Probe for ReplayProbe {
    fn wants(&self, tap: &str) -> bool {
        self.0.contains_key(tap)
    }

    fn tap(&mut self, tap: &str, _shape: &[usize], data: &mut [f32]) {
        if let Some(recorded) = self.0.get(tap).filter(|values| values.len() == data.len()) {
            data.copy_from_slice(recorded);
        }
    }
}
