//! Schedules: other ways to feed the same tokens, which must give the results of a single prefill.
//!
//! Bugs of states only show under certain schedules (a chunk shorter than a kernel, a reused slot, a fork,
//! a rejected draft), not with a single prompt. The schedules are derived from the states that a model
//! declares, so a model with a kernel of 4 is fed chunks of 2, 3, 4 and 5.
//!
//! Their bounds come from runs that agree ([decision 95](../../docs/decisions/0095-schedules-bounded-by-noise.md)).

mod common_acts;
mod derive;

use std::collections::{BTreeMap, BTreeSet};

use engine::{Chunk, ChunkMask, ExtraInputs, NoProbe, OutputRows, Session, SlotId};
use registry::dtype::Dtype;
use serde::Serialize;

use crate::dump::{DumpTensor, Prompt};
use crate::gate::{Mode, Verdict, dtype_name};
use crate::metrics::{gap, log_softmax};
use crate::route::{ChoiceRecorder, Router, RouterChoices, RouterRow, RoutingProbe, routers};
use crate::rule;
use crate::run::{CaptureProbe, feed_masked};

pub(crate) use common_acts::note_common_acts;
pub use derive::{ROLLBACK, derive, derive_masked, kind};

/// Way to feed tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Short and unique name.
    pub name: String,
    /// Kind of bug that it would show.
    pub why: &'static str,
    /// Acts in order.
    pub acts: Vec<Act>,
}

/// Act of a schedule. Slots are numbered by the schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Opens slot `.0` for sequence `.1`.
    Open(usize, usize),
    /// Runs one step: each slot gets a number of its tokens, and every row is compared.
    Feed(Vec<(usize, usize)>),
    /// Feeds tokens of another sequence, to be rewound or discarded.
    Stray(usize, usize),
    /// Forks slot `.1` from slot `.0`.
    Fork(usize, usize),
    /// Rewinds the stray tokens.
    Rewind(usize),
    /// Saves a slot, releases it, and restores it.
    Reload(usize),
    /// Releases a slot.
    Release(usize),
}

/// Result of one schedule.
#[derive(Debug, Clone, Serialize)]
pub struct ScheduleRow {
    /// The dtype of the run.
    #[serde(serialize_with = "dtype_name")]
    pub dtype: Dtype,
    /// Name of the schedule.
    pub name: String,
    /// Kind of bug that it would show.
    pub why: &'static str,
    /// Number of steps taken.
    pub steps: usize,
    /// Largest `|Δlogprob|` from the single prefill; NaN if no row was compared.
    pub max: f64,
    /// Largest root mean square of one row's differences; NaN if no row was compared. Rows of servers are
    /// incomplete, and have their largest difference here.
    pub distance: f64,
    /// Limit of the distance.
    pub limit: f64,
    /// First position beyond the limit.
    pub position: Option<usize>,
    /// Reason for not judging the schedule, or the engine's message.
    pub note: Option<String>,
    /// The outcome.
    pub verdict: Verdict,
}

/// Token sequences, with the results of a single prefill of each.
#[derive(Debug)]
pub struct Baseline {
    sequences: Vec<Vec<u32>>,
    /// Number of tokens at the start of each sequence that see each other.
    prefix: usize,
    /// Positions at which documents of each sequence begin.
    documents: Vec<usize>,
    /// Ranges of tokens of each sequence that see each other.
    spans: Vec<(usize, usize)>,
    rows: Vec<Vec<f32>>,
    vocab: usize,
    routers: Vec<Router>,
    /// Router choices in each sequence.
    choices: Vec<RouterChoices>,
    /// Rows of the rest of a sequence fed as a second chunk, by sequence and length of its first chunk.
    /// Only for models that compute a sequence's first chunk differently from its continuation.
    two_chunks: BTreeMap<(usize, usize), Vec<f32>>,
    /// Root mean square of the logits.
    pub scale: f64,
}

impl Baseline {
    /// Builds three different sequences from a prompt, with its mask. Runs each in one prefill, and in the two
    /// chunks given by `parts` of the schedules.
    pub fn run(
        session: &mut dyn Session,
        prompt: &Prompt,
        length: usize,
        parts: &BTreeSet<(usize, usize)>,
    ) -> Result<Self, engine::Error> {
        let vocab = session.model().vocab.max(1);
        let first: Vec<u32> = prompt.tokens.iter().copied().cycle().take(length).collect();
        let second: Vec<u32> = first.iter().rev().copied().collect();
        let third = first.iter().map(|t| ((*t as usize * 7 + 3) % vocab) as u32).collect();
        let sequences = vec![first, second, third];
        let routers = routers(&session.model().graph);
        let mut rows = Vec::new();
        let mut choices = Vec::new();
        let mut power = 0.0_f64;
        let mut count = 0_usize;
        for tokens in &sequences {
            let slot = session.open_slot();
            let mut probe = ChoiceRecorder { routers: &routers, choices: RouterChoices::new() };
            let chunk = Chunk { slot, tokens, rows: OutputRows::All };
            let logits = feed_masked(session, chunk, prompt.mask(length), &mut probe);
            session.release(slot)?;
            let logits = logits?.data;
            choices.push(probe.choices);
            power += logits.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
            count += logits.len();
            rows.push(logprobs(&logits, vocab));
        }
        let scale = (power / count.max(1) as f64).sqrt();
        let two_chunks = BTreeMap::new();
        let prefix = prompt.prefix;
        let documents = prompt.documents.clone();
        let spans = prompt.spans.clone();
        let mut baseline = Self {
            sequences,
            prefix,
            documents,
            spans,
            rows,
            vocab,
            routers,
            choices,
            two_chunks,
            scale,
        };
        for &(sequence, first) in parts {
            let rows = baseline.run_in_two_chunks(session, sequence, first)?;
            baseline.two_chunks.insert((sequence, first), rows);
        }
        Ok(baseline)
    }

    /// Returns the log-probabilities of a sequence that is fed in two chunks, the first of which has
    /// `first` tokens.
    fn run_in_two_chunks(
        &self,
        session: &mut dyn Session,
        sequence: usize,
        first: usize,
    ) -> Result<Vec<f32>, engine::Error> {
        let id = session.open_slot();
        let mut rows = Vec::new();
        let tokens = &self.sequences[sequence];
        let mut feed = |seen: usize, tokens: &[u32]| -> Result<(), engine::Error> {
            let slot = ScheduleSlot { id, sequence, seen, first };
            let choices = self.chosen(&[(slot, tokens.len())]);
            let mut flips = RouterRow::new(Mode::Cumulative);
            let mut steer =
                RoutingProbe::new(&self.routers, session.dtype(), String::new(), &mut flips);
            let mut probe = CaptureProbe::of_choices(&mut steer, (&choices, 0));
            let documents = self.documents_of(seen, tokens.len());
            let chunk = Chunk { slot: id, tokens, rows: OutputRows::All };
            let logits = feed_masked(session, chunk, self.mask_of(seen, &documents), &mut probe)?;
            rows.extend(logprobs(&logits.data, self.vocab));
            Ok(())
        };
        let (head, tail) = tokens.split_at(first.min(tokens.len()));
        let fed =
            feed(0, head).and_then(|()| if tail.is_empty() { Ok(()) } else { feed(first, tail) });
        session.release(id)?;
        fed.map(|()| rows)
    }

    /// Returns the indices at which documents begin in a chunk of `count` tokens at position `seen`.
    fn documents_of(&self, seen: usize, count: usize) -> Vec<usize> {
        let inside = self.documents.iter().filter(|start| (seen..seen + count).contains(start));
        inside.map(|start| start - seen).collect()
    }

    /// Returns the mask of a chunk at position `seen`.
    fn mask_of<'a>(&'a self, seen: usize, documents: &'a [usize]) -> ChunkMask<'a> {
        // Schedules feed all spans first.
        let (prefix, spans) = if seen == 0 { (self.prefix, &self.spans[..]) } else { (0, &[][..]) };
        ChunkMask { prefix, documents, spans }
    }

    /// Returns the expected rows of a slot.
    fn expected_rows(&self, slot: &ScheduleSlot) -> &[f32] {
        let two_chunks = self.two_chunks.get(&(slot.sequence, slot.first));
        two_chunks.map_or(&self.rows[slot.sequence], |rows| rows)
    }

    /// Returns the router choices for a number of tokens of each slot, concatenated.
    fn chosen(&self, parts: &[(ScheduleSlot, usize)]) -> RouterChoices {
        let routers = self.routers.iter();
        routers.filter_map(|router| self.chosen_by(router, parts)).collect()
    }

    /// Returns the choices of one router; none if a sequence has none.
    fn chosen_by(
        &self,
        router: &Router,
        parts: &[(ScheduleSlot, usize)],
    ) -> Option<(String, DumpTensor)> {
        let mut all = DumpTensor { dtype: Dtype::F32, shape: vec![0, 0], data: Vec::new() };
        for (slot, count) in parts {
            let chosen = self.choices[slot.sequence].get(&router.module)?;
            let k = chosen.shape.get(1).copied()?;
            all.data.extend_from_slice(chosen.data.get(slot.seen * k..(slot.seen + count) * k)?);
            all.shape = vec![all.shape[0] + count, k];
        }
        Some((router.module.clone(), all))
    }
}

fn logprobs(logits: &[f32], vocab: usize) -> Vec<f32> {
    let mut out = vec![0.0; logits.len()];
    for (row, out) in logits.chunks(vocab).zip(out.chunks_mut(vocab)) {
        log_softmax(row, out);
    }
    out
}

/// State of a slot in a schedule.
#[derive(Debug, Clone, Copy)]
struct ScheduleSlot {
    id: SlotId,
    sequence: usize,
    /// Number of tokens of its own sequence that it has seen.
    seen: usize,
    /// Number of tokens in its first chunk; 0 before it.
    first: usize,
}

impl ScheduleSlot {
    /// Records a chunk that is fed to the slot.
    fn fed(self, count: usize) -> Self {
        Self { first: if self.first == 0 { count } else { self.first }, ..self }
    }
}

/// Returns the sequences of schedules, and the lengths of their first chunks.
pub fn parts(schedules: &[Schedule]) -> BTreeSet<(usize, usize)> {
    let mut parts = BTreeSet::new();
    for schedule in schedules {
        // Sequence and length of the first chunk, by slot.
        let mut slots: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        for act in &schedule.acts {
            match act {
                Act::Open(slot, sequence) => {
                    slots.insert(*slot, (*sequence, 0));
                }
                Act::Fork(from, to) => {
                    if let Some(&slot) = slots.get(from) {
                        slots.insert(*to, slot);
                    }
                }
                Act::Feed(fed) => {
                    for (slot, count) in fed {
                        if let Some(slot) = slots.get_mut(slot).filter(|slot| slot.1 == 0) {
                            slot.1 = *count;
                            parts.insert(*slot);
                        }
                    }
                }
                Act::Stray(..) | Act::Rewind(_) | Act::Reload(_) | Act::Release(_) => {}
            }
        }
    }
    parts
}

/// Failure of an act: the engine refused a service, failed, or is gone with all its slots.
enum ActFailure {
    Refused(String),
    Failed(String),
    Lost(engine::Error),
}

impl ActFailure {
    /// Returns the failure for an error of an act that an engine may refuse.
    fn refused(error: engine::Error) -> Self {
        match error {
            lost @ engine::Error::Lost(_) => Self::Lost(lost),
            other => Self::Refused(format!("the engine refuses: {other}")),
        }
    }

    /// Returns the failure for an error of an act that every engine has to do.
    fn failed(error: engine::Error) -> Self {
        match error {
            lost @ engine::Error::Lost(_) => Self::Lost(lost),
            other => Self::Failed(other.to_string()),
        }
    }
}

/// Runs one schedule and compares every row it makes.
pub fn run(
    session: &mut dyn Session,
    schedule: &Schedule,
    baseline: &Baseline,
    limit: f64,
) -> Result<ScheduleRow, engine::Error> {
    let mut row = ScheduleRow {
        dtype: session.dtype(),
        name: schedule.name.clone(),
        why: schedule.why,
        steps: 0,
        max: f64::NAN,
        distance: f64::NAN,
        limit,
        position: None,
        note: None,
        verdict: Verdict::Pass,
    };
    let mut slots = BTreeMap::new();
    for act in &schedule.acts {
        match perform(session, act, baseline, &mut slots, &mut row) {
            Ok(()) => {}
            Err(ActFailure::Refused(why)) => {
                (row.note, row.verdict) = (Some(why), Verdict::Skip);
                break;
            }
            Err(ActFailure::Failed(why)) => {
                (row.note, row.verdict) = (Some(why), Verdict::Fail);
                break;
            }
            Err(ActFailure::Lost(error)) => return Err(error),
        }
    }
    for slot in slots.into_values() {
        if let Err(e) = session.release(slot.id) {
            row.note.get_or_insert(e.to_string());
            row.verdict = Verdict::Fail;
        }
    }
    if row.position.is_some() {
        row.verdict = Verdict::Fail;
    }
    Ok(row)
}

fn perform(
    session: &mut dyn Session,
    act: &Act,
    baseline: &Baseline,
    slots: &mut BTreeMap<usize, ScheduleSlot>,
    row: &mut ScheduleRow,
) -> Result<(), ActFailure> {
    match act {
        Act::Open(n, sequence) => {
            let id = session.open_slot();
            slots.insert(*n, ScheduleSlot { id, sequence: *sequence, seen: 0, first: 0 });
        }
        Act::Feed(parts) => {
            let mut chunks = Vec::new();
            let mut fed = Vec::new();
            let mut documents = Vec::new();
            for (n, count) in parts {
                let slot = slot_of(slots, *n)?;
                fed.push((slot, *count));
                documents.push(baseline.documents_of(slot.seen, *count));
                let tokens = &baseline.sequences[slot.sequence][slot.seen..slot.seen + count];
                chunks.push(Chunk { slot: slot.id, tokens, rows: OutputRows::All });
            }
            // If two experts have equal scores, another order of additions chooses the other one.
            let choices = baseline.chosen(&fed);
            let mut flips = RouterRow::new(Mode::Cumulative);
            let mut steer =
                RoutingProbe::new(&baseline.routers, session.dtype(), String::new(), &mut flips);
            let mut probe = CaptureProbe::of_choices(&mut steer, (&choices, 0));
            let masks: Vec<ChunkMask<'_>> = fed
                .iter()
                .zip(&documents)
                .map(|((slot, _), documents)| baseline.mask_of(slot.seen, documents))
                .collect();
            let causal = masks.iter().all(ChunkMask::is_causal);
            let masks = if causal { &[][..] } else { &masks[..] };
            let extra = ExtraInputs { masks, ..ExtraInputs::default() };
            let logits =
                session.step_with(&chunks, extra, &mut probe).map_err(ActFailure::failed)?;
            row.steps += 1;
            if logits.len() != parts.len() {
                return Err(ActFailure::Failed(format!(
                    "{} results for {} chunks",
                    logits.len(),
                    parts.len()
                )));
            }
            for ((n, count), logits) in parts.iter().zip(&logits) {
                let slot = slot_of(slots, *n)?.fed(*count);
                compare(baseline, slot, *count, &logits.data, row)?;
                slots.insert(*n, ScheduleSlot { seen: slot.seen + count, ..slot });
            }
        }
        Act::Stray(n, count) => {
            let slot = slot_of(slots, *n)?;
            let other = &baseline.sequences[(slot.sequence + 1) % baseline.sequences.len()];
            let tokens: Vec<u32> = other.iter().rev().copied().cycle().take(*count).collect();
            crate::run::feed_chunk(session, slot.id, &tokens, OutputRows::None, &mut NoProbe)
                .map_err(ActFailure::failed)?;
            row.steps += 1;
        }
        Act::Fork(from, to) => {
            let slot = slot_of(slots, *from)?;
            let id = session.fork(slot.id).map_err(ActFailure::refused)?;
            slots.insert(*to, ScheduleSlot { id, ..slot });
        }
        Act::Rewind(n) => {
            let slot = slot_of(slots, *n)?;
            session.truncate(slot.id, slot.seen).map_err(ActFailure::refused)?;
        }
        Act::Reload(n) => {
            let slot = slot_of(slots, *n)?;
            let bytes = session.save(slot.id).map_err(ActFailure::refused)?;
            session.release(slot.id).map_err(ActFailure::failed)?;
            slots.remove(n);
            let id = session.restore(&bytes).map_err(ActFailure::failed)?;
            slots.insert(*n, ScheduleSlot { id, ..slot });
        }
        Act::Release(n) => {
            let slot = slot_of(slots, *n)?;
            slots.remove(n);
            session.release(slot.id).map_err(ActFailure::failed)?;
        }
    }
    Ok(())
}

/// Returns a slot of a schedule.
fn slot_of(slots: &BTreeMap<usize, ScheduleSlot>, n: usize) -> Result<ScheduleSlot, ActFailure> {
    let slot = slots.get(&n).copied();
    slot.ok_or_else(|| ActFailure::Failed(format!("schedule has no slot {n}")))
}

fn compare(
    baseline: &Baseline,
    slot: ScheduleSlot,
    count: usize,
    logits: &[f32],
    row: &mut ScheduleRow,
) -> Result<(), ActFailure> {
    let vocab = baseline.vocab;
    if logits.len() != count * vocab {
        return Err(ActFailure::Failed(format!(
            "{} logits for {count} tokens of {vocab}",
            logits.len()
        )));
    }
    let want = &baseline.expected_rows(&slot)[slot.seen * vocab..];
    for (n, (got, want)) in
        logprobs(logits, vocab).chunks(vocab).zip(want.chunks(vocab)).enumerate()
    {
        // Equal up to NaN is not equal: no schedule may produce NaN.
        let bad = got.iter().any(|x| x.is_nan());
        let max = got.iter().zip(want).map(|(a, b)| gap(*a, *b)).fold(0.0, f32::max);
        let max = if bad { f64::INFINITY } else { f64::from(max) };
        // The limit is derived from distances of rows, which are root mean squares, too.
        let power: f64 = got.iter().zip(want).map(|(a, b)| f64::from(gap(*a, *b)).powi(2)).sum();
        let rms = if bad { f64::INFINITY } else { (power / vocab.max(1) as f64).sqrt() };
        (row.max, row.distance) = (row.max.max(max), row.distance.max(rms));
        let beyond = rms > row.limit || max > rule::largest_normal(row.limit, vocab);
        if beyond && row.position.is_none() {
            row.position = Some(slot.seen + n);
        }
    }
    Ok(())
}
