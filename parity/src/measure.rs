//! Measures differences of rows, in units of f32 rounding noise.

use registry::dtype::Dtype;

use crate::metrics::{QUIET_ROW, gap, tensor_error};
pub use crate::op_error::{OpChain, OpError, OpRowError};
use crate::rule::{MOVED, distance, roundoff};

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
fn size(row: &[f32], whole: f64) -> f64 {
    rms(row).max(QUIET_ROW * whole).max(f64::from(f32::MIN_POSITIVE))
}

/// Returns the distances of rows from a base, relative to the row.
pub fn distances(ours: &[f32], base: &[f32], rows: usize) -> Vec<f64> {
    let width = base.len().checked_div(rows).unwrap_or(0).max(1);
    let all = rms(base);
    let each = ours.chunks_exact(width).zip(base.chunks_exact(width));
    each.map(|(a, b)| rms_difference(a, b) / size(b, all)).collect()
}

/// Measures an op's output against the reference's. `moved` holds outputs of the same op with inputs
/// perturbed by [`MOVED`] units in the last place of f32.
pub fn measure(op: OpChain, ours: &[f32], own: &[f32], moved: &[Vec<f32>], rows: usize) -> OpError {
    let width = own.len().checked_div(rows).unwrap_or(0).max(1);
    let whole = rms(own);
    let each = ours.chunks_exact(width).zip(own.chunks_exact(width)).enumerate();
    let of = |(n, (a, b)): (usize, (&[f32], &[f32]))| {
        let others: Vec<&[f32]> =
            moved.iter().filter_map(|m| m.get(n * width..(n + 1) * width)).collect();
        let size = size(b, whole);
        if op.dtype == Dtype::F32 {
            wide(a, b, &others, size)
        } else {
            narrow(op, a, b, &others, size)
        }
    };
    let rows_of = each.map(of).collect();
    let gain = |x: &[f32], y: &[f32]| tensor_error(x, y, rows).gain;
    let power: f64 = moved.iter().map(|m| gain(m, ours).powi(2)).sum();
    let noise = (power / moved.len().max(1) as f64).sqrt() / f64::from(MOVED);
    OpError { rows: rows_of, gain: gain(ours, own).abs() / noise.max(roundoff(Dtype::F32)) }
}

/// Measures a row of an f32 run.
fn wide(ours: &[f32], own: &[f32], moved: &[&[f32]], size: f64) -> OpRowError {
    let power: f64 = moved.iter().map(|m| rms_difference(m, ours).powi(2)).sum();
    let gaps = moved.iter().flat_map(|m| m.iter().zip(ours).map(|(x, y)| f64::from(gap(*x, *y))));
    // If elements differ widely in size, the largest of them determine the noise.
    let peak = gaps.fold(0.0, f64::max) / PEAK;
    let moves = (power / moved.len().max(1) as f64).sqrt().max(peak);
    let noise = (moves / f64::from(MOVED)).max(roundoff(Dtype::F32) * size);
    let worst = ours.iter().zip(own).map(|(x, y)| f64::from(gap(*x, *y))).fold(0.0, f64::max);
    OpRowError { noise: noise / size, times: worst / noise, ..OpRowError::default() }
}

/// Measures a row of a 16-bit run.
fn narrow(op: OpChain, ours: &[f32], own: &[f32], moved: &[&[f32]], size: f64) -> OpRowError {
    // Flips are rare, so the median element shows the noise of values that are stored in f32.
    let mut gaps: Vec<f32> =
        moved.iter().flat_map(|m| m.iter().zip(ours).map(|(x, y)| gap(*x, *y))).collect();
    gaps.sort_by(f32::total_cmp);
    let middle = gaps.get(gaps.len() / 2).copied().map_or(0.0, f64::from);
    let noise = (middle / f64::from(MOVED)).max(roundoff(Dtype::F32) * size);
    let equal = if op.exact { 0.0 } else { distance(op) * noise };
    let differ =
        |x: &[f32]| x.iter().zip(ours).filter(|(x, y)| f64::from(gap(**x, **y)) > equal).count();
    let changed = moved.iter().map(|m| differ(m)).max().unwrap_or(0);
    let share = |count: usize| count as f64 / ours.len().max(1) as f64;
    let moves = moved.iter().map(|m| rms_difference(m, ours)).fold(0.0, f64::max);
    OpRowError {
        changed: share(changed),
        flips: share(differ(own).saturating_sub(changed)),
        units: (rms_difference(own, ours).powi(2) - moves.powi(2)).max(0.0)
            / (roundoff(op.dtype) * size).powi(2),
        ..OpRowError::default()
    }
}
