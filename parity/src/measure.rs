//! Measures differences of rows, in units of f32 rounding noise.

use registry::dtype::Dtype;

use crate::metrics::{QUIET_ROW, gap};
pub use crate::op_error::{OpChain, OpError, OpRowError};
use crate::rule::{GAIN_ERRORS, MOVED, OP_GAIN, distance, roundoff};

/// Typical maximum of some hundred normally distributed values, relative to their rms.
const PEAK: f64 = 3.0;

fn rms(values: &[f32]) -> f64 {
    let power: f64 = values.iter().filter(|x| x.is_finite()).map(|x| f64::from(*x).powi(2)).sum();
    (power / values.len().max(1) as f64).sqrt()
}

/// Returns the root mean square of a difference.
fn rms_difference(a: &[f32], b: &[f32]) -> f64 {
    let power: f64 = a.iter().zip(b).map(|(x, y)| f64::from(gap(*x, *y)).powi(2)).sum();
    (power / a.len().max(1) as f64).sqrt()
}

/// Returns the scale of a row among others.
fn size(row: &[f32], all_rms: f64) -> f64 {
    rms(row).max(QUIET_ROW * all_rms).max(f64::from(f32::MIN_POSITIVE))
}

/// Returns the distances of rows from a base, relative to the row.
pub fn distances(ours: &[f32], base: &[f32], rows: usize) -> Vec<f64> {
    let width = base.len().checked_div(rows).unwrap_or(0).max(1);
    let all = rms(base);
    let each = ours.chunks_exact(width).zip(base.chunks_exact(width));
    each.map(|(a, b)| rms_difference(a, b) / size(b, all)).collect()
}

/// Returns the root mean square of all rows relative to that of each, at least 1: the largest distance of a quiet row
/// that a distance of the whole covers.
pub fn quietness(base: &[f32], rows: usize) -> Vec<f64> {
    let width = base.len().checked_div(rows).unwrap_or(0).max(1);
    let all = rms(base);
    base.chunks_exact(width).map(|row| (all / size(row, all)).max(1.0)).collect()
}

/// Measures an op's output against the reference's. `moved` holds outputs of the same op with inputs
/// perturbed by [`MOVED`] units in the last place of f32.
pub fn measure(
    op: OpChain,
    ours: &[f32],
    reference: &[f32],
    moved: &[Vec<f32>],
    rows: usize,
) -> OpError {
    let width = reference.len().checked_div(rows).unwrap_or(0).max(1);
    let all_rms = rms(reference);
    let each = ours.chunks_exact(width).zip(reference.chunks_exact(width)).enumerate();
    let measured = each.map(|(n, (a, b))| {
        let moved_rows: Vec<&[f32]> =
            moved.iter().filter_map(|m| m.get(n * width..(n + 1) * width)).collect();
        let size = size(b, all_rms);
        if op.dtype == Dtype::F32 {
            wide(a, b, &moved_rows, size)
        } else {
            narrow(op, a, b, &moved_rows, size)
        }
    });
    let measured = measured.collect();
    let changes: f64 = moved.iter().map(|m| row_gains(m, ours, rows).mean.powi(2)).sum();
    let changes = (changes / moved.len().max(1) as f64).sqrt() / f64::from(MOVED);
    let gains = row_gains(ours, reference, rows);
    let noise = changes.max(roundoff(Dtype::F32)).max(gains.error * GAIN_ERRORS / OP_GAIN);
    OpError { rows: measured, gain: gains.mean.abs() / noise }
}

/// Scale of rows relative to those of a reference, less 1.
struct RowGains {
    mean: f64,
    /// Standard error of the mean; 0 of a single row.
    error: f64,
}

/// Measures the scale of rows. All rows count alike, and a number far above its row no more than [`PEAK`] times the
/// root mean square, so that the rounding of one number is not the scale of the whole.
fn row_gains(ours: &[f32], reference: &[f32], rows: usize) -> RowGains {
    let width = reference.len().checked_div(rows).unwrap_or(0).max(1);
    let all_rms = rms(reference);
    let pairs = ours.chunks_exact(width).zip(reference.chunks_exact(width));
    let gains: Vec<(f64, f64)> = pairs.map(|(ours, row)| row_gain(ours, row, all_rms)).collect();
    let weight = gains.iter().map(|(_, weight)| weight).sum::<f64>().max(f64::MIN_POSITIVE);
    let mean = gains.iter().map(|(excess, _)| excess).sum::<f64>() / weight;
    let count = gains.len() as f64;
    let squares = gains.iter().map(|(excess, weight)| (excess - mean * weight).powi(2));
    let power: f64 = squares.sum::<f64>() * count / (count - 1.0).max(1.0);
    RowGains { mean, error: if gains.len() > 1 { power.sqrt() / weight } else { 0.0 } }
}

/// Returns the scale of a row less 1 times its weight, and the weight.
fn row_gain(ours: &[f32], row: &[f32], all_rms: f64) -> (f64, f64) {
    let scale = size(row, all_rms);
    let mut excess = 0.0;
    let mut weight = 0.0;
    for (x, y) in ours.iter().zip(row).map(|(x, y)| (f64::from(*x), f64::from(*y))) {
        let counts = (PEAK * scale / y.abs()).min(1.0) / scale.powi(2);
        excess += counts * (x - y) * y;
        weight += counts * y * y;
    }
    (excess, weight)
}

/// Returns the size whose rounding a value shows: that of its row, or its own if it stands far above the row. The
/// factor of a whole row, as that of a norm, is rounded relative to each value.
fn rounded_size(value: f32, row: f64) -> f64 {
    row.max(f64::from(value.abs()) / PEAK)
}

/// Measures a row of an f32 run.
fn wide(ours: &[f32], reference: &[f32], moved: &[&[f32]], size: f64) -> OpRowError {
    let power: f64 = moved.iter().map(|m| rms_difference(m, ours).powi(2)).sum();
    let gaps = moved.iter().flat_map(|m| m.iter().zip(ours).map(|(x, y)| f64::from(gap(*x, *y))));
    // If elements differ widely in size, the largest of them determine the noise.
    let peak = gaps.fold(0.0, f64::max) / PEAK;
    let moves = (power / moved.len().max(1) as f64).sqrt().max(peak) / f64::from(MOVED);
    let times = ours
        .iter()
        .zip(reference)
        .map(|(x, y)| f64::from(gap(*x, *y)) / noise_of(moves, *y, size))
        .fold(0.0, f64::max);
    OpRowError { noise: noise_of(moves, 0.0, size) / size, times, ..OpRowError::default() }
}

/// Returns the noise of a value: that of moved inputs, or of its own rounding to f32.
fn noise_of(moves: f64, value: f32, row: f64) -> f64 {
    moves.max(roundoff(Dtype::F32) * rounded_size(value, row))
}

/// Measures a row of a 16-bit run.
fn narrow(op: OpChain, ours: &[f32], reference: &[f32], moved: &[&[f32]], size: f64) -> OpRowError {
    // Flips are rare, so the median element shows the noise of values that are stored in f32.
    let mut gaps: Vec<f32> =
        moved.iter().flat_map(|m| m.iter().zip(ours).map(|(x, y)| gap(*x, *y))).collect();
    gaps.sort_by(f32::total_cmp);
    let middle = gaps.get(gaps.len() / 2).copied().map_or(0.0, f64::from) / f64::from(MOVED);
    // Number of elements that differ by more than rounding to f32.
    let differ = |other: &[f32]| {
        let elements = gaps_of(other, ours).zip(reference);
        let beyond = elements.filter(|(gap, value)| {
            let noise = noise_of(middle, **value, size);
            let explained = if op.exact { 0.0 } else { distance(op) * noise };
            *gap > explained
        });
        beyond.count()
    };
    // Mean square of the difference, in units of the op's dtype.
    let units = |other: &[f32]| -> f64 {
        let elements = gaps_of(other, ours).zip(reference);
        let power: f64 = elements
            .map(|(gap, value)| (gap / (roundoff(op.dtype) * rounded_size(*value, size))).powi(2))
            .sum();
        power / ours.len().max(1) as f64
    };
    let changed = moved.iter().map(|m| differ(m)).max().unwrap_or(0);
    let moves = moved.iter().map(|m| units(m)).fold(0.0, f64::max);
    let count = ours.len().max(1) as f64;
    OpRowError {
        changed: changed as f64 / count,
        flips: differ(reference).saturating_sub(changed) as f64 / count,
        units: (units(reference) - moves).max(0.0),
        ..OpRowError::default()
    }
}

/// Returns the distance of each element from the engine's.
fn gaps_of<'a>(other: &'a [f32], ours: &'a [f32]) -> impl Iterator<Item = f64> + 'a {
    other.iter().zip(ours).map(|(x, y)| f64::from(gap(*x, *y)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::{FLIPS, OP, UNITS};

    /// Returns a row with one number far above the others, as the norm of a massive activation.
    fn massive() -> Vec<f32> {
        let mut row: Vec<f32> = (0..896).map(|n| ((n * 37 % 101) as f32 - 50.0) / 1e4).collect();
        row[300] = 29.9;
        row
    }

    /// Measures a row. A norm divides its largest number by itself, so that perturbed inputs move the others alone.
    fn measured(dtype: Dtype, ours: &[f32]) -> OpRowError {
        let op = OpChain { dtype, exact: dtype != Dtype::F32, span: 1, terms: 1, coded: false };
        let units = if op.exact { 0.0 } else { 8.0 };
        let mut moved: Vec<f32> = ours.iter().map(|x| x * (1.0 + units * f32::EPSILON)).collect();
        moved[300] = ours[300];
        measure(op, ours, &massive(), &[moved], 1).rows[0]
    }

    fn scaled(by: f32) -> Vec<f32> {
        massive().iter().map(|x| x * by).collect()
    }

    #[test]
    fn a_number_far_above_its_row_is_rounded_by_its_own_size() {
        assert!(measured(Dtype::F32, &scaled(1.0 + 3.0 * f32::EPSILON)).times < OP);
        assert!(measured(Dtype::F32, &scaled(1.0 + 16.0 * f32::EPSILON)).times > OP);
        // The others are held to the noise of the row.
        let mut one = massive();
        one[7] += 80.0 * f32::EPSILON / 2.0;
        assert!(measured(Dtype::F32, &one).times > OP);
    }

    #[test]
    fn the_scale_of_an_op_is_that_of_all_its_rows() {
        let row: Vec<f32> = (0..64).map(|n| 1.0 + (n * 37 % 64) as f32 / 64.0).collect();
        let reference = row.repeat(6);
        let op = OpChain { dtype: Dtype::F32, exact: false, span: 1, terms: 1, coded: false };
        let unit = f32::EPSILON;
        let all = [24.0, 20.0, 22.0, 18.0, 25.0, 21.0].map(|units| 1.0 + units * unit);
        assert!(gain(op, &reference, all) > OP_GAIN);
        let some = [24.0, -20.0, 44.0, -8.0, 25.0, -1.0].map(|units| 1.0 + units * unit);
        assert!(gain(op, &reference, some) < OP_GAIN);
    }

    fn gain(op: OpChain, reference: &[f32], scales: [f32; 6]) -> f64 {
        let scaled = reference.chunks(64).zip(scales);
        let ours: Vec<f32> = scaled.flat_map(|(row, by)| row.iter().map(move |x| x * by)).collect();
        measure(op, &ours, reference, &[], 6).gain
    }

    #[test]
    fn the_spread_of_all_rows_covers_a_quiet_row_by_its_size() {
        let base = [[2.0_f32; 8], [0.2; 8], [0.0; 8]].concat();
        let quietness = quietness(&base, 3);
        let rms_of_all = (4.04_f64 / 3.0).sqrt();
        approx::assert_abs_diff_eq!(quietness[0], 1.0);
        approx::assert_abs_diff_eq!(quietness[1], rms_of_all / 0.2, epsilon = 1e-6);
        // No row is held to less than a twentieth of all.
        approx::assert_abs_diff_eq!(quietness[2], 1.0 / QUIET_ROW, epsilon = 1e-6);
    }

    #[test]
    fn one_flip_of_a_number_far_above_its_row_is_one_flip() {
        let mut ours = massive();
        ours[300] = f32::from_bits(ours[300].to_bits() + (1 << 16));
        assert!(measured(Dtype::Bf16, &ours).units < UNITS);
        assert!(measured(Dtype::Bf16, &scaled(1.01)).flips > FLIPS);
    }
}
