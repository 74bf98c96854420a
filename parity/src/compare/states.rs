//! States, directly: a state kept too narrow moves the log-probabilities less than their own
//! noise does, but it is plain to see in the state itself.

use engine::StateValue;
use registry::graph::StateKind;

use super::Comparison;
use crate::dump::{Phase, Tensor};
use crate::gate::{Gate, Mode, Subject};
use crate::order::StatePlace;
use crate::run::Trace;

/// A state on both sides, cut to the rows that can be compared.
struct Pair<'a> {
    ours: Vec<f32>,
    own: &'a [f32],
    base: Option<&'a [f32]>,
    rows: usize,
    /// Step (decode) or position (prefill) of each row.
    steps: Vec<usize>,
}

/// A reference may keep each key once for every query that reads it; so does this copy then.
fn repeated(ours: &StateValue, shape: &[usize]) -> StateValue {
    let mut ours = ours.clone();
    let (&[kept, heads, size], &[_, wanted, wide]) = (ours.shape.as_slice(), shape) else {
        return ours;
    };
    if size == wide && size > 0 && heads > 0 && wanted > heads && wanted.is_multiple_of(heads) {
        let copies = wanted / heads;
        let each = |head: &[f32]| head.repeat(copies);
        ours.data = ours.data.chunks_exact(size).flat_map(each).collect();
        ours.shape = vec![kept, wanted, size];
    }
    ours
}

/// True if shapes are equal but for axes of size 1, which hold no order of numbers.
fn alike(ours: &[usize], own: &[usize]) -> bool {
    let wide = |axis: &&usize| **axis != 1;
    ours.iter().filter(wide).eq(own.iter().filter(wide))
}

impl Comparison<'_> {
    pub(super) fn states(&self, phase: Phase, mode: Mode, trace: &Trace) -> Vec<Gate> {
        let mut gates = Vec::new();
        for info in &self.dump.manifest.states {
            for part in &info.parts {
                let key = (info.layer, part.clone());
                let Some(place) = self.order.states.get(&key) else { continue };
                let reference = (phase, info.layer, part.clone());
                let Some(own) = self.own.states.get(&reference) else { continue };
                let base = self.base.and_then(|side| side.states.get(&reference));
                let whole = self.own.states.get(&(Phase::Prefill, info.layer, part.clone()));
                let whole = whole.filter(|_| mode == Mode::Local && phase == Phase::Decode);
                let fed = whole.and_then(|whole| self.fed_prefix(place, own, whole));
                let own = fed.as_ref().unwrap_or(own);
                // What a convolution or recurrence keeps is read by later steps only: see `order`.
                let counts_in = match place.kind {
                    StateKind::Attention | StateKind::Latent | StateKind::Index => phase,
                    StateKind::Conv | StateKind::Recurrent => Phase::Decode,
                };
                let subject = Subject::State {
                    name: place.label.clone(),
                    layer: info.layer,
                    part: part.clone(),
                };
                let mut gate = Gate::new(subject, &self.prompt.name, counts_in, mode, place.place);
                if counts_in != phase {
                    gate.moment = Some("after prefill");
                }
                let snapshots: Vec<&StateValue> = trace
                    .states
                    .iter()
                    .filter_map(|s| s.iter().find(|v| v.layer == info.layer && v.part == *part))
                    .collect();
                gates.push(self.state(gate, place, phase, &snapshots, own, base));
            }
        }
        gates
    }

    /// Keys and values after the steps, those of the prefix as the whole prefill left them: it is its taps that the prefix
    /// was fed, and the reference's own two runs of it differ where they are of different lengths.
    fn fed_prefix(&self, place: &StatePlace, own: &Tensor, whole: &Tensor) -> Option<Tensor> {
        let recurs = matches!(place.kind, StateKind::Conv | StateKind::Recurrent);
        if recurs || own.shape != whole.shape || own.data.len() != whole.data.len() {
            return None;
        }
        let mut own = own.clone();
        let kept = own.shape.first().copied().unwrap_or(0);
        let first = self.prompt.tokens.len().saturating_sub(kept);
        let width: usize = own.shape.iter().skip(1).product();
        let of_prefix = self.prompt.split.saturating_sub(first).min(kept) * width;
        own.data[..of_prefix].copy_from_slice(&whole.data[..of_prefix]);
        Some(own)
    }

    fn state(
        &self,
        gate: Gate,
        place: &StatePlace,
        phase: Phase,
        ours: &[&StateValue],
        own: &Tensor,
        base: Option<&Tensor>,
    ) -> Gate {
        if ours.len() != if phase == Phase::Decode { self.prompt.steps() + 1 } else { 1 } {
            return gate.failed("the engine does not show this state");
        }
        let pair = match place.kind {
            StateKind::Attention | StateKind::Latent | StateKind::Index => {
                self.attention(place, phase, ours, own, base)
            }
            StateKind::Conv | StateKind::Recurrent => self.block(phase, ours, own, base),
        };
        let pair = match pair {
            Ok(pair) => pair,
            Err(finding) => return gate.failed(finding),
        };
        let step_of = |row: usize| pair.steps.get(row).copied().unwrap_or(0);
        let mut gate =
            self.judge(gate, &pair.ours, pair.own, pair.base, pair.rows, own.dtype, step_of);
        if gate.kept_narrow(&pair.ours, pair.own) {
            gate.step = pair.steps.iter().copied().min();
        }
        gate
    }

    /// Keys or values: `[kept, heads, dim]`, the last positions of those fed.
    fn attention<'a>(
        &self,
        place: &StatePlace,
        phase: Phase,
        ours: &[&StateValue],
        own: &'a Tensor,
        base: Option<&'a Tensor>,
    ) -> Result<Pair<'a>, String> {
        let fed = self.prompt.tokens.len();
        let ours = ours.last().ok_or("the engine does not show this state")?;
        let width: usize = own.shape.iter().skip(1).product();
        let ours = &repeated(ours, &own.shape);
        let axes = |shape: &'_ [usize]| shape.get(1..).unwrap_or_default().to_vec();
        if !alike(&axes(&ours.shape), &axes(&own.shape)) {
            return Err(format!(
                "a position is {:?} here and {:?} in the reference",
                axes(&ours.shape),
                axes(&own.shape)
            ));
        }
        let window = self.model.graph.states.get(place.state.0).and_then(|s| s.window);
        let due = window.map_or(fed, |w| w.saturating_sub(1).min(fed));
        let kept = |shape: &[usize]| shape.first().copied().unwrap_or(0);
        let (have, want) = (kept(&ours.shape), kept(&own.shape));
        if have < want.min(due) || have > fed {
            return Err(format!("{have} positions are kept; the reference keeps {want}"));
        }
        let rows = have.min(want);
        let step = |position: usize| match phase {
            Phase::Prefill => position,
            Phase::Decode => (position + 1).saturating_sub(self.prompt.split),
        };
        let tail = |data: &'a [f32]| data.get(data.len().checked_sub(rows * width)?..);
        let short = "it holds fewer numbers than its shape says";
        Ok(Pair {
            ours: ours
                .data
                .get(ours.data.len().saturating_sub(rows * width)..)
                .filter(|d| d.len() == rows * width)
                .ok_or(short)?
                .to_vec(),
            own: tail(&own.data).ok_or(short)?,
            base: base.filter(|b| b.shape == own.shape).and_then(|b| tail(&b.data)),
            rows,
            steps: (fed - rows..fed).map(step).collect(),
        })
    }

    /// The last inputs of a convolution, or what a recurrence carries: one block per snapshot.
    fn block<'a>(
        &self,
        phase: Phase,
        ours: &[&StateValue],
        own: &'a Tensor,
        base: Option<&'a Tensor>,
    ) -> Result<Pair<'a>, String> {
        // A single snapshot where one per step could be: the reference is believed only at the
        // end (`truth: prefill`), or this is the prefill.
        let single = ours.iter().all(|v| alike(&v.shape, &own.shape));
        let shape = if single { &own.shape[..] } else { own.shape.get(1..).unwrap_or_default() };
        let ours = if single { &ours[ours.len() - 1..] } else { ours };
        if let Some(other) = ours.iter().find(|v| !alike(&v.shape, shape)) {
            return Err(format!("it is {:?} here and {shape:?} in the reference", other.shape));
        }
        let data: Vec<f32> = ours.iter().flat_map(|v| v.data.iter().copied()).collect();
        if data.len() != own.data.len() {
            return Err(format!(
                "{} snapshots here and {:?} in the reference",
                ours.len(),
                own.shape
            ));
        }
        let steps = match (single, phase) {
            (false, _) => (0..ours.len()).collect(),
            (true, Phase::Decode) => vec![self.prompt.steps()],
            (true, Phase::Prefill) => vec![0],
        };
        let base = base.filter(|b| b.shape == own.shape).map(|b| b.data.as_slice());
        Ok(Pair { ours: data, own: &own.data, base, rows: ours.len(), steps })
    }
}
