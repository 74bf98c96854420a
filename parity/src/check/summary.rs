//! Summarizes the gates of a run.

use std::collections::BTreeSet;

use registry::dtype::Dtype;
use registry::model::Model;

use crate::diverge;
use crate::dump::{Dump, Phase};
use crate::fit::MeasureRatios;
use crate::gate::{Gate, Mode, Subject, Verdict};
use crate::order::ExecutionOrder;
use crate::report::{GreedyRow, OpCoverage, PhaseRow, RunReport, Uncovered};
use crate::route::RouterRow;
use crate::rule;

/// Computes the coverage of a run's gates: see [`OpCoverage`].
pub(super) fn coverage(
    model: &Model,
    order: &ExecutionOrder,
    dump: &Dump,
    run: &RunReport,
) -> OpCoverage {
    let skipped =
        run.gates.iter().any(|gate| gate.mode == Mode::Local && gate.verdict == Verdict::Skip);
    let prefill = last_position(dump, run, Phase::Prefill);
    let decode = last_position(dump, run, Phase::Decode);
    let is_complete = prefill.is_some() && decode.is_some() && !skipped && order.shows_states;
    let seen =
        run.gates.iter().filter(|gate| gate.mode == Mode::Local && gate.verdict != Verdict::Skip);
    let seen = seen.filter_map(|gate| Some((gate.subject.to_string(), gate.sees?)));
    let routers = run
        .routers
        .iter()
        .filter(|row| row.mode == Mode::Local)
        .flat_map(|row| row.reached.values());
    let (reached, all) = routers
        .fold((0, 0), |(reached, all), (width, experts)| (reached + experts.len(), all + width));
    let windows: BTreeSet<usize> =
        model.graph.states.iter().filter_map(|state| state.window).collect();
    let judged = Phase::ALL.into_iter().flat_map(|phase| judged_ops(run, phase));
    let strays = judged.filter(|gate| !gate.fails()).map(|gate| gate.off.len()).sum();
    let last = prefill.max(decode);
    OpCoverage {
        prefill,
        decode,
        whole: is_complete,
        weakest: seen.max_by(|a, b| a.1.total_cmp(&b.1)),
        experts: (all > 0).then_some((reached, all)),
        windows: windows
            .into_iter()
            .filter(|window| last.is_none_or(|last| last < *window))
            .collect(),
        strays,
    }
}

/// Returns the comparisons of single ops of a phase that were judged.
pub(super) fn judged_ops(run: &RunReport, phase: Phase) -> impl Iterator<Item = &Gate> {
    run.gates.iter().filter(move |gate| {
        let counts = gate.moment.is_none() && gate.phase == phase;
        gate.mode == Mode::Local && counts && gate.verdict != Verdict::Skip
    })
}

/// Returns the last position of a phase at which single ops were judged.
fn last_position(dump: &Dump, run: &RunReport, phase: Phase) -> Option<usize> {
    let names: BTreeSet<&str> = judged_ops(run, phase).map(|gate| gate.prompt.as_str()).collect();
    let prompts = dump.manifest.prompts.iter().filter(|prompt| names.contains(&*prompt.name));
    prompts.filter_map(|prompt| prompt.positions(phase).last().copied()).max()
}

/// True if more tokens went to other experts than multiplied rounding explains.
fn is_misrouted(row: &RouterRow) -> bool {
    row.verdict == Verdict::Fail && (row.mode == Mode::Local || row.unexplained() > rule::STRAYS)
}

/// True if a gate that fails is too far away for multiplied rounding. Honest log-probabilities are 3.9 times beyond their
/// bound at most (docs/proof.md); chaos that is farther away than the rule's factor again is a fault. States have rows
/// whose ops were not compared.
fn is_unrelated(gate: &Gate) -> bool {
    let far = gate.worst_bound().is_none_or(|bound| bound.value > rule::FACTOR * bound.limit);
    match gate.subject {
        Subject::Logprobs => {
            far || gate.worst_bound().is_some_and(|bound| bound.value >= rule::UNRELATED)
        }
        Subject::State { .. } => far,
        Subject::Tap { .. } => false,
    }
}

/// Downgrades differences of whole 16-bit runs beyond the ensemble to a remark. This requires that every
/// single op matches the reference, nothing was skipped, and f32 agrees.
pub(super) fn downgrade_explained(
    model: &Model,
    run: &mut RunReport,
    f32_agrees: bool,
) -> Option<String> {
    if run.dtype == Dtype::F32 || !run.coverage.whole || !f32_agrees {
        return None;
    }
    if run.gates.iter().filter(|gate: &&Gate| gate.mode == Mode::Local).any(Gate::fails)
        || run.gates.iter().any(|gate: &Gate| gate.fails() && gate.finding.is_some())
        || run.routers.iter().any(is_misrouted)
    {
        return None;
    }
    let of = run.gates.iter().filter(|gate| gate.mode == Mode::Cumulative).count();
    let mut failed = run.gates.iter().filter(|gate| gate.fails());
    let times = failed.clone().map(times_beyond).fold(1.0, f64::max);
    // Tokens follow from log-probabilities, and exceed their bounds by no more than those do.
    if failed.any(is_unrelated)
        || !run.greedy.iter().all(|row: &GreedyRow| {
            row.verdict != Verdict::Fail
                || row.first_flip.is_some_and(|flip| flip.margin <= times * flip.noise)
        })
    {
        return None;
    }
    let mut count = 0;
    for gate in run.gates.iter_mut().filter(|gate| gate.fails()) {
        count += 1;
        gate.verdict = Verdict::Pass;
        gate.finding =
            Some("beyond the ensemble, and every op is the reference's by itself".to_owned());
    }
    let mut failed_rows = 0;
    for verdict in run
        .greedy
        .iter_mut()
        .map(|row| &mut row.verdict)
        .chain(run.routers.iter_mut().map(|row| &mut row.verdict))
    {
        failed_rows += usize::from(*verdict == Verdict::Fail);
        *verdict = Verdict::Pass;
    }
    if count + failed_rows == 0 {
        return None;
    }
    for phase in &mut run.phases {
        phase.verdict = Verdict::Pass;
    }
    run.first = diverge::first(model, &run.gates, Mode::Cumulative);
    Some(format!(
        "{}: {count} of {of} comparisons of whole runs are beyond the ensemble of the reference, by up to {times:.1} times; \
         every op is the reference's by itself, so rounding was multiplied on the way",
        run.dtype
    ))
}

pub(crate) fn summarize(
    model: &Model,
    dtype: Dtype,
    gates: Vec<Gate>,
    greedy: Vec<GreedyRow>,
    uncovered: Uncovered,
) -> RunReport {
    let phases = Phase::ALL.into_iter().filter_map(|phase| phase_row(phase, &gates)).collect();
    RunReport {
        dtype,
        part: None,
        phases,
        first: diverge::first(model, &gates, Mode::Cumulative),
        first_local: diverge::first(model, &gates, Mode::Local),
        gates,
        greedy,
        routers: Vec::new(),
        uncovered,
        coverage: OpCoverage::default(),
        strengths: MeasureRatios::default(),
    }
}

/// Returns the factor by which a comparison exceeds its bound; infinity without a bound.
fn times_beyond(gate: &Gate) -> f64 {
    gate.worst_bound().map_or(f64::INFINITY, |bound| bound.value / bound.limit)
}

fn phase_row(phase: Phase, gates: &[Gate]) -> Option<PhaseRow> {
    let gates: Vec<&Gate> = gates.iter().filter(|g| g.phase == phase).collect();
    let rows: Vec<&&Gate> = gates.iter().filter(|g| g.subject == Subject::Logprobs).collect();
    if rows.is_empty() {
        return None;
    }
    let stats: Vec<_> = rows.iter().filter_map(|g| g.rows).collect();
    let count: usize = stats.iter().map(|s| s.rows).sum();
    // The prompt that comes closest to its bound, or exceeds it most.
    let worst = rows
        .iter()
        .filter_map(|g| g.bounds.first().map(|bound| (bound.value, bound.limit)))
        .max_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let numbers: usize = rows.iter().map(|g| g.error.count).sum();
    let sum: f64 = rows.iter().map(|g| g.error.mean * g.error.count as f64).sum();
    let worst_tap = gates
        .iter()
        .filter(|g| g.mode == Mode::Cumulative && matches!(g.subject, Subject::Tap { .. }))
        .max_by(|a, b| a.error.max.total_cmp(&b.error.max))
        .map(|g| (g.subject.to_string(), g.error.max));
    Some(PhaseRow {
        phase,
        rows: count,
        max: worst.map_or(f64::NAN, |w| w.0),
        limit: worst.map_or(f64::INFINITY, |w| w.1),
        mean: sum / numbers as f64,
        // NaN if nothing was compared.
        kl: stats.iter().map(|s| s.kl * s.rows as f64).sum::<f64>() / count as f64,
        top1: stats.iter().map(|s| s.top1 as f64).sum::<f64>() / count as f64,
        worst_tap,
        verdict: if gates.iter().any(|g| g.fails()) { Verdict::Fail } else { Verdict::Pass },
    })
}
