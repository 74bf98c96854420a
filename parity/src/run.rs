//! Runs an engine over the prompts of a dump and keeps the values to compare.

use std::collections::BTreeMap;
use std::hash::Hasher as _;

use engine::{
    Chunk, ChunkMask, ExtraInputs, Logits, OutputRows, Probe, Session, SlotId, StateValue,
};
use siphasher::sip::SipHasher13;

use crate::dump::{DumpTensor, Phase, Prompt};
use crate::route::{RouterChoices, RoutingProbe};

/// Results of one phase of one prompt.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// `[rows, vocab]`: a row for each recorded position of the phase.
    pub logits: Vec<f32>,
    /// Taps by name, with the rows of the logits.
    pub taps: BTreeMap<String, CapturedTap>,
    /// States, in the order in which they were read.
    pub states: Vec<StateSnapshot>,
}

/// States of a slot after a number of tokens.
#[derive(Debug, Clone)]
pub struct StateSnapshot {
    /// Number of tokens seen.
    pub seen: usize,
    /// Every part of every state.
    pub values: Vec<StateValue>,
}

/// A captured tap.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CapturedTap {
    /// Shape of one row.
    pub row: Vec<usize>,
    /// All rows.
    pub data: Vec<f32>,
}

/// Reference taps of one prompt, for comparison or as inputs; a row for each recorded position.
#[derive(Debug, Default)]
pub struct ReferenceTaps {
    /// Taps of the full prefill.
    pub prefill: BTreeMap<String, DumpTensor>,
    /// Taps of the single steps.
    pub decode: BTreeMap<String, DumpTensor>,
    /// Router choices in the full prefill, for every token.
    pub prefill_choices: RouterChoices,
    /// Router choices in the single steps.
    pub decode_choices: RouterChoices,
}

impl ReferenceTaps {
    /// Returns the taps of a phase, mutably.
    pub(crate) fn of_mut(&mut self, phase: Phase) -> &mut BTreeMap<String, DumpTensor> {
        match phase {
            Phase::Prefill => &mut self.prefill,
            Phase::Decode => &mut self.decode,
        }
    }

    /// Returns the taps of a phase.
    pub fn of(&self, phase: Phase) -> &BTreeMap<String, DumpTensor> {
        match phase {
            Phase::Prefill => &self.prefill,
            Phase::Decode => &self.decode,
        }
    }
}

/// Source of the inputs of ops.
#[derive(Debug, Clone, Copy)]
pub enum InputSource {
    /// The engine's own values.
    Own,
    /// The reference's values: every tapped value is replaced after it is captured, so that errors do not
    /// spread.
    Reference,
    /// The reference's values with a small perturbation.
    Perturbed(Perturbation),
}

impl InputSource {
    fn shake(self) -> Option<Perturbation> {
        match self {
            Self::Perturbed(shake) => Some(shake),
            Self::Own | Self::Reference => None,
        }
    }
}

/// Small perturbation of values.
#[derive(Debug, Clone, Copy)]
pub struct Perturbation {
    /// Size, in units in the last place of f32.
    pub units: u32,
    /// Seed that selects the perturbed values.
    pub seed: u64,
}

impl Perturbation {
    /// Returns the first state of the generator for a row. Noise in reports depends on it, so the hash has a
    /// definition of its own, which no compiler changes.
    fn start(self, tap: &str, row: usize) -> u64 {
        let mut hasher = SipHasher13::new();
        hasher.write(&self.seed.to_le_bytes());
        hasher.write(tap.as_bytes());
        hasher.write(&[0xff]);
        hasher.write(&(row as u64).to_le_bytes());
        hasher.finish() | 1
    }

    /// Perturbs two thirds of the values up or down; zeros and values near zero stay.
    fn apply(self, tap: &str, row: usize, data: &mut [f32]) {
        let mut state = self.start(tap, row);
        for value in data.iter_mut().filter(|value| value.is_normal()) {
            // Xorshift: any bits do, as long as they are the same in every run.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let bits = value.to_bits();
            let moved = match state % 3 {
                0 => bits.wrapping_add(self.units),
                1 => bits.wrapping_sub(self.units),
                _ => bits,
            };
            let moved = f32::from_bits(moved);
            if moved.is_normal() && moved.signum() == value.signum() {
                *value = moved;
            }
        }
    }
}

/// Runs a whole prompt at once from an empty slot.
pub(crate) fn prefill(
    session: &mut dyn Session,
    prompt: &Prompt,
    reference: &ReferenceTaps,
    feed: InputSource,
    steer: &mut RoutingProbe<'_>,
) -> Result<Trace, engine::Error> {
    let mut trace = Trace::default();
    let rows = prompt.positions(Phase::Prefill);
    let slot = session.open_slot();
    let keep = Some(&mut trace.taps);
    let choices = (&reference.prefill_choices, 0);
    let mut probe =
        CaptureProbe { wanted: &reference.prefill, rows: &rows, feed, at: 0, keep, steer, choices };
    let chunk = Chunk { slot, tokens: &prompt.tokens, rows: OutputRows::All };
    let run = feed_masked(session, chunk, prompt.mask(prompt.tokens.len()), &mut probe);
    let states = prompt.tapped(Phase::Prefill) && session.features().states;
    let values = if run.is_ok() && states { Some(session.states(slot)) } else { None };
    session.release(slot)?;
    let logits = run?;
    for row in &rows {
        trace.logits.extend_from_slice(logits.row(*row));
    }
    if let Some(values) = values {
        trace.states.push(StateSnapshot { seen: prompt.tokens.len(), values: values? });
    }
    Ok(trace)
}

/// Runs the prefix at once and then token by token, on the engine's own values.
pub(crate) fn decode(
    session: &mut dyn Session,
    prompt: &Prompt,
    reference: &ReferenceTaps,
    steer: &mut RoutingProbe<'_>,
) -> Result<Trace, engine::Error> {
    let slot = session.open_slot();
    let run = decode_in(session, slot, prompt, reference, steer);
    session.release(slot)?;
    run
}

fn decode_in(
    session: &mut dyn Session,
    slot: SlotId,
    prompt: &Prompt,
    reference: &ReferenceTaps,
    steer: &mut RoutingProbe<'_>,
) -> Result<Trace, engine::Error> {
    let mut trace = Trace::default();
    let rows = prompt.positions(Phase::Decode);
    let states = prompt.tapped(Phase::Decode) && session.features().states;
    let snapshots = prompt.snapshots();
    let length = prompt.tokens.len();
    let read = |session: &mut dyn Session, seen: usize, trace: &mut Trace| {
        if states && (seen == length || snapshots.binary_search(&seen).is_ok()) {
            trace.states.push(StateSnapshot { seen, values: session.states(slot)? });
        }
        Ok::<_, engine::Error>(())
    };
    let prefix = &prompt.tokens[..prompt.split.min(length)];
    let mut probe = CaptureProbe::of_choices(&mut *steer, (&reference.prefill_choices, 0));
    let chunk = Chunk { slot, tokens: prefix, rows: OutputRows::Last };
    feed_masked(session, chunk, prompt.mask(prefix.len()), &mut probe)?;
    read(session, prefix.len(), &mut trace)?;
    let step = DecodeStep { prompt, rows: &rows, wanted: reference, feed: InputSource::Own };
    for at in prefix.len()..length {
        let logits = step.run(session, slot, at, &mut trace, steer)?;
        if rows.binary_search(&at).is_ok() {
            trace.logits.extend_from_slice(&logits.data);
        }
        read(session, at + 1, &mut trace)?;
    }
    Ok(trace)
}

/// The states that steps begin with.
pub(crate) trait InitialStates {
    /// True if parts of states have to be computed.
    fn keeps_more(&self) -> bool;
    /// Returns the states after `seen` tokens; none if some are not known. `computed`: those that the engine computed
    /// from the reference's inputs, if parts have to be.
    fn seed(&self, seen: usize, computed: &[StateValue]) -> Option<Vec<StateValue>>;
}

/// Runs the recorded steps of a decode phase, each on the reference's own inputs and on the states that
/// `states` has for it. A step without such states continues from the step before.
pub(crate) fn steps(
    session: &mut dyn Session,
    prompt: &Prompt,
    reference: &ReferenceTaps,
    feed: InputSource,
    steer: &mut RoutingProbe<'_>,
    states: &dyn InitialStates,
) -> Result<Option<Trace>, engine::Error> {
    let mut slot = None;
    let run = steps_in(session, &mut slot, prompt, reference, feed, steer, states);
    if let Some((slot, _)) = slot {
        session.release(slot)?;
    }
    run
}

fn steps_in(
    session: &mut dyn Session,
    slot: &mut Option<(SlotId, usize)>,
    prompt: &Prompt,
    reference: &ReferenceTaps,
    feed: InputSource,
    steer: &mut RoutingProbe<'_>,
    states: &dyn InitialStates,
) -> Result<Option<Trace>, engine::Error> {
    let mut trace = Trace::default();
    let rows = prompt.positions(Phase::Decode);
    let step = DecodeStep { prompt, rows: &rows, wanted: reference, feed };
    let computes = states.keeps_more() && session.features().states;
    for &at in &rows {
        let computed = match *slot {
            _ if !computes => Vec::new(),
            Some((slot, seen)) if seen == at => session.states(slot)?,
            _ => states_after(session, prompt, at, reference, feed, steer)?,
        };
        if let Some(mut values) = states.seed(at, &computed) {
            if let Some(shake) = feed.shake() {
                // Computed parts follow from values that are perturbed already.
                for value in values.iter_mut().filter(|value| !computed.contains(value)) {
                    shake.apply(&format!("{} {}", value.layer, value.part), at, &mut value.data);
                }
            }
            let seeded = session.seed_in_document(at, prompt.last_document(), &values)?;
            if let Some((old, _)) = slot.replace((seeded, at)) {
                session.release(old)?;
            }
        }
        let Some((slot, seen)) = slot.as_mut().filter(|(_, seen)| *seen == at) else {
            return Ok(None);
        };
        let logits = step.run(session, *slot, at, &mut trace, steer)?;
        trace.logits.extend_from_slice(&logits.data);
        *seen = at + 1;
        if session.features().states {
            trace.states.push(StateSnapshot { seen: at + 1, values: session.states(*slot)? });
        }
    }
    Ok(Some(trace))
}

/// Returns the states after the first tokens of a prompt, with inputs of ops from `feed`.
fn states_after(
    session: &mut dyn Session,
    prompt: &Prompt,
    count: usize,
    reference: &ReferenceTaps,
    feed: InputSource,
    steer: &mut RoutingProbe<'_>,
) -> Result<Vec<StateValue>, engine::Error> {
    let rows = prompt.positions(Phase::Prefill);
    let slot = session.open_slot();
    let mut probe = CaptureProbe {
        wanted: &reference.prefill,
        rows: &rows,
        feed,
        at: 0,
        keep: None,
        steer,
        choices: (&reference.prefill_choices, 0),
    };
    let chunk = Chunk { slot, tokens: &prompt.tokens[..count], rows: OutputRows::Last };
    let run = feed_masked(session, chunk, prompt.mask(count), &mut probe);
    let states = run.and_then(|_| session.states(slot));
    session.release(slot)?;
    states
}

/// Single steps of a decode phase.
struct DecodeStep<'a> {
    prompt: &'a Prompt,
    /// Positions of the recorded rows.
    rows: &'a [usize],
    wanted: &'a ReferenceTaps,
    feed: InputSource,
}

impl DecodeStep<'_> {
    /// Feeds the token at a position and keeps its taps.
    fn run(
        &self,
        session: &mut dyn Session,
        slot: SlotId,
        at: usize,
        trace: &mut Trace,
        steer: &mut RoutingProbe<'_>,
    ) -> Result<Logits, engine::Error> {
        let mut probe = CaptureProbe {
            wanted: &self.wanted.decode,
            rows: self.rows,
            feed: self.feed,
            at,
            keep: Some(&mut trace.taps),
            steer,
            choices: (&self.wanted.decode_choices, self.prompt.split),
        };
        feed_chunk(session, slot, &self.prompt.tokens[at..=at], OutputRows::Last, &mut probe)
    }
}

/// Feeds one chunk to one slot.
pub(crate) fn feed_chunk(
    session: &mut dyn Session,
    slot: SlotId,
    tokens: &[u32],
    rows: OutputRows,
    probe: &mut dyn Probe,
) -> Result<Logits, engine::Error> {
    feed_masked(session, Chunk { slot, tokens, rows }, ChunkMask::default(), probe)
}

/// Feeds one chunk to its slot, with a mask.
pub(crate) fn feed_masked(
    session: &mut dyn Session,
    chunk: Chunk<'_>,
    mask: ChunkMask<'_>,
    probe: &mut dyn Probe,
) -> Result<Logits, engine::Error> {
    let masks = [mask];
    let extra = if mask.is_causal() {
        ExtraInputs::default()
    } else {
        ExtraInputs { masks: &masks, ..ExtraInputs::default() }
    };
    session
        .step_with(&[chunk], extra, probe)?
        .pop()
        .ok_or_else(|| engine::Error::Other("the engine gave no logits for a chunk".to_owned()))
}

/// Empty set of taps.
static NONE: BTreeMap<String, DumpTensor> = BTreeMap::new();

/// Probe that copies taps, and optionally replaces them.
pub(crate) struct CaptureProbe<'a, 's> {
    /// Taps to copy, with their replacement values.
    wanted: &'a BTreeMap<String, DumpTensor>,
    /// Positions of their rows.
    rows: &'a [usize],
    /// Source of the inputs of ops.
    feed: InputSource,
    /// Position of the first row of this step.
    at: usize,
    /// Destination of the copies.
    keep: Option<&'a mut BTreeMap<String, CapturedTap>>,
    /// Comparison of router choices.
    steer: &'a mut RoutingProbe<'s>,
    /// Router choices of the reference, and the position of the first.
    choices: (&'a RouterChoices, usize),
}

impl<'a, 's> CaptureProbe<'a, 's> {
    /// Returns a probe that compares choices, and replaces those that differ by rounding.
    pub(crate) fn of_choices(
        steer: &'a mut RoutingProbe<'s>,
        choices: (&'a RouterChoices, usize),
    ) -> Self {
        Self { wanted: &NONE, rows: &[], feed: InputSource::Own, at: 0, keep: None, steer, choices }
    }
}

impl Probe for CaptureProbe<'_, '_> {
    fn wants(&self, tap: &str) -> bool {
        self.wanted.contains_key(tap) || self.steer.wants(tap)
    }

    fn tap(&mut self, tap: &str, shape: &[usize], data: &mut [f32]) {
        self.copy(tap, shape, data);
        let (choices, first) = self.choices;
        self.steer.observe(tap, data, self.at.saturating_sub(first), choices);
    }
}

impl CaptureProbe<'_, '_> {
    fn copy(&mut self, tap: &str, shape: &[usize], data: &mut [f32]) {
        let Some(reference) = self.wanted.get(tap) else { return };
        let count = shape.first().copied().unwrap_or(0);
        let width = data.len().checked_div(count).unwrap_or(0);
        // A differing shape is reported by the comparison; here it is ignored.
        let theirs: usize = reference.shape.iter().skip(1).product();
        for (n, row) in data.chunks_exact_mut(width.max(1)).enumerate() {
            let Ok(index) = self.rows.binary_search(&(self.at + n)) else { continue };
            if let Some(keep) = &mut self.keep {
                let captured = keep.entry(tap.to_owned()).or_default();
                captured.row = shape.get(1..).unwrap_or_default().to_vec();
                captured.data.extend_from_slice(row);
            }
            if matches!(self.feed, InputSource::Own) || theirs != width {
                continue;
            }
            let Some(values) = reference.data.get(index * width..(index + 1) * width) else {
                continue;
            };
            row.copy_from_slice(values);
            if let Some(shake) = self.feed.shake() {
                shake.apply(tap, self.at + n, row);
            }
        }
    }
}

/// Feeds a prompt and then the reference's tokens. Returns the engine's rows of logits before each: row i
/// predicts token i.
pub(crate) fn teacher_forced(
    session: &mut dyn Session,
    prompt: &Prompt,
    chosen: &[u32],
    choices: [&RouterChoices; 2],
    steer: &mut RoutingProbe<'_>,
) -> Result<Vec<Vec<f32>>, engine::Error> {
    let slot = session.open_slot();
    let rows = teacher_forced_in(session, slot, prompt, chosen, choices, steer);
    session.release(slot)?;
    rows
}

/// Runs [`teacher_forced`] in an empty slot.
fn teacher_forced_in(
    session: &mut dyn Session,
    slot: SlotId,
    prompt: &Prompt,
    chosen: &[u32],
    choices: [&RouterChoices; 2],
    steer: &mut RoutingProbe<'_>,
) -> Result<Vec<Vec<f32>>, engine::Error> {
    let [prefill, steps] = choices;
    let mut probe = CaptureProbe::of_choices(steer, (prefill, 0));
    let chunk = Chunk { slot, tokens: &prompt.tokens, rows: OutputRows::Last };
    let mask = prompt.mask(prompt.tokens.len());
    let mut rows = vec![feed_masked(session, chunk, mask, &mut probe)?.data];
    probe.choices = (steps, 0);
    for (row, token) in chosen.iter().take(chosen.len().saturating_sub(1)).enumerate() {
        probe.at = row;
        rows.push(feed_chunk(session, slot, &[*token], OutputRows::Last, &mut probe)?.data);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_move_by_a_unit() {
        let was: Vec<f32> = (1..100).map(|n| n as f32 / 64.0).chain([0.0, f32::MAX]).collect();
        let is = moved(&was, 0);
        let steps: Vec<u32> =
            was.iter().zip(&is).map(|(a, b)| a.to_bits().abs_diff(b.to_bits())).collect();
        assert!(steps.iter().all(|step| *step <= 1), "{steps:?}");
        assert!(steps.iter().filter(|step| **step == 1).count() > 40);
        assert!(is[99] == 0.0 && is.iter().all(|x| x.is_finite()));
        assert!(is == moved(&was, 0) && is != moved(&was, 1));
    }

    fn moved(values: &[f32], seed: u64) -> Vec<f32> {
        let mut data = values.to_vec();
        Perturbation { units: 1, seed }.apply("a", 0, &mut data);
        data
    }

    #[test]
    fn the_generator_starts_where_it_always_did() {
        assert_eq!(
            Perturbation { units: 1, seed: 0 }.start("model.layers.0", 7),
            12_866_705_388_986_652_055
        );
        assert_eq!(
            Perturbation { units: 1, seed: 2 }.start("é 0.k", 1 << 40),
            17_243_551_866_232_923_117
        );
    }
}
