//! Rule of a check, with all its constants.
//!
//! **Single ops.** An op gets the reference's own inputs and states. Its output may differ from the
//! reference's by f32 rounding only. The size of that rounding is measured on the op: its inputs are
//! perturbed by a unit in the last place of f32, and the change of its output is its *noise*. In f32 an
//! output may differ by [`OP`] times its noise, and after long sums by [`SUM`] times the square root of their
//! length. In 16 bits it has to be bit-identical, except for elements
//! that the noise carries over a rounding threshold: the share of unequal elements in a row beyond those
//! that move is at most [`FLIPS`].
//!
//! **Whole runs.** The distance of a run from the f32 reference may be [`FACTOR`] times that of the
//! farthest member of an ensemble of the reference, row by row. Members are runs under changes that have no
//! effect in exact arithmetic. The constants are fitted in `docs/proof.md`, with a table of correct and
//! broken runs for each.
//!
//! Single ops are proven on the reference's own inputs ([decision 7](../../docs/decisions/0007-local-exactness.md)).
//! Whole runs are bounded by an ensemble of reference runs ([decision 8](../../docs/decisions/0008-reference-ensemble.md)).

use registry::dtype::Dtype;

use crate::bound::{Bound, Mode};
use crate::op_error::{OpChain, OpError, OpRowError};

/// Maximum distance of an f32 output from the reference's, in units of the op's noise.
pub const OP: f64 = 64.0;

/// Maximum scale error of an op's f32 output, in units of the noise of its mean scale.
pub const OP_GAIN: f64 = 6.0;

/// Number of standard errors of its rows from which a mean scale error is one of the op, and not of single rows.
pub const GAIN_ERRORS: f64 = 3.0;

/// Maximum share of unequal elements of a row in 16 bits, beyond those that move with the inputs.
pub const FLIPS: f64 = 0.1;

/// Maximum number of rows of one op, in all prompts and phases, beyond [`FLIPS`] or [`UNITS`].
pub const STRAYS: usize = 3;

/// Maximum mean square of the difference of such a row, in rounding units, beyond the part that moves with the inputs:
/// that of a row whose every number is off by a unit in the last place, which is two roundings.
pub const STRAY_UNITS: f64 = 4.0;

/// Number of graph nodes between recorded values that [`OP`], [`OP_GAIN`], [`FLIPS`] and [`UNITS`] allow
/// for.
const SPAN: f64 = 8.0;

/// Maximum distance of a product with a matrix, in units of its noise times the square root of the length of its
/// sums. The reference adds one row in few running sums, whose error grows faster than the noise.
pub const SUM: f64 = 1.5;

/// Maximum mean square of a row's difference in 16 bits, in rounding units, beyond the part that moves with
/// the inputs.
pub const UNITS: f64 = 0.1;

/// Maximum distance of a whole run from the f32 reference, in units of the ensemble's spread.
pub const FACTOR: f64 = 8.0;

/// Maximum mean distance of rows from exact arithmetic, of a server whose products round rows, in units of that of the
/// native engine with rows rounded in the same way.
pub const ROUNDED_ROWS: f64 = 1.5;

/// Distance of unrelated rows, relative to their rms. A gate that allows this distance is not judged.
pub const UNRELATED: f64 = 1.4;

/// Perturbation of inputs for measuring the noise of an op, in units in the last place of f32. It imitates
/// other orders of summation.
pub const MOVED: u32 = 8;

/// Number of runs with perturbed inputs.
pub const MOVES: u64 = 3;

/// Number of accumulated roundings by which a log-probability of an engine without a reference may differ.
const DEPTH: f64 = 16.0;

/// Maximum difference of a row with an input at the threshold between two 8-bit codes, relative to its rms.
/// A step is a 16th of an e4m3 value, and a 127th of the largest value of an integer row, which is about 3
/// times the rms.
pub const CODE_STEP: f64 = 0.1;
/// Minimum difference from which such a threshold is considered.
pub const CODED_ROW: f64 = 4.5e-5;

/// Minimum number of nonzero values that show a coarser grid: by chance, n f16 values lie on the bf16 grid
/// once in 8^n.
pub const GRID_COUNT: usize = 12;

/// Returns half the distance between 1 and the next value: the maximum effect of one rounding.
pub fn roundoff(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => 2.0_f64.powi(-24),
        Dtype::Bf16 => 2.0_f64.powi(-8),
        Dtype::F16 => 2.0_f64.powi(-11),
    }
}

/// Bounds of a gate, with each row's share of the worst of them: above 1 if it is exceeded.
#[derive(Debug, Default)]
pub struct GateBounds {
    /// Bounds of the gate, all of which must hold.
    pub bounds: Vec<Bound>,
    /// Share of each row.
    pub rows: Vec<f64>,
    /// Smallest error that would have been detected, relative to the rms of a row.
    pub sees: f64,
}

/// Returns the maximum distance of an op's f32 output, in units of its noise: that of what it computes inside,
/// or that of its longest sum.
pub(crate) fn distance(op: OpChain) -> f64 {
    OP.max(SUM * (op.terms as f64).sqrt())
}

/// Judges an op on the reference's own inputs.
pub fn local(op: OpChain, measured: &OpError) -> GateBounds {
    let rows = &measured.rows;
    // Roundings accumulate over the nodes between recorded values.
    let several = (op.span as f64 / SPAN).max(1.0);
    if op.dtype == Dtype::F32 {
        let times = values(rows, |row| row.times);
        let most_times = several * distance(op);
        let value = times.iter().copied().fold(0.0, f64::max);
        let bounds = vec![
            Bound { measure: "noise", value, limit: most_times },
            Bound { measure: "gain", value: measured.gain, limit: several * OP_GAIN },
        ];
        let sees = largest(values(rows, |row| most_times * row.noise));
        return GateBounds { bounds, rows: times.iter().map(|t| t / most_times).collect(), sees };
    }
    let flips = several * FLIPS;
    let units = several * UNITS;
    let stray = values(rows, |row| row.units).into_iter().fold(0.0, f64::max);
    let mut bounds = vec![
        Bound { measure: "flips", value: largest(values(rows, |row| row.flips)), limit: flips },
        Bound { measure: "units", value: largest(values(rows, |row| row.units)), limit: units },
    ];
    if !op.coded {
        bounds.push(Bound { measure: "units", value: stray, limit: several * STRAY_UNITS });
    }
    GateBounds {
        bounds,
        rows: values(rows, |row| (row.flips / flips).max(row.units / units)),
        // An error of one unit changes every second element.
        sees: largest(values(rows, |row| (flips + row.changed) * 2.0 * roundoff(op.dtype))),
    }
}

/// Returns a value of each row.
fn values(rows: &[OpRowError], of: impl Fn(&OpRowError) -> f64) -> Vec<f64> {
    rows.iter().map(of).collect()
}

/// Returns the largest of all rows except [`STRAYS`]: one flip before a softmax affects only one row.
fn largest(mut rows: Vec<f64>) -> f64 {
    rows.sort_by(|a, b| b.total_cmp(a));
    rows.get(STRAYS).copied().unwrap_or(0.0)
}

/// Judges rows of a whole run by `errors`, their distance from the f32 reference, against the `spread` of the ensemble.
pub fn whole(measure: &'static str, errors: &[f64], spread: &[f64], least: f64) -> GateBounds {
    let mut sorted = spread.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0).max(least);
    let limits = spread.iter().map(|spread| FACTOR * spread.max(middle));
    let rows: Vec<(f64, f64)> = errors.iter().copied().zip(limits).collect();
    let worst = rows.iter().max_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let bounds = worst.map(|&(value, limit)| Bound { measure, value, limit });
    let sees = rows.iter().map(|row| row.1).fold(0.0, f64::max);
    GateBounds {
        bounds: bounds.into_iter().collect(),
        rows: rows.iter().map(|(error, limit)| error / limit).collect(),
        sees,
    }
}

/// Returns the distance below which a whole run always passes: one rounding of values of this size.
pub fn least_distance(dtype: Dtype, scale: f64) -> f64 {
    roundoff(dtype) * scale.max(1.0)
}

/// Returns the margin of two router scores, relative to the spread of scores, below which rounding may
/// choose either.
pub fn choice(dtype: Dtype, mode: Mode) -> f64 {
    let alone = roundoff(dtype) * if dtype == Dtype::F32 { OP } else { 4.0 };
    if mode == Mode::Local { alone } else { FACTOR * alone }
}

/// Returns the maximum effect of a schedule on a log-probability, for an engine whose sums depend on chunks
/// and batches. `noise` is the distance of its log-probabilities from the reference's, `scale` the rms of
/// its logits.
pub fn schedule(dtype: Dtype, scale: f64, noise: Option<f64>) -> f64 {
    FACTOR * noise.unwrap_or(0.0).max(DEPTH * roundoff(dtype) * scale)
}

/// Returns the largest of `count` normal numbers whose root mean square is `rms`.
pub fn largest_normal(rms: f64, count: usize) -> f64 {
    rms * (2.0 * (count.max(1) as f64).ln()).sqrt().max(1.0)
}

/// Returns the maximum margin of the engine's token over the reference's greedy token, given the error of
/// two log-probabilities.
pub fn greedy(spread: &[f32]) -> f64 {
    let widest = spread.iter().copied().fold(0.0, f32::max);
    if widest > 0.0 { 2.0 * FACTOR * f64::from(widest) } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_number_of_a_vocabulary_is_beyond_the_largest() {
        let count = 150_000;
        let limit = 1.5e-5;
        // Its root mean square hides it.
        let wrong = 2e-3;
        assert!(wrong / f64::from(count).sqrt() < limit);
        assert!(wrong > largest_normal(limit, count as usize));
        assert!(3.1e-5 < largest_normal(limit, 300));
        assert_eq!(largest_normal(0.0, 300), 0.0);
        assert_eq!(largest_normal(limit, 1), limit);
    }

    #[test]
    fn few_rows_may_be_off_by_a_unit_and_none_by_more() {
        assert!(strays_hold(&[0.3, 0.3, 3.9], false));
        assert!(!strays_hold(&[0.3, 0.3, 0.3, 0.3], false));
        // A factor of 1.05 in bf16 is 164.
        assert!(!strays_hold(&[164.0], false) && strays_hold(&[164.0], true));
    }

    fn strays_hold(strays: &[f64], coded: bool) -> bool {
        let op = OpChain { dtype: Dtype::Bf16, exact: true, span: 1, terms: 1, coded };
        let mut rows: Vec<OpRowError> = strays
            .iter()
            .map(|units: &f64| OpRowError { units: *units, flips: 0.5, ..OpRowError::default() })
            .collect();
        rows.resize(12, OpRowError::default());
        local(op, &OpError { rows, gain: 0.0 }).bounds.iter().all(Bound::holds)
    }

    #[test]
    fn long_sums_may_be_off_by_the_square_root_of_their_length() {
        assert!(sum_holds(1, 63.0) && sum_holds(1024, 63.0) && sum_holds(4096, 95.0));
        assert!(!sum_holds(1, 65.0) && !sum_holds(1024, 65.0) && !sum_holds(4096, 97.0));
    }

    fn sum_holds(terms: usize, times: f64) -> bool {
        let op = OpChain { dtype: Dtype::F32, exact: false, span: 1, terms, coded: false };
        let rows = vec![OpRowError { times, ..OpRowError::default() }];
        local(op, &OpError { rows, gain: 0.0 }).bounds.iter().all(Bound::holds)
    }
}
