//! Judges a mutant by the report of its check.

use std::collections::BTreeSet;

use registry::dtype::Dtype;
use serde::Serialize;

use super::{ClosestGate, Fate, Mutant, MutantOutcome};
use crate::gate::{Gate, Verdict};
use crate::report::Report;

/// Compares the report of a mutant, or the error text of a refusal, with that of the unchanged model.
pub(super) fn judge(
    mutant: &Mutant,
    dtype: Dtype,
    sound: &Report,
    result: Result<Report, String>,
) -> MutantOutcome {
    let mut outcome = MutantOutcome {
        mutant: mutant.name.clone(),
        class: mutant.class,
        dtype,
        fate: Fate::Refused,
        first: None,
        right: None,
        expected: BTreeSet::new(),
        strengths: None,
        closest: None,
        reach: None,
        blame: None,
    };
    let report = match result {
        Ok(report) => report,
        Err(words) => {
            outcome.first = Some(words);
            return outcome;
        }
    };
    outcome.strengths = report.runs.first().map(|run| {
        let mut strengths = run.strengths;
        strengths.other |= report.schedules.iter().any(|row| row.verdict == Verdict::Fail);
        strengths
    });
    if report.verdict() == Verdict::Fail {
        outcome.fate = Fate::Caught;
        outcome.first = named(&report);
        let gate = report.first_failing().and_then(|run| run.headline());
        if let Some(gate) = gate.filter(|_| !mutant.right.is_empty()) {
            let right = mutant.right.contains(&gate.subject.to_string());
            outcome.right = Some(right);
            outcome.expected = if right { BTreeSet::new() } else { mutant.right.clone() };
        }
        return outcome;
    }
    let schedules = report.schedules.iter().all(|row| {
        // A slot whose states were replaced cannot be truncated: such a schedule is skipped.
        let other = sound
            .schedules
            .iter()
            .find(|other| other.name == row.name && other.verdict == row.verdict);
        other.is_none_or(|other| other.max.to_bits() == row.max.to_bits())
    });
    let equal = schedules && same_numbers(&report, sound);
    if equal || mutant.neutral && dtype == Dtype::F32 {
        outcome.fate = Fate::Unreached;
        outcome.reach = Some(if equal {
            mutant.reach
        } else {
            "f32 shows only the noise of another order of rounding"
        });
        return outcome;
    }
    outcome.fate = Fate::Missed;
    outcome.closest = closest(&report, sound);
    outcome
}

/// Compares every number of two results, bit for bit.
fn same<T: Serialize>(a: &T, b: &T) -> bool {
    matches!((serde_json::to_string(a), serde_json::to_string(b)), (Ok(a), Ok(b)) if a == b)
}

/// Compares the engine's values in two checks. Bounds are excluded, because they also depend on runs with
/// perturbed inputs.
fn same_numbers(report: &Report, sound: &Report) -> bool {
    report.runs.len() == sound.runs.len()
        && report.runs.iter().zip(&sound.runs).all(|(ours, theirs)| {
            ours.gates.len() == theirs.gates.len()
                && ours.gates.iter().zip(&theirs.gates).all(|(a, b)| same_values(a, b))
                && same(&ours.greedy, &theirs.greedy)
                && same(&ours.routers, &theirs.routers)
        })
}

/// True if the engine's values in two gates are equal.
fn same_values(a: &Gate, b: &Gate) -> bool {
    (a.error, a.gain.to_bits(), a.unequal, a.verdict)
        == (b.error, b.gain.to_bits(), b.unequal, b.verdict)
        && a.by_step == b.by_step
}

/// Names the first finding of a report.
pub(super) fn named(report: &Report) -> Option<String> {
    if let Some(run) = report.first_failing() {
        let router = run.routers.iter().any(|row| row.verdict == Verdict::Fail);
        return run
            .headline()
            .map(|first| first.subject.to_string())
            .or_else(|| router.then(|| "a router".to_owned()))
            .or_else(|| Some("a greedy token".to_owned()));
    }
    let row = report.schedules.iter().find(|row| row.verdict == Verdict::Fail)?;
    Some(format!("schedule {}", row.name))
}

/// Finds the bound nearest to its limit among gates whose values changed.
fn closest(report: &Report, sound: &Report) -> Option<ClosestGate> {
    fn gates(report: &Report) -> Vec<&Gate> {
        report.runs.iter().flat_map(|run| &run.gates).collect()
    }
    let before = gates(sound);
    let mut closest: Option<ClosestGate> = None;
    for (n, gate) in gates(report).into_iter().enumerate() {
        let other = before.get(n).copied();
        if other.is_some_and(|other| same(gate, other)) {
            continue;
        }
        for (m, bound) in gate.bounds.iter().enumerate() {
            let was =
                other.and_then(|gate| gate.bounds.get(m)).map_or(f64::NAN, |bound| bound.value);
            if !bound.limit.is_finite() || bound.limit <= 0.0 {
                continue;
            }
            let ratio = bound.value / bound.limit;
            let nearer = closest
                .as_ref()
                .is_none_or(|best| ratio.total_cmp(&(best.value / best.limit)).is_gt());
            if nearer {
                closest = Some(ClosestGate {
                    subject: gate.subject.to_string(),
                    place: format!("{} {} `{}`", gate.phase, gate.mode.name(), gate.prompt),
                    measure: bound.measure.to_owned(),
                    value: bound.value,
                    limit: bound.limit,
                    before: was,
                });
            }
        }
    }
    closest
}
