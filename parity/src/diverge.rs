//! Finds the first divergence of two runs: the first failed gate in order of execution.

use registry::model::Model;

use crate::dump::Phase;
use crate::gate::{Gate, Mode, Subject};
use crate::hints;
use crate::order::{ExecutionPoint, LAST};
use crate::report::Divergence;

/// Returns the moment at which the fault of a failed gate occurs.
fn moment(gate: &Gate) -> ExecutionPoint {
    let place = if gate.subject == Subject::Logprobs { LAST } else { gate.place };
    // Positions of a prefill are computed together: only the node order of the graph separates them.
    let step = if gate.phase == Phase::Decode { gate.step.unwrap_or(0) } else { 0 };
    ExecutionPoint { phase: gate.phase, step, place }
}

/// Finds the first failed gate of one mode in order of execution.
pub(crate) fn gate(gates: &[Gate], mode: Mode) -> Option<&Gate> {
    gates.iter().filter(|g| g.mode == mode && g.fails()).min_by_key(|g| moment(g))
}

/// Describes the first failed gate of one mode.
pub(crate) fn first(model: &Model, gates: &[Gate], mode: Mode) -> Option<Divergence> {
    let gate = gate(gates, mode)?;
    Some(Divergence {
        subject: gate.subject.clone(),
        mode,
        prompt: gate.prompt.clone(),
        phase: gate.phase,
        step: gate.step.unwrap_or(0),
        message: gate.message(),
        hints: hints::hints(model, gate, gates),
    })
}
