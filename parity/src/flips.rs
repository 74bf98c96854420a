//! References that round inputs of matrices to 8 bits. If a value lies at a rounding threshold, the last
//! bit of a sum decides, and a step is a 16th of the value. Such a reference differs from itself if it is
//! fed differently, and both results are equally valid. For integers with one scale per row, the largest
//! value lies half a step beyond the last code: at a threshold whenever it is negative.

use crate::dump::Logprobs;
use crate::metrics::{ReferenceRow, row_error, tensor_error};
use crate::rule::{CODE_STEP, CODED_ROW};

/// Returns the engine's rows, replaced by the reference's where a rounding threshold explains the
/// difference. On the reference's own inputs, only few rows lie at a threshold. The remaining differences
/// are judged as usual.
pub(crate) fn settle_flips(ours: &[f32], own: &[f32], rows: usize) -> Vec<f32> {
    let mut settled = ours.to_vec();
    if rows == 0 || ours.len() != own.len() || !ours.len().is_multiple_of(rows) {
        return settled;
    }
    let errors = tensor_error(ours, own, rows).rows;
    let explained = |error: f64| error > CODED_ROW && error <= CODE_STEP;
    if errors.iter().filter(|error| explained(**error)).count() > rows.div_ceil(4) {
        return settled;
    }
    let width = ours.len() / rows;
    for (row, _) in errors.iter().enumerate().filter(|(_, error)| explained(**error)) {
        let at = row * width..(row + 1) * width;
        settled[at.clone()].copy_from_slice(&own[at]);
    }
    settled
}

/// Returns the rows of `own`, each replaced by the corresponding row of `other` if that is nearer to the
/// engine's. Row `n` of `other` belongs to the same token as row `from + n` of `own`.
pub(crate) fn nearer_rows(own: &Logprobs, other: &Logprobs, from: usize, ours: &[f32]) -> Logprobs {
    let mut rows = own.clone();
    let vocab = ours.len() / own.rows.max(1);
    if own.width != other.width || own.ids.is_some() != other.ids.is_some() {
        return rows;
    }
    for n in 0..other.rows.min(own.rows.saturating_sub(from)) {
        let at = from + n;
        let mine = ReferenceRow { ids: None, values: &ours[at * vocab..(at + 1) * vocab] };
        let far = |side: ReferenceRow<'_>| row_error(mine, side, &mut Vec::new()).max;
        if far(other.row(n)) >= far(own.row(at)) {
            continue;
        }
        let to = at * own.width..(at + 1) * own.width;
        let of = n * own.width..(n + 1) * own.width;
        rows.values[to.clone()].copy_from_slice(&other.values[of.clone()]);
        if let (Some(ids), Some(others)) = (&mut rows.ids, &other.ids) {
            ids[to].copy_from_slice(&others[of]);
        }
        if let (Some(targets), Some(others)) = (&mut rows.targets, &other.targets) {
            targets[at] = others[n];
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
        let own: Vec<f32> = (0..16).map(|n| [1.0, -1.0][n % 2]).collect();
        let moved = |rows: &[usize], by: f32| -> Vec<f32> {
            own.iter()
                .enumerate()
                .map(|(n, x)| x + if rows.contains(&(n / 2)) { by } else { 0.0 })
                .collect()
        };
        let settled = |ours: &[f32]| settle_flips(ours, &own, 8);
        assert_eq!(settled(&moved(&[1, 4], 0.01)), own);
        // Too many rows, too far, and as near as in f32.
        for (rows, by) in [(&[1, 4, 6][..], 0.01), (&[1], 0.5), (&[1], 1e-5)] {
            let ours = moved(rows, by);
            assert_eq!(settled(&ours), ours);
        }
    }

    #[test]
    fn each_row_is_held_to_the_run_that_rounded_alike() {
        let own = rows(&[-0.1, -2.4, -0.7, -0.7, -1.0, -0.5]);
        let other = rows(&[-0.6, -0.8, -3.0, -0.1]);
        let ours = [-0.1, -2.4, -0.6, -0.8, -1.0, -0.5];
        assert_eq!(nearer_rows(&own, &other, 1, &ours).values, ours);
        // No row is nearer than an equal one.
        assert_eq!(nearer_rows(&own, &other, 1, &own.values).values, own.values);
    }
}
