//! Compares what an engine did in one dtype, on one prompt, with the reference.

mod logprobs;
mod states;
mod structure;
mod taps;

use std::collections::BTreeMap;

use registry::dtype::Dtype;
use registry::model::Model;

use crate::dump::{self, Dump, Logprobs, Phase, Prompt, Tensor, Truth};
use crate::flips;
use crate::gate::{Gate, Mode, Subject};
use crate::metrics::{TensorError, tensor_error};
use crate::order::Order;
use crate::run::{Reference, Trace};
use crate::tolerance::{Bounds, F32_BEHIND_RECURRENT, F32_FELT_BY_TAPS, F32_RECURRENT};

pub(crate) use structure::structure;

/// The reference's side of one prompt in one dtype.
#[derive(Debug, Default)]
pub(crate) struct Side {
    /// Log-probabilities, by phase.
    pub(crate) logprobs: BTreeMap<Phase, Logprobs>,
    /// Decode's own rows, where those of prefill stand in for them.
    pub(crate) stepped: Option<Logprobs>,
    /// Taps that the graph has too.
    pub(crate) taps: Reference,
    /// States by phase, layer and part.
    pub(crate) states: BTreeMap<(Phase, usize, String), Tensor>,
}

impl Side {
    /// Reads it. Where only the reference's prefill is to be believed, its rows stand in
    /// for decode's.
    pub(crate) fn load(
        dump: &Dump,
        run: Dtype,
        prompt: &Prompt,
        order: &Order,
    ) -> Result<Self, dump::Error> {
        let mut side = Self::default();
        let substitute = dump.manifest.audit.truth == Truth::Prefill;
        for phase in Phase::ALL {
            if let Some(rows) = dump.logprobs(run, prompt, phase)? {
                side.logprobs.insert(phase, rows);
            }
        }
        if substitute && let Some(rows) = side.logprobs.get(&Phase::Prefill) {
            let tail = tail_rows(rows, prompt.split);
            side.stepped = side.logprobs.insert(Phase::Decode, tail);
        }
        side.taps.prefill_choices = dump.choices(run, prompt, Phase::Prefill.name())?;
        side.taps.decode_choices = if substitute {
            let tail =
                |(module, rows): (&String, _)| (module.clone(), tail_tensor(rows, prompt.split));
            side.taps.prefill_choices.iter().map(tail).collect()
        } else {
            dump.choices(run, prompt, Phase::Decode.name())?
        };
        if !prompt.taps {
            return Ok(side);
        }
        for (tap, info) in &dump.manifest.taps.0 {
            if !order.taps.contains_key(tap) {
                continue;
            }
            if info.has(Phase::Prefill)
                && let Some(tensor) = dump.tap(run, prompt, Phase::Prefill, tap)?
            {
                if substitute {
                    side.taps.decode.insert(tap.clone(), tail_tensor(&tensor, prompt.split));
                }
                side.taps.prefill.insert(tap.clone(), tensor);
            }
            if info.has(Phase::Decode)
                && !substitute
                && let Some(tensor) = dump.tap(run, prompt, Phase::Decode, tap)?
            {
                side.taps.decode.insert(tap.clone(), tensor);
            }
        }
        for state in &dump.manifest.states {
            for part in &state.parts {
                for phase in Phase::ALL {
                    let from = if substitute { Phase::Prefill } else { phase };
                    if let Some(tensor) = dump.state(run, prompt, from, state.layer, part)? {
                        side.states.insert((phase, state.layer, part.clone()), tensor);
                    }
                }
            }
        }
        Ok(side)
    }
}

fn tail_rows(rows: &Logprobs, from: usize) -> Logprobs {
    let from = from.min(rows.rows);
    Logprobs {
        rows: rows.rows - from,
        width: rows.width,
        ids: rows.ids.as_ref().map(|ids| ids[from * rows.width..].to_vec()),
        values: rows.values[from * rows.width..].to_vec(),
        targets: rows.targets.as_ref().map(|t| t[from..].to_vec()),
    }
}

fn tail_tensor(tensor: &Tensor, from: usize) -> Tensor {
    let width: usize = tensor.shape.iter().skip(1).product();
    let mut shape = tensor.shape.clone();
    if let Some(rows) = shape.first_mut() {
        *rows = rows.saturating_sub(from);
    }
    let data = tensor.data.get(from * width..).unwrap_or_default().to_vec();
    Tensor { dtype: tensor.dtype, shape, data }
}

/// What is compared, and with what.
pub(crate) struct Comparison<'a> {
    pub(crate) model: &'a Model,
    pub(crate) order: &'a Order,
    pub(crate) dump: &'a Dump,
    pub(crate) dtype: Dtype,
    pub(crate) prompt: &'a Prompt,
    /// The reference at this dtype.
    pub(crate) own: &'a Side,
    /// The reference at f32, for a 16-bit run, if the dump has it.
    pub(crate) base: Option<&'a Side>,
    /// Most that an f32 run may move a log-probability.
    pub(crate) f32_logprob: f64,
    /// Whether rounding alone moves the model's taps further than usual.
    pub(crate) feels_rounding: bool,
    /// How much wider ops are judged of a model that feels rounding more than usual.
    pub(crate) felt_by_ops: f64,
    /// Whether the reference rounds rows to few bits: each of its own runs is then as right.
    pub(crate) rounds: bool,
}

impl Comparison<'_> {
    /// All gates of one phase. Log-probabilities are judged only where errors may add up:
    /// fed by the reference, they follow from the last tap.
    pub(crate) fn gates(&self, phase: Phase, mode: Mode, trace: &Trace) -> Vec<Gate> {
        let mut gates = Vec::new();
        if mode == Mode::Cumulative {
            gates.extend(self.logprobs(phase, trace));
        }
        if self.prompt.taps {
            gates.extend(self.taps(phase, mode, trace));
            gates.extend(self.states(phase, mode, trace));
        }
        gates
    }

    /// How much wider an f32 run is judged because of a state that adds up over all positions.
    fn adds_up(&self, gate: &Gate) -> f64 {
        match &gate.subject {
            Subject::State { part, .. } if part == "recurrent" => F32_RECURRENT,
            Subject::Tap { .. } if self.order.behind_recurrence.contains(&gate.place.node) => {
                F32_BEHIND_RECURRENT
            }
            _ => 1.0,
        }
    }

    /// Measures `ours` in the way that the dtype and the mode call for, and judges it.
    /// `own` is the reference at this dtype, which it keeps in `kept`, and `base` at f32.
    #[expect(clippy::too_many_arguments, reason = "two sides of one comparison")]
    fn judge(
        &self,
        gate: Gate,
        ours: &[f32],
        own: &[f32],
        base: Option<&[f32]>,
        rows: usize,
        kept: Dtype,
        step_of: impl Fn(usize) -> usize,
    ) -> Gate {
        if own.iter().any(|x| !x.is_finite()) {
            return gate.unproven(self.dtype);
        }
        let mode = gate.mode;
        if self.dtype == Dtype::F32 || mode == Mode::Local {
            let settles = self.rounds && self.dtype == Dtype::F32;
            let settled = settles.then(|| flips::settled(ours, own, rows, mode));
            let error = tensor_error(settled.as_deref().unwrap_or(ours), own, rows);
            let bounds = match (self.dtype, mode) {
                (Dtype::F32, Mode::Cumulative) => {
                    let felt = if self.feels_rounding { F32_FELT_BY_TAPS } else { 1.0 };
                    let bounds = Bounds::f32_cumulative().widened(self.adds_up(&gate).max(felt));
                    bounds.of_handful(error.spread.count)
                }
                (Dtype::F32, Mode::Local) => {
                    let bounds =
                        Bounds::f32_local().widened(self.adds_up(&gate) * self.felt_by_ops);
                    bounds.of_few(error.spread.count)
                }
                (dtype, _) => Bounds::local(dtype, &error),
            };
            let mut gate = gate.measured(&error, &bounds, step_of);
            let narrow = mode == Mode::Local && self.dtype != Dtype::F32 && kept == self.dtype;
            gate.unequal = narrow.then_some(error.unequal);
            return gate;
        }
        let Some(base) = base.filter(|base| base.len() == ours.len()) else {
            return gate.skipped("the dump has no f32 run to measure the noise floor with");
        };
        let error = tensor_error(ours, base, rows);
        let floor: TensorError = tensor_error(own, base, rows);
        let bounds = Bounds::noise(self.dtype, &floor);
        let mut gate = gate.measured(&error, &bounds, step_of);
        gate.floor = Some(floor.spread);
        gate
    }
}
