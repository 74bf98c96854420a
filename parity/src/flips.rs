//! References that round inputs of matrices to 8 bits. If a value lies at a rounding threshold, the last
//! bit of a sum decides, and a step is a 16th of the value. Such a reference differs from itself if it is
//! fed differently, and both results are equally valid. For integers with one scale per row, the largest
//! value lies half a step beyond the last code: at a threshold whenever it is negative.
//!
//! A row is therefore compared with the nearest run ([decision 35](../../docs/decisions/0035-values-on-a-code-border.md)).

use crate::dump::Logprobs;
use crate::metrics::{ReferenceRow, row_error, tensor_error};
use crate::rule::{CODE_STEP, CODED_ROW};

/// Returns the engine's rows, replaced by the reference's where a rounding threshold explains the
/// difference. On the reference's own inputs, only few rows lie at a threshold. The remaining differences
/// are judged as usual.
pub(crate) fn settle_flips(ours: &[f32], reference: &[f32], rows: usize) -> Vec<f32> {
    let mut settled = ours.to_vec();
    if rows == 0 || ours.len() != reference.len() || !ours.len().is_multiple_of(rows) {
        return settled;
    }
    let errors = tensor_error(ours, reference, rows).rows;
    if errors.iter().filter(|error| is_explained(**error)).count() > rows.div_ceil(4) {
        return settled;
    }
    let width = ours.len() / rows;
    for (row, _) in errors.iter().enumerate().filter(|(_, error)| is_explained(**error)) {
        let at = row * width..(row + 1) * width;
        settled[at.clone()].copy_from_slice(&reference[at]);
    }
    settled
}

/// True if a rounding threshold explains the error of a row.
fn is_explained(error: f64) -> bool {
    error > CODED_ROW && error <= CODE_STEP
}

/// Returns the rows of `reference`, each replaced by the corresponding row of `other` if that is nearer to the
/// engine's. Row `n` of `other` belongs to the same token as row `from + n` of `reference`.
pub(crate) fn nearer_rows(
    reference: &Logprobs,
    other: &Logprobs,
    from: usize,
    ours: &[f32],
) -> Logprobs {
    let mut rows = reference.clone();
    let vocab = ours.len() / reference.rows.max(1);
    if reference.width != other.width || reference.ids.is_some() != other.ids.is_some() {
        return rows;
    }
    for n in 0..other.rows.min(reference.rows.saturating_sub(from)) {
        let at = from + n;
        let mine = ReferenceRow { ids: None, values: &ours[at * vocab..(at + 1) * vocab] };
        let distance = row_error(mine, reference.row(at), &mut Vec::new()).max;
        let other_distance = row_error(mine, other.row(n), &mut Vec::new()).max;
        if other_distance >= distance {
            continue;
        }
        let to = at * reference.width..(at + 1) * reference.width;
        let of = n * reference.width..(n + 1) * reference.width;
        rows.values[to.clone()].copy_from_slice(&other.values[of.clone()]);
        if let (Some(ids), Some(other_ids)) = (&mut rows.ids, &other.ids) {
            ids[to].copy_from_slice(&other_ids[of]);
        }
        if let (Some(targets), Some(other_targets)) = (&mut rows.targets, &other.targets) {
            targets[at] = other_targets[n];
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(values: &[f32]) -> Logprobs {
        Logprobs {
            rows: values.len() / 2,
            width: 2,
            ids: None,
            values: values.to_vec(),
            targets: None,
        }
    }

    #[test]
    fn few_rows_may_lie_at_a_border() {
        let reference: Vec<f32> = (0..16).map(|n| [1.0, -1.0][n % 2]).collect();
        let ours = moved(&reference, &[1, 4], 0.01);
        assert_eq!(settle_flips(&ours, &reference, 8), reference);
        // Too many rows, too far, and as near as in f32.
        for (rows, by) in [(&[1, 4, 6][..], 0.01), (&[1], 0.5), (&[1], 1e-5)] {
            let ours = moved(&reference, rows, by);
            assert_eq!(settle_flips(&ours, &reference, 8), ours);
        }
    }

    fn moved(numbers: &[f32], rows: &[usize], by: f32) -> Vec<f32> {
        numbers
            .iter()
            .enumerate()
            .map(|(n, x)| x + if rows.contains(&(n / 2)) { by } else { 0.0 })
            .collect()
    }

    #[test]
    fn each_row_is_held_to_the_run_that_rounded_alike() {
        let one = rows(&[-0.1, -2.4, -0.7, -0.7, -1.0, -0.5]);
        let other = rows(&[-0.6, -0.8, -3.0, -0.1]);
        let ours = [-0.1, -2.4, -0.6, -0.8, -1.0, -0.5];
        assert_eq!(nearer_rows(&one, &other, 1, &ours).values, ours);
        // No row is nearer than an equal one.
        assert_eq!(nearer_rows(&one, &other, 1, &one.values).values, one.values);
    }
}
