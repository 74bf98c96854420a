//! Runs an engine over the prompts of a dump and keeps what the dump has to be compared with.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use engine::{Chunk, Logits, Probe, Session, SlotId, StateValue, Want};
use registry::dtype::Dtype;

use crate::dump::{Phase, Prompt, Tensor};
use crate::route::{Choices, Steer};
use crate::tolerance::stored_bits;

/// What one phase of one prompt gave.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// `[rows, vocab]`: prefill, one row per token; decode, one per single step.
    pub logits: Vec<f32>,
    /// Taps by name, rows as the logits'.
    pub taps: BTreeMap<String, Captured>,
    /// States after the prefill; or after the prefix and after each step.
    pub states: Vec<Vec<StateValue>>,
}

/// A captured tap.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Captured {
    /// Shape of one row.
    pub row: Vec<usize>,
    /// All rows.
    pub data: Vec<f32>,
}

/// The reference's taps of one prompt, to compare with or to feed.
#[derive(Debug, Default)]
pub struct Reference {
    /// Those of the full prefill.
    pub prefill: BTreeMap<String, Tensor>,
    /// Those of the single steps.
    pub decode: BTreeMap<String, Tensor>,
    /// What routers chose in the full prefill.
    pub prefill_choices: Choices,
    /// The same in the single steps.
    pub decode_choices: Choices,
}

/// Whether taps are only looked at, or replaced by the reference's values.
#[derive(Debug, Clone, Copy)]
pub enum Feed<'a> {
    /// Every op gets what the engine made.
    Own,
    /// Every tapped value is replaced after it is captured, so that errors do not spread.
    Reference(&'a Reference),
    /// The same, by values that are some of them a unit in the last place off.
    Shaken(&'a Reference, Shake),
}

impl<'a> Feed<'a> {
    fn reference(self) -> Option<&'a Reference> {
        match self {
            Self::Own => None,
            Self::Reference(reference) | Self::Shaken(reference, _) => Some(reference),
        }
    }

    fn shake(self) -> Option<Shake> {
        match self {
            Self::Shaken(_, shake) => Some(shake),
            Self::Own | Self::Reference(_) => None,
        }
    }
}

/// Which values move, and by what.
#[derive(Debug, Clone, Copy)]
pub struct Shake {
    /// Of this dtype is the unit.
    pub dtype: Dtype,
    /// By so many units.
    pub units: u32,
    /// Another one moves others.
    pub seed: u64,
}

impl Shake {
    /// Moves two thirds of the values up or down by a unit. What is not on the grid of the dtype is kept wider,
    /// and moves by a unit of f32; zeros and what is next to them stay.
    fn apply(self, tap: &str, row: usize, data: &mut [f32]) {
        let unit = 1_u32 << (23 - stored_bits(self.dtype));
        let mut hasher = DefaultHasher::new();
        (self.seed, tap, row).hash(&mut hasher);
        let mut state = hasher.finish() | 1;
        for value in data.iter_mut().filter(|value| value.is_normal()) {
            // Xorshift: any bits will do, the same in every run.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let bits = value.to_bits();
            let step = self.units * if bits.is_multiple_of(unit) { unit } else { 1 };
            let moved = match state % 3 {
                0 => bits.wrapping_add(step),
                1 => bits.wrapping_sub(step),
                _ => bits,
            };
            let moved = f32::from_bits(moved);
            if moved.is_normal() && moved.signum() == value.signum() {
                *value = moved;
            }
        }
    }
}

/// Runs one phase of a prompt from a fresh slot, which is given back.
pub(crate) fn trace(
    session: &mut dyn Session,
    prompt: &Prompt,
    phase: Phase,
    wanted: &Reference,
    feed: Feed<'_>,
    steer: &mut Steer<'_>,
) -> Result<Trace, engine::Error> {
    let slot = session.open_slot();
    let result = match phase {
        Phase::Prefill => prefill(session, slot, prompt, wanted, feed, steer),
        Phase::Decode => decode(session, slot, prompt, wanted, feed, steer),
    };
    let released = session.release(slot);
    let trace = result?;
    released?;
    Ok(trace)
}

fn prefill(
    session: &mut dyn Session,
    slot: SlotId,
    prompt: &Prompt,
    wanted: &Reference,
    feed: Feed<'_>,
    steer: &mut Steer<'_>,
) -> Result<Trace, engine::Error> {
    let mut trace = Trace::default();
    let (fed, shake) = (feed.reference().map(|r| &r.prefill), feed.shake());
    let choices = &wanted.prefill_choices;
    let keep = Some(&mut trace.taps);
    let mut probe = Capture { wanted: &wanted.prefill, fed, shake, row: 0, keep, steer, choices };
    trace.logits = one(session, slot, &prompt.tokens, Want::All, &mut probe)?.data;
    let states = prompt.taps && session.shows().states;
    if states {
        trace.states.push(session.states(slot)?);
    }
    Ok(trace)
}

fn decode(
    session: &mut dyn Session,
    slot: SlotId,
    prompt: &Prompt,
    wanted: &Reference,
    feed: Feed<'_>,
    steer: &mut Steer<'_>,
) -> Result<Trace, engine::Error> {
    let mut trace = Trace::default();
    // Nothing of the prefix itself is compared here: prefill has the same rows. Its taps are
    // fed from the prefill's, so that the states it leaves are the reference's too.
    let (prefix, rest) = prompt.tokens.split_at(prompt.split.min(prompt.tokens.len()));
    let (fed, shake) = (feed.reference().map(|r| &r.prefill), feed.shake());
    let taps = fed.unwrap_or(&NONE);
    let choices = &wanted.prefill_choices;
    let mut probe =
        Capture { wanted: taps, fed, shake, row: 0, keep: None, steer: &mut *steer, choices };
    // All rows, so that rows of the probe are positions of the prompt.
    let want = if fed.is_some() { Want::All } else { Want::Last };
    one(session, slot, prefix, want, &mut probe)?;
    let states = prompt.taps && session.shows().states;
    if states {
        trace.states.push(session.states(slot)?);
    }
    for (row, token) in rest.iter().enumerate() {
        let fed = feed.reference().map(|r| &r.decode);
        let (keep, choices) = (Some(&mut trace.taps), &wanted.decode_choices);
        let steer = &mut *steer;
        let mut probe = Capture { wanted: &wanted.decode, fed, shake, row, keep, steer, choices };
        let logits = one(session, slot, &[*token], Want::Last, &mut probe)?;
        trace.logits.extend_from_slice(&logits.data);
        if states {
            trace.states.push(session.states(slot)?);
        }
    }
    Ok(trace)
}

/// Feeds one chunk to one slot.
pub(crate) fn one(
    session: &mut dyn Session,
    slot: SlotId,
    tokens: &[u32],
    want: Want,
    probe: &mut dyn Probe,
) -> Result<Logits, engine::Error> {
    session
        .step(&[Chunk { slot, tokens, want }], probe)?
        .pop()
        .ok_or_else(|| engine::Error::Other("the engine gave no logits for a chunk".to_owned()))
}

/// No taps.
static NONE: BTreeMap<String, Tensor> = BTreeMap::new();

/// Copies taps, and replaces them when told to.
pub(crate) struct Capture<'a, 's> {
    /// Taps to copy.
    wanted: &'a BTreeMap<String, Tensor>,
    /// Values to put in their place.
    fed: Option<&'a BTreeMap<String, Tensor>>,
    /// What is done to those.
    shake: Option<Shake>,
    /// The reference's row that the first row of this step is.
    row: usize,
    /// Where copies go.
    keep: Option<&'a mut BTreeMap<String, Captured>>,
    /// What compares choices.
    steer: &'a mut Steer<'s>,
    /// What the reference chose.
    choices: &'a Choices,
}

impl<'a, 's> Capture<'a, 's> {
    /// Compares choices, and replaces those that rounding made otherwise.
    pub(crate) fn of_choices(steer: &'a mut Steer<'s>, choices: &'a Choices) -> Self {
        Self { wanted: &NONE, fed: None, shake: None, row: 0, keep: None, steer, choices }
    }
}

impl Probe for Capture<'_, '_> {
    fn wants(&self, tap: &str) -> bool {
        self.wanted.contains_key(tap) || self.steer.wants(tap)
    }

    fn tap(&mut self, tap: &str, shape: &[usize], data: &mut [f32]) {
        self.copy(tap, shape, data);
        self.steer.see(tap, data, self.row, self.choices);
    }
}

impl Capture<'_, '_> {
    fn copy(&mut self, tap: &str, shape: &[usize], data: &mut [f32]) {
        if !self.wanted.contains_key(tap) {
            return;
        }
        if let Some(keep) = &mut self.keep {
            let captured = keep.entry(tap.to_owned()).or_default();
            captured.row = shape.get(1..).unwrap_or_default().to_vec();
            captured.data.extend_from_slice(data);
        }
        let Some(reference) = self.fed.and_then(|fed| fed.get(tap)) else { return };
        // A shape that differs is a finding of the comparison; here it is only left alone.
        let width: usize = reference.shape.iter().skip(1).product();
        let rows = shape.first().copied().unwrap_or(0);
        let from = self.row.saturating_mul(width);
        let to = from.saturating_add(rows.saturating_mul(width));
        if let Some(values) = reference.data.get(from..to)
            && values.len() == data.len()
        {
            data.copy_from_slice(values);
            if let Some(shake) = self.shake {
                shake.apply(tap, self.row, data);
            }
        }
    }
}

/// Feeds a prompt and then the tokens the reference chose, and gives the engine's own rows of
/// logits before each: row i is what the engine would choose token i from.
pub(crate) fn forced(
    session: &mut dyn Session,
    prompt: &[u32],
    chosen: &[u32],
    choices: [&Choices; 2],
    steer: &mut Steer<'_>,
) -> Result<Vec<Vec<f32>>, engine::Error> {
    let slot = session.open_slot();
    let mut run = || {
        let [prefill, steps] = choices;
        let mut probe = Capture::of_choices(&mut *steer, prefill);
        let mut rows = vec![one(session, slot, prompt, Want::Last, &mut probe)?.data];
        probe.choices = steps;
        for (row, token) in chosen.iter().take(chosen.len().saturating_sub(1)).enumerate() {
            probe.row = row;
            rows.push(one(session, slot, &[*token], Want::Last, &mut probe)?.data);
        }
        Ok(rows)
    };
    let rows = run();
    session.release(slot)?;
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_move_by_a_unit_of_their_own_grid() {
        for (dtype, unit) in [(Dtype::F32, 1), (Dtype::F16, 1 << 13), (Dtype::Bf16, 1 << 16)] {
            let was: Vec<f32> = (1..100).map(|n| n as f32 / 64.0).chain([0.0, f32::MAX]).collect();
            let shaken = |seed| {
                let mut data = was.clone();
                Shake { dtype, units: 1, seed }.apply("a", 0, &mut data);
                data
            };
            let is = shaken(0);
            let steps: Vec<u32> =
                was.iter().zip(&is).map(|(a, b)| a.to_bits().abs_diff(b.to_bits())).collect();
            assert!(steps.iter().all(|step| [0, 1, unit].contains(step)), "{dtype}: {steps:?}");
            assert!(steps.iter().filter(|step| **step == unit).count() > 40);
            assert!(is[99] == 0.0 && is.iter().all(|x| x.is_finite()));
            assert!(is == shaken(0) && is != shaken(1));
        }
    }
}
