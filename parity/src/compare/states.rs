//! Compares states directly. A state stored in too few bits changes the log-probabilities by less than
//! their noise, but the error is plain in the state itself.
//!
//! Phases and states are compared separately ([decision 9](../../../docs/decisions/0009-phases-and-states-apart.md)).

use std::collections::BTreeSet;

use engine::StateValue;
use registry::graph::{StateId, StateKind};

use super::{Comparison, PairedRows};
use crate::dump::{DumpTensor, Phase};
use crate::gate::{Gate, Mode, Subject};
use crate::order::StatePlace;
use crate::run::{InitialStates, StateSnapshot, Trace};

/// Repeats the engine's keys per query head, if the reference stores them that way.
fn repeated(ours: &StateValue, shape: &[usize]) -> StateValue {
    let mut ours = ours.clone();
    let &[positions, heads, size] = ours.shape.as_slice() else { return ours };
    let &[_, query_heads, width] = shape else { return ours };
    let repeats = heads > 0 && query_heads > heads && query_heads.is_multiple_of(heads);
    if size == width && size > 0 && repeats {
        let copies = query_heads / heads;
        ours.data =
            ours.data.chunks_exact(size).flat_map(|head: &[f32]| head.repeat(copies)).collect();
        ours.shape = vec![positions, query_heads, size];
    }
    ours
}

/// True if shapes are equal except for axes of size 1, which do not affect the order of values.
fn alike(ours: &[usize], theirs: &[usize]) -> bool {
    ours.iter().filter(|axis| **axis != 1).eq(theirs.iter().filter(|axis| **axis != 1))
}

/// True for states with a row per position; convolutions and recurrences store one block.
fn has_rows(kind: StateKind) -> bool {
    matches!(kind, StateKind::Attention | StateKind::Latent | StateKind::Index | StateKind::Pooled)
}

impl Comparison<'_> {
    pub(super) fn states(
        &self,
        phase: Phase,
        mode: Mode,
        trace: &Trace,
    ) -> Vec<(Gate, Result<PairedRows<'_>, String>)> {
        let mut pairs = Vec::new();
        for info in &self.dump.manifest.states {
            for part in &info.parts {
                let key = (info.layer, part.clone());
                let Some(place) = self.order.states.get(&key) else { continue };
                let reference = (phase, info.layer, part.clone());
                let Some(tensor) = self.own.states.get(&reference) else { continue };
                let base =
                    self.base.states.get(&reference).filter(|base| base.shape == tensor.shape);
                // Blocks of convolutions and recurrences are only read by later steps: see `order`.
                let counts_in = if has_rows(place.kind) { phase } else { Phase::Decode };
                let subject = Subject::State {
                    name: place.label.clone(),
                    layer: info.layer,
                    part: part.clone(),
                };
                let mut gate = Gate::new(subject, &self.prompt.name, counts_in, mode, place.place);
                if counts_in != phase {
                    gate.moment = Some("after prefill");
                }
                let moments: Vec<(usize, &StateValue)> = trace
                    .states
                    .iter()
                    .filter_map(|StateSnapshot { seen, values }| {
                        let mut values = values.iter();
                        Some((*seen, values.find(|v| v.layer == info.layer && v.part == *part)?))
                    })
                    .collect();
                let rows = match (moments.is_empty(), has_rows(place.kind), phase, mode) {
                    (true, ..) => Err("the engine does not show this state".to_owned()),
                    (_, true, Phase::Decode, Mode::Local) => self.written(&moments, tensor),
                    (_, true, ..) => self.keys_and_values(place, phase, &moments, tensor, base),
                    (_, false, ..) => self.blocks(phase, &moments, tensor, base),
                };
                if rows.as_ref().is_ok_and(|rows| rows.count == 0) {
                    continue; // no step of this prompt ends at a snapshot
                }
                pairs.push((gate, rows));
            }
        }
        pairs
    }

    /// Returns the step (decode) or position (prefill) of the values written at a position.
    fn step(&self, phase: Phase, position: usize) -> usize {
        match phase {
            Phase::Prefill => position,
            Phase::Decode => (position + 1).saturating_sub(self.prompt.split),
        }
    }

    /// Compares keys or values that single steps wrote.
    fn written<'a>(
        &self,
        moments: &[(usize, &StateValue)],
        reference: &'a DumpTensor,
    ) -> Result<PairedRows<'a>, String> {
        let width: usize = reference.shape.iter().skip(1).product();
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        let mut steps = Vec::new();
        for &(seen, value) in moments {
            let value = repeated(value, &reference.shape);
            let from = value
                .data
                .len()
                .checked_sub(width)
                .ok_or_else(|| format!("a position is {:?} here", value.shape))?;
            same_row(&value.shape, &reference.shape)?;
            ours.extend_from_slice(&value.data[from..]);
            theirs.extend_from_slice(
                reference.data.get((seen - 1) * width..seen * width).unwrap_or_default(),
            );
            steps.push(self.step(Phase::Decode, seen - 1));
        }
        Ok(PairedRows {
            ours,
            own: theirs.into(),
            base: None,
            count: steps.len(),
            steps,
            kept: reference.dtype,
        })
    }

    /// Compares keys or values: `[kept, heads, dim]`, the last positions of those fed.
    fn keys_and_values<'a>(
        &self,
        place: &StatePlace,
        phase: Phase,
        moments: &[(usize, &StateValue)],
        reference: &'a DumpTensor,
        base: Option<&'a DumpTensor>,
    ) -> Result<PairedRows<'a>, String> {
        let fed = self.prompt.tokens.len();
        let ours = moments.last().ok_or("the engine does not show this state")?.1;
        let width: usize = reference.shape.iter().skip(1).product();
        let ours = &repeated(ours, &reference.shape);
        same_row(&ours.shape, &reference.shape)?;
        let window = self.model.graph.states.get(place.state.0).and_then(|s| s.window);
        let due = window.map_or(fed, |w| w.saturating_sub(1).min(fed));
        let kept_positions = ours.shape.first().copied().unwrap_or(0);
        let want = reference.shape.first().copied().unwrap_or(0);
        if kept_positions < want.min(due) || kept_positions > fed {
            return Err(format!("{kept_positions} positions are kept; the reference keeps {want}"));
        }
        let count = kept_positions.min(want);
        let short = "it holds fewer numbers than its shape says";
        let mine = ours.data.len().checked_sub(count * width).ok_or(short)?;
        Ok(PairedRows {
            ours: ours.data[mine..].to_vec(),
            own: last_numbers(&reference.data, count * width).ok_or(short)?.into(),
            base: base.and_then(|base| last_numbers(&base.data, count * width)).map(Into::into),
            count,
            steps: (fed - count..fed).map(|position| self.step(phase, position)).collect(),
            kept: reference.dtype,
        })
    }

    /// Compares blocks: the last inputs of a convolution, or a recurrent state. There is one block after
    /// the whole prompt, or one for each snapshot.
    fn blocks<'a>(
        &self,
        phase: Phase,
        moments: &[(usize, &StateValue)],
        reference: &'a DumpTensor,
        base: Option<&'a DumpTensor>,
    ) -> Result<PairedRows<'a>, String> {
        let lengths = match phase {
            Phase::Prefill => vec![self.prompt.tokens.len()],
            Phase::Decode => self.prompt.snapshots(),
        };
        let shape = if phase == Phase::Prefill {
            &reference.shape[..]
        } else {
            reference.shape.get(1..).unwrap_or_default()
        };
        let width: usize = shape.iter().product();
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        let mut before = Vec::new();
        let mut steps = Vec::new();
        for &(seen, value) in moments {
            let Ok(n) = lengths.binary_search(&seen) else { continue };
            if !alike(&value.shape, shape) {
                return Err(format!("it is {:?} here and {shape:?} in the reference", value.shape));
            }
            let at = n * width..(n + 1) * width;
            ours.extend_from_slice(&value.data);
            theirs.extend_from_slice(
                reference.data.get(at.clone()).ok_or("the dump lacks a snapshot")?,
            );
            before.extend_from_slice(base.and_then(|base| base.data.get(at)).unwrap_or_default());
            steps.push(if phase == Phase::Prefill { 0 } else { seen - self.prompt.split });
        }
        Ok(PairedRows {
            ours,
            own: theirs.into(),
            base: (!before.is_empty()).then_some(before.into()),
            count: steps.len(),
            steps,
            kept: reference.dtype,
        })
    }

    /// Returns the parts of states that the dump has, by layer.
    fn recorded_parts(&self) -> BTreeSet<(usize, String)> {
        let states = self.dump.manifest.states.iter();
        states.flat_map(|s| s.parts.iter().map(|p| (s.layer, p.clone()))).collect()
    }
}

impl InitialStates for Comparison<'_> {
    /// True if the model keeps a part of a state that the dump lacks.
    fn keeps_more(&self) -> bool {
        let recorded = self.recorded_parts();
        let mut parts = self.order.states.keys();
        parts.any(|key| !recorded.contains(key))
    }

    /// Returns the reference's states after `seen` tokens of its decode, as the initial states of a slot. Parts that the
    /// reference does not keep are taken from `computed`, the states after as many tokens on its inputs. Returns none if
    /// the dump does not have all others.
    fn seed(&self, seen: usize, computed: &[StateValue]) -> Option<Vec<StateValue>> {
        let mut values = Vec::new();
        let recorded = self.recorded_parts();
        if !recorded.iter().all(|key| self.order.states.contains_key(key)) {
            return None;
        }
        for (n, state) in self.model.graph.states.iter().enumerate() {
            for part in &state.parts {
                if !recorded.contains(&(state.layer, part.name.clone())) {
                    let value = computed
                        .iter()
                        .find(|value| value.state == StateId(n) && value.part == part.name);
                    values.push(value?.clone());
                    continue;
                }
                let tensor =
                    self.own.states.get(&(Phase::Decode, state.layer, part.name.clone()))?;
                let width: usize = tensor.shape.iter().skip(1).product();
                let (shape, data) = if has_rows(state.kind) {
                    let from = state.window.map_or(0, |w| (seen + 1).saturating_sub(w));
                    let data = tensor.data.get(from * width..seen * width)?;
                    let data = first_copies(data, &tensor.shape, &part.shape)?;
                    ([&[seen - from][..], &part.shape].concat(), data)
                } else {
                    let at = self.prompt.snapshots().binary_search(&seen).ok()?;
                    (part.shape.clone(), tensor.data.get(at * width..(at + 1) * width)?.to_vec())
                };
                if data.len() != shape.iter().product::<usize>() {
                    return None;
                }
                values.push(StateValue {
                    state: StateId(n),
                    layer: state.layer,
                    part: part.name.clone(),
                    shape,
                    data,
                });
            }
        }
        Some(values)
    }
}

/// Returns an error for positions of another shape.
fn same_row(ours: &[usize], theirs: &[usize]) -> Result<(), String> {
    let ours = ours.get(1..).unwrap_or_default();
    let theirs = theirs.get(1..).unwrap_or_default();
    if alike(ours, theirs) {
        return Ok(());
    }
    Err(format!("a position is {ours:?} here and {theirs:?} in the reference"))
}

/// Returns the last numbers; none if there are fewer.
fn last_numbers(numbers: &[f32], count: usize) -> Option<&[f32]> {
    numbers.get(numbers.len().checked_sub(count)?..)
}

/// Returns keys or values once per head, if the reference stores them once per query head.
fn first_copies(data: &[f32], shape: &[usize], part: &[usize]) -> Option<Vec<f32>> {
    let &[_, query_heads, size] = shape else { return Some(data.to_vec()) };
    let &[heads, width] = part else { return Some(data.to_vec()) };
    if size != width || query_heads == heads {
        return Some(data.to_vec());
    }
    let copies = query_heads.checked_div(heads).filter(|copies| copies * heads == query_heads)?;
    Some(data.chunks_exact(size).step_by(copies).flatten().copied().collect())
}
