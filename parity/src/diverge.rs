//! Finds the first divergence of two runs: the first failed gate in order of execution.

use registry::model::Model;

use crate::dump::Phase;
use crate::gate::{Gate, Mode, Subject, Verdict};
use crate::hints;
use crate::order::{ExecutionPoint, LAST};
use crate::report::{Divergence, RunReport};

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

/// Completes the first divergence of a run whose gates all hold: by a router, or by a greedy token.
pub(crate) fn by_choices(run: &mut RunReport) {
    if run.headline().is_some() {
        return;
    }
    let mut failed = run.routers.iter().filter(|row| row.verdict == Verdict::Fail);
    let router = failed.find_map(|row| {
        let flip = row.flips.iter().find(|flip| flip.margin > flip.bound)?;
        let (prompt, phase) = flip.place.rsplit_once(' ').unwrap_or((&flip.place, ""));
        let phase = if phase == Phase::Prefill.name() { Phase::Prefill } else { Phase::Decode };
        Some(Divergence {
            subject: Subject::Tap { name: flip.router.clone() },
            mode: row.mode,
            prompt: prompt.to_owned(),
            phase,
            step: flip.row + usize::from(phase == Phase::Decode),
            message: format!(
                "other experts are chosen: the scores are {:.1e} of their spread apart, and rounding explains {:.1e}",
                flip.margin, flip.bound
            ),
            hints: Vec::new(),
        })
    });
    match router.or_else(|| failed_token(run)) {
        Some(first) if first.mode == Mode::Local => run.first_local = Some(first),
        first => run.first = first,
    }
}

/// Returns the divergence of the first greedy token that differs by more than noise.
fn failed_token(run: &RunReport) -> Option<Divergence> {
    let row = run.greedy.iter().find(|row| row.verdict == Verdict::Fail)?;
    let flip = row.first_flip?;
    Some(Divergence {
        subject: Subject::Logprobs,
        mode: Mode::Cumulative,
        prompt: row.prompt.clone(),
        phase: Phase::Decode,
        step: flip.index,
        message: format!(
            "greedy token {} after the prompt is another one, by {:.1e} nats; noise explains {:.1e}",
            flip.index, flip.margin, flip.noise
        ),
        hints: Vec::new(),
    })
}
