//! Measures the distance of a server's row from a reference row, over the tokens that the server exposes.

use endpoints::{FLOOR, LogprobRow};

use crate::metrics::top1;

/// Distance of one row.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RowDistance {
    /// Largest difference of a log-probability.
    pub(super) max: f64,
    /// Root mean square of the differences.
    pub(super) rms: f64,
    /// Divergence from the reference in nats; tokens that either side omits count as one.
    pub(super) kl: f64,
    /// True if both have the same most likely token.
    pub(super) agrees: bool,
}

/// Compares a row with a reference row, pushing every difference to `deltas`.
///
/// Tokens that a truncated row omits are at most as likely as its least likely one. If the reference has a
/// likelier omitted token, the excess counts as a difference.
pub(super) fn distance(
    server: &LogprobRow,
    reference: &LogprobRow,
    deltas: &mut Vec<f32>,
) -> RowDistance {
    let from = deltas.len();
    let mut kl = 0.0_f64;
    let mut p = 0.0_f64;
    let mut q = 0.0_f64;
    for (id, got) in server.entries() {
        let Some(want) = reference.at(id as u32) else { continue };
        deltas.push(logprob_gap(got, want));
        let want = f64::from(want.max(FLOOR));
        let got = f64::from(got.max(FLOOR));
        (p, q) = (p + want.exp(), q + got.exp());
        kl += want.exp() * (want - got);
    }
    if let (false, Some(got), Some(want)) = (server.is_full(), server.target, reference.target) {
        deltas.push(logprob_gap(got, want));
    }
    if let Some(least) = least_likely(server) {
        let over = reference
            .entries()
            .filter(|(id, want)| *want > least && server.at(*id as u32).is_none());
        deltas.extend(over.map(|(_, want)| want - least).reduce(f32::max));
    }
    let p = 1.0 - p;
    let q = 1.0 - q;
    if p > 1e-9 && q > 1e-12 && server.values.len() > 1 {
        kl += p * (p / q).ln();
    }
    let differences = &deltas[from..];
    let power: f64 = differences.iter().map(|delta| f64::from(*delta).powi(2)).sum();
    RowDistance {
        max: differences.iter().copied().fold(0.0, f32::max).into(),
        rms: (power / differences.len().max(1) as f64).sqrt(),
        kl: if server.values.len() > 1 { kl.max(0.0) } else { 0.0 },
        agrees: server.values.len() < 2 || top(server) == top(reference),
    }
}

/// Returns the difference of two log-probabilities; zero probabilities are equal.
pub(super) fn logprob_gap(a: f32, b: f32) -> f32 {
    let gap = (a.max(FLOOR) - b.max(FLOOR)).abs();
    if gap.is_nan() { f32::INFINITY } else { gap }
}

/// Returns the most likely token of a row.
pub(super) fn top(row: &LogprobRow) -> usize {
    let n = top1(&row.values);
    row.ids.as_ref().map_or(n, |ids| ids.get(n).map_or(0, |id| *id as usize))
}

/// Returns the least likely of the top tokens in a truncated row. The next token is included regardless of
/// rank.
fn least_likely(row: &LogprobRow) -> Option<f32> {
    if row.is_full() || row.values.len() < 3 {
        return None;
    }
    let mut values = row.values.clone();
    values.sort_by(f32::total_cmp);
    let aside = row.target.is_none_or(|target| target == values[0]);
    values.get(usize::from(aside)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs(p: &[f32]) -> Vec<f32> {
        p.iter().map(|p| p.ln()).collect()
    }

    #[test]
    fn shortened_rows_bound_what_they_leave_out() {
        let full =
            LogprobRow { ids: None, values: logs(&[0.4, 0.3, 0.15, 0.1, 0.05]), target: None };
        let mut deltas = Vec::new();
        assert_eq!(distance(&full, &full, &mut deltas).max, 0.0);
        let right = shortened_row(&[0, 1, 2, 4], &[0.4, 0.3, 0.15, 0.05], 0.05);
        let d = distance(
            &right,
            &LogprobRow { target: Some(0.05_f32.ln()), ..full.clone() },
            &mut deltas,
        );
        assert!(d.max < 1e-6 && d.agrees && d.kl < 1e-6, "{d:?}");
        // A likely token is omitted.
        let wrong = shortened_row(&[0, 2, 3, 4], &[0.4, 0.15, 0.1, 0.05], 0.05);
        let d = distance(&wrong, &full, &mut deltas);
        approx::assert_abs_diff_eq!(d.max, f64::from((0.3_f32 / 0.1).ln()), epsilon = 1e-5);
    }

    fn shortened_row(ids: &[u32], p: &[f32], target: f32) -> LogprobRow {
        LogprobRow { ids: Some(ids.to_vec()), values: logs(p), target: Some(target.ln()) }
    }

    #[test]
    fn what_has_no_probability_is_the_same() {
        assert_eq!(logprob_gap(-9999.0, f32::NEG_INFINITY), 0.0);
        assert_eq!(logprob_gap(-3.4e38, -120.0), 0.0);
        assert_eq!(logprob_gap(-9999.0, -10.0), 70.0);
        assert_eq!(logprob_gap(f32::NAN, -1.0), 79.0);
    }
}
