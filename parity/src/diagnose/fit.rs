//! Fits the parameter of a family of edits: a line search along the direction in which the results move.

use super::edit_trials::EditSearch;
use super::phase_trial::TrialDifferences;
use super::score::{ComparisonTarget, Score};
use crate::edit::{Edit, Knob};

/// First step of a factor's logarithm, which measures the direction.
const STEP: f64 = 0.05;
/// Minimum share of the squared difference that a family explains along its direction, to be followed.
const ALIGNED: f64 = 0.5;
/// Number of steps of a search.
const STEPS: usize = 10;
/// Maximum step of a factor's logarithm.
const LONGEST: f64 = 2.0;

/// Returns the differences of the comparisons that differed at first, each relative to its initial
/// difference.
fn vector(numbers: &TrialDifferences, targets: &[ComparisonTarget]) -> Option<Vec<f64>> {
    let mut all = Vec::new();
    for (differences, target) in numbers
        .iter()
        .zip(targets)
        .filter(|(_, target): &(_, &ComparisonTarget)| target.differs && !target.missing)
    {
        let differences = differences.as_ref()?;
        let unit = target.before * (differences.len().max(1) as f64).sqrt();
        all.extend(differences.iter().map(|x| f64::from(*x) / unit));
    }
    all.iter().all(|x| x.is_finite()).then_some(all)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// Finds the factor that comes closest to the target.
pub(super) fn fit(
    search: &mut EditSearch<'_>,
    knob: &Knob,
) -> Option<(Edit, TrialDifferences, Score)> {
    let mut at = 0.0;
    let mut remaining = vector(&search.unedited, search.targets)?;
    let mut best = None;
    let (moved, _) = search.attempt(&knob.with_factor(f64::exp(STEP)))?;
    let mut last = (STEP, vector(&moved, search.targets)?);
    if last.1.len() != remaining.len() {
        return None;
    }
    for step in 0..STEPS {
        let aside = last.0 - at;
        let slope: Vec<f64> = last.1.iter().zip(&remaining).map(|(x, y)| (x - y) / aside).collect();
        let steep = dot(&slope, &slope);
        let along = dot(&slope, &remaining);
        let power = dot(&remaining, &remaining);
        if steep == 0.0 || power == 0.0 || step == 0 && along.powi(2) < ALIGNED * steep * power {
            break;
        }
        let mut by = (-along / steep).clamp(-LONGEST, LONGEST);
        let mut closer = None;
        for _ in 0..3 {
            let edit = knob.with_factor(f64::exp(at + by));
            let (numbers, score) = search.attempt(&edit)?;
            let next = vector(&numbers, search.targets)?;
            if next.len() == remaining.len() && dot(&next, &next) < power {
                closer = Some((edit, numbers, score, next));
                break;
            }
            by /= 4.0;
        }
        let Some((edit, numbers, score, next)) = closer else { break };
        let gained = dot(&next, &next) < 0.98 * power;
        last = (at, std::mem::replace(&mut remaining, next));
        at += by;
        best = Some((edit, numbers, score));
        if !gained || by.abs() < 1e-7 {
            break;
        }
    }
    let (_, _, score) = best.as_ref()?;
    let bar = score.noise * 1.2 + 0.02;
    for by in knob.round_factors(f64::exp(at)) {
        let edit = knob.with_factor(by);
        if let Some((numbers, score)) = search.attempt(&edit)
            && score.noise <= bar
        {
            return Some((edit, numbers, score));
        }
    }
    best
}
