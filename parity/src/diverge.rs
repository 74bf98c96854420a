//! Finds where two runs part: the first failed gate in order of execution.

use registry::model::Model;

use crate::dump::Phase;
use crate::gate::{Gate, Mode, Subject, Verdict};
use crate::hints;
use crate::order::{LAST, Moment};
use crate::report::Divergence;

/// When the fault of a failed gate happens.
fn moment(gate: &Gate) -> Moment {
    let place = if gate.subject == Subject::Logprobs { LAST } else { gate.place };
    // Positions of a prefill are computed together: only the place in the graph orders them.
    let step = if gate.phase == Phase::Decode { gate.step.unwrap_or(0) } else { 0 };
    Moment { phase: gate.phase, step, place }
}

/// Finds the first failed gate of one mode in order of execution.
pub(crate) fn gate(gates: &[Gate], mode: Mode) -> Option<&Gate> {
    gates.iter().filter(|g| g.mode == mode && g.fails()).min_by_key(|g| moment(g))
}

/// The first failed gate of one mode.
pub(crate) fn first(model: &Model, gates: &[Gate], mode: Mode) -> Option<Divergence> {
    let gate = gate(gates, mode)?;
    Some(Divergence {
        subject: gate.subject.clone(),
        mode,
        prompt: gate.prompt.clone(),
        phase: gate.phase,
        step: gate.step.unwrap_or(0),
        message: message(gate),
        hints: hints::hints(model, gate, gates),
    })
}

/// What is wrong with a failed gate, in one line.
pub(crate) fn message(gate: &Gate) -> String {
    let numbers = gate.worst_bound().filter(|b| !b.holds()).map(|b| {
        let times = b.value / b.limit;
        let measure = match (b.measure, &gate.subject) {
            ("noise", _) => "largest difference, in units of the op's own noise,",
            ("gain", _) => "scaled, in units of the op's own noise, by",
            ("flips", _) => "share of elements that are not the reference's, beyond what rounding in f32 explains:",
            ("units", _) => "mean square difference, in units of rounding, beyond what rounding in f32 explains:",
            ("max", _) => "max of |dlogprob|",
            (_, Subject::Logprobs) => "rms of |dlogprob|",
            _ => "rms of |d| / rms",
        };
        format!("{measure} {:.1e}, bound {:.1e} ({times:.1}x)", b.value, b.limit)
    });
    match (&gate.finding, numbers) {
        (Some(finding), Some(numbers)) => format!("{finding}; {numbers}"),
        (Some(finding), None) => finding.clone(),
        (None, Some(numbers)) => numbers,
        (None, None) if gate.verdict == Verdict::Fail => "failed".to_owned(),
        (None, None) => "within its bounds".to_owned(),
    }
}
