//! The gates of a run, added up.

use registry::dtype::Dtype;
use registry::model::Model;

use super::CheckOptions;
use crate::diverge;
use crate::dump::Phase;
use crate::gate::{Gate, Mode, Subject, Verdict};
use crate::report::{GreedyRow, PhaseRow, RunReport, Uncovered};

/// What noise may move a log-probability by in this run: the widest bound that was applied.
pub(super) fn logprob_limit(dtype: Dtype, gates: &[Gate], options: &CheckOptions) -> Option<f64> {
    if dtype == Dtype::F32 {
        return Some(options.f32_logprob());
    }
    let limits = gates.iter().filter(|g| g.subject == Subject::Logprobs);
    limits.flat_map(|g| &g.bounds).filter(|b| b.measure == "max").map(|b| b.limit).reduce(f64::max)
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
    let share = |total: f64| if count == 0 { 0.0 } else { total / count as f64 };
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
        max: worst.map_or(0.0, |w| w.0),
        limit: worst.map_or(f64::INFINITY, |w| w.1),
        mean: if numbers == 0 { 0.0 } else { sum / numbers as f64 },
        kl: share(stats().map(|s| s.kl * s.rows as f64).sum()),
        top1: share(stats().map(|s| s.top1 as f64).sum()),
        worst_tap,
        verdict: if gates.iter().any(|g| g.fails()) { Verdict::Fail } else { Verdict::Pass },
    })
}
