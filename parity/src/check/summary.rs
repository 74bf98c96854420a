//! The gates of a run, added up.

use registry::dtype::Dtype;
use registry::model::Model;

use super::CheckOptions;
use crate::diverge;
use crate::dump::Phase;
use crate::gate::{Gate, Mode, Subject, Verdict};
use crate::report::{GreedyRow, PhaseRow, RunReport, Uncovered};
use crate::tolerance;

/// What noise may move a log-probability by in this run: the widest bound that was applied.
pub(super) fn logprob_limit(dtype: Dtype, gates: &[Gate], options: &CheckOptions) -> Option<f64> {
    if dtype == Dtype::F32 {
        return Some(options.f32_logprob());
    }
    let limits = gates.iter().filter(|g| g.subject == Subject::Logprobs);
    limits.flat_map(|g| &g.bounds).filter(|b| b.measure == "max").map(|b| b.limit).reduce(f64::max)
}

/// Lets gates pass that are few among hundreds and hardly beyond their bounds, where nothing else is wrong with
/// a run, and says so. All are drawn from the noise of one rounding, and of hundreds of bounds that each hold mostly
/// an honest run is beyond some. What an op does by itself is not excused in f32, where nothing is left to chance.
pub(super) fn excuse(dtype: Dtype, gates: &mut [Gate]) -> Option<String> {
    let most = gates.len() / tolerance::BY_CHANCE;
    let failing = || gates.iter().filter(|gate| gate.fails());
    let explained = |gate: &Gate| {
        let excess = gate.worst_bound().map(|bound| (bound.measure, bound.value / bound.limit));
        let limit = excess
            .and_then(|(measure, _)| tolerance::excess(dtype, gate.mode, &gate.subject, measure));
        gate.finding.is_none()
            && excess.zip(limit).is_some_and(|((_, times), limit)| times <= limit)
    };
    let (count, of) = (failing().count(), gates.len());
    if count == 0 || count > most || !failing().all(explained) {
        return None;
    }
    let times = |gate: &Gate| gate.worst_bound().map_or(0.0, |bound| bound.value / bound.limit);
    let worst = failing().map(times).fold(0.0, f64::max);
    for gate in gates.iter_mut().filter(|gate| gate.fails()) {
        gate.verdict = Verdict::Pass;
        gate.finding = Some("beyond its bound as one of hundreds is by chance".to_owned());
    }
    let are = if count == 1 { "is beyond its bound" } else { "are beyond their bounds" };
    Some(format!(
        "{dtype}: {count} of {of} gates {are} by up to {worst:.1} times, as so few of so many are by chance; nothing else is wrong there",
    ))
}

pub(super) fn summarize(
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
    }
}

fn phase_row(phase: Phase, gates: &[Gate]) -> Option<PhaseRow> {
    let gates: Vec<&Gate> = gates.iter().filter(|g| g.phase == phase).collect();
    let rows: Vec<&&Gate> = gates.iter().filter(|g| g.subject == Subject::Logprobs).collect();
    if rows.is_empty() {
        return None;
    }
    let stats = || rows.iter().filter_map(|g| g.rows);
    let count: usize = stats().map(|s| s.rows).sum();
    // Not a number where nothing was compared.
    let share = |total: f64| total / count as f64;
    // The prompt that comes closest to its bound, or goes furthest beyond it.
    let worst = rows
        .iter()
        .filter_map(|g| Some((g.error.max, g.bounds.iter().find(|b| b.measure == "max")?.limit)))
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
        kl: share(stats().map(|s| s.kl * s.rows as f64).sum()),
        top1: share(stats().map(|s| s.top1 as f64).sum()),
        worst_tap,
        verdict: if gates.iter().any(|g| g.fails()) { Verdict::Fail } else { Verdict::Pass },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::Bound;
    use crate::order::LAST;

    /// A hundred gates, of which some are so many times as large as they may be.
    fn gates(mode: Mode, beyond: &[f64], subject: &Subject, measure: &'static str) -> Vec<Gate> {
        let gate = |times: f64| {
            let mut gate = Gate::new(subject.clone(), "main", Phase::Prefill, mode, LAST);
            gate.bounds.push(Bound { measure, value: times, limit: 1.0 });
            gate.judge(1.0);
            gate
        };
        beyond.iter().copied().chain(std::iter::repeat(0.5)).take(100).map(gate).collect()
    }

    #[test]
    fn few_gates_that_miss_by_little_are_chance_and_nothing_else_is() {
        let tap = Subject::Tap { name: "m".into() };
        let state = Subject::State { name: "s".into(), layer: 0, part: "k".into() };
        let (behind, alone) = (Mode::Cumulative, Mode::Local);
        for (dtype, mode, beyond, subject, measure, passes) in [
            (Dtype::Bf16, behind, &[1.9, 1.1][..], &tap, "p50", true),
            (Dtype::Bf16, behind, &[1.9, 1.1, 1.1], &tap, "p50", false),
            (Dtype::Bf16, behind, &[1.1, 2.1], &tap, "p50", false),
            (Dtype::Bf16, behind, &[1.9], &state, "p99", true),
            (Dtype::Bf16, alone, &[1.3], &tap, "gain", true),
            (Dtype::Bf16, alone, &[1.3], &tap, "p50", false),
            (Dtype::Bf16, alone, &[1.1], &state, "gain", false),
            (Dtype::F32, behind, &[1.4], &tap, "max", true),
            (Dtype::F32, behind, &[1.6], &tap, "max", false),
            (Dtype::F32, alone, &[1.1], &tap, "gain", false),
            (Dtype::F16, behind, &[1.1], &Subject::Logprobs, "max", false),
            (Dtype::F16, behind, &[1.2], &Subject::Logprobs, "p50", true),
            (Dtype::F32, behind, &[1.1], &Subject::Logprobs, "p50", false),
        ] {
            let mut all = gates(mode, beyond, subject, measure);
            let said = excuse(dtype, &mut all);
            let clean = !all.iter().any(Gate::fails);
            assert_eq!(
                (said.is_some(), clean),
                (passes, passes),
                "{dtype} {mode:?} {beyond:?} {measure}"
            );
        }
        let mut few = gates(behind, &[1.1], &tap, "p50");
        few.truncate(39);
        assert!(excuse(Dtype::Bf16, &mut few).is_none());
    }
}
