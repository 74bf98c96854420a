//! Measures of the distance between two tensors, or two distributions.
//!
//! A NaN on one side only counts as infinitely far, so that a NaN or overflow can never pass a bound.

pub use engine::sample::log_softmax;
use serde::Serialize;

/// Distribution of a set of errors.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Spread {
    /// Number of values.
    pub count: usize,
    /// Mean of the values.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest value.
    pub max: f64,
}

impl Spread {
    /// Summarizes errors; reorders them. Quantiles are by nearest rank.
    pub fn of(values: &mut [f32]) -> Self {
        let count = values.len();
        if count == 0 {
            return Self::default();
        }
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / count as f64;
        Self {
            count,
            mean,
            p50: quantile(values, 0.5),
            p90: quantile(values, 0.9),
            p99: quantile(values, 0.99),
            max: quantile(values, 1.0),
        }
    }
}

/// Returns a quantile of one or more values by nearest rank; reorders them.
fn quantile(values: &mut [f32], share: f64) -> f64 {
    let count = values.len();
    let rank = ((share * count as f64).ceil() as usize).clamp(1, count) - 1;
    f64::from(*values.select_nth_unstable_by(rank, f32::total_cmp).1)
}

/// Returns `|a - b|`; 0 if both are equal, including equal infinities and NaN on both sides.
pub fn gap(a: f32, b: f32) -> f32 {
    if a == b || (a.is_nan() && b.is_nan()) {
        return 0.0;
    }
    let gap = (a - b).abs();
    if gap.is_nan() { f32::INFINITY } else { gap }
}

/// Distance of a tensor from a reference tensor.
#[derive(Debug, Clone)]
pub struct TensorError {
    /// Distribution of `|Δ| / rms(reference)` over all elements.
    pub spread: Spread,
    /// Largest `|Δ| / rms(row of the reference)` of each row.
    pub rows: Vec<f64>,
    /// `<ours, reference> / <reference, reference> - 1`: 0 unless our tensor is scaled.
    pub gain: f64,
    /// Cosine of the angle between the two; 1 if our tensor is a multiple of the reference.
    pub cosine: f64,
}

/// Minimum scale of a row, as a share of the tensor's rms. The remainder after cancellation is not a
/// meaningful scale.
pub(crate) const QUIET_ROW: f64 = 0.05;

/// Compares two tensors of equal length, split into `rows` equal rows.
///
/// # Panics
/// If their lengths differ.
pub fn tensor_error(ours: &[f32], reference: &[f32], rows: usize) -> TensorError {
    assert_eq!(ours.len(), reference.len(), "callers compare shapes first");
    let power: f64 = reference.iter().map(|x| finite_square(*x)).sum();
    let count = reference.len().max(1) as f64;
    let rms = (power / count).sqrt().max(f64::from(f32::MIN_POSITIVE));
    let width = reference.len().checked_div(rows).unwrap_or(0);
    let mut all = Vec::with_capacity(reference.len());
    let mut per_row = Vec::with_capacity(rows);
    for row in 0..rows {
        let range = row * width..(row + 1) * width;
        let a = &ours[range.clone()];
        let b = &reference[range];
        let row_power: f64 = b.iter().map(|x| finite_square(*x)).sum();
        // A single value defines no scale: it may be arbitrarily close to 0.
        let row_rms = if width > 1 { (row_power / width as f64).sqrt() } else { rms };
        let scale = row_rms.max(QUIET_ROW * rms);
        let mut worst = 0.0_f64;
        for (x, y) in a.iter().zip(b) {
            let error = f64::from(gap(*x, *y));
            worst = worst.max(error);
            all.push((error / rms) as f32);
        }
        per_row.push(worst / scale);
    }
    let dot: f64 = ours.iter().zip(reference).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
    let our_power: f64 = ours.iter().map(|x| finite_square(*x)).sum();
    let (gain, cosine) = if power > 0.0 && our_power > 0.0 {
        (dot / power - 1.0, dot / (power * our_power).sqrt())
    } else {
        (0.0, 1.0)
    };
    TensorError { spread: Spread::of(&mut all), rows: per_row, gain, cosine }
}

/// Returns the square of a value; 0 for NaN and infinity.
fn finite_square(x: f32) -> f64 {
    if x.is_finite() { f64::from(x) * f64::from(x) } else { 0.0 }
}

/// Returns the index of the largest value, the first of equals, as in greedy decoding.
pub fn top1(row: &[f32]) -> usize {
    let mut best = 0;
    for (n, x) in row.iter().enumerate() {
        if *x > row[best] || (row[best].is_nan() && !x.is_nan()) {
            best = n;
        }
    }
    best
}

/// Row of a reference's log-probabilities: all of them, or the most likely ones.
#[derive(Debug, Clone, Copy)]
pub struct ReferenceRow<'a> {
    /// Tokens of `values`; the whole vocabulary in order if absent.
    pub ids: Option<&'a [u32]>,
    /// Log-probabilities.
    pub values: &'a [f32],
}

impl<'a> ReferenceRow<'a> {
    /// Returns pairs of token and log-probability.
    pub fn entries(self) -> impl Iterator<Item = (usize, f32)> + 'a {
        self.values
            .iter()
            .enumerate()
            .map(move |(n, value)| (self.ids.map_or(n, |ids| ids[n] as usize), *value))
    }

    /// Returns the log-probability of a token, if the row has it.
    pub fn at(self, token: usize) -> Option<f32> {
        match self.ids {
            None => self.values.get(token).copied(),
            Some(ids) => ids
                .iter()
                .position(|id| *id as usize == token)
                .and_then(|n| self.values.get(n).copied()),
        }
    }

    /// Returns the most likely token.
    pub fn top(self) -> usize {
        let n = top1(self.values);
        self.ids.map_or(n, |ids| ids.get(n).map_or(0, |id| *id as usize))
    }
}

/// Distance of a row of log-probabilities from a reference row.
#[derive(Debug, Clone, Copy, Default)]
pub struct RowError {
    /// Largest `|Δ|`.
    pub max: f32,
    /// Root mean square of `Δ`.
    pub rms: f64,
    /// Kullback-Leibler divergence from the reference, in nats.
    pub kl: f64,
    /// True if both have the same most likely token.
    pub agrees: bool,
}

/// Compares two rows over the tokens that both have, pushing every `|Δ|` to `deltas`.
///
/// Tokens that a truncated row omits count in the divergence as one token.
pub fn row_error(
    ours: ReferenceRow<'_>,
    reference: ReferenceRow<'_>,
    deltas: &mut Vec<f32>,
) -> RowError {
    let mut error = RowError { agrees: ours.top() == reference.top(), ..RowError::default() };
    let mut p = 0.0_f64;
    let mut q = 0.0_f64;
    let mut power = 0.0_f64;
    let mut count = 0_usize;
    for (token, want) in reference.entries() {
        let Some(got) = ours.at(token) else { continue };
        let delta = gap(got, want);
        deltas.push(delta);
        error.max = error.max.max(delta);
        (power, count) = (power + f64::from(delta).powi(2), count + 1);
        let want = f64::from(want);
        let got = f64::from(got);
        if want > f64::NEG_INFINITY {
            p += want.exp();
            q += got.exp();
            error.kl += want.exp() * (want - got);
        }
    }
    error.rms = (power / count.max(1) as f64).sqrt();
    let shortened = reference.ids.is_some() || ours.ids.is_some();
    let p = 1.0 - p;
    let q = 1.0 - q;
    if shortened && p > 1e-9 && q > 1e-12 {
        error.kl += p * (p / q).ln();
    }
    error.kl = if error.kl.is_nan() { f64::INFINITY } else { error.kl.max(0.0) };
    error
}

/// Returns the number of mantissa bits in use: 23 for any f32, 10 for values of f16, 7 for values of bf16.
pub fn mantissa_bits(x: f32) -> u32 {
    let mantissa = x.to_bits() & 0x007f_ffff;
    if mantissa == 0 { 0 } else { 23 - mantissa.trailing_zeros() }
}

/// Returns the finest grid that the values need, and the number of nonzero values.
pub fn grid(values: &[f32]) -> (u32, usize) {
    values
        .iter()
        .filter(|x| x.is_finite() && **x != 0.0)
        .fold((0, 0), |(bits, count), x| (bits.max(mantissa_bits(*x)), count + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads() {
        let mut values: Vec<f32> = (1..=100).rev().map(|n| n as f32).collect();
        let s = Spread::of(&mut values);
        assert_eq!((s.count, s.p50, s.p90, s.p99, s.max), (100, 50.0, 90.0, 99.0, 100.0));
        assert_eq!(Spread::of(&mut []).max, 0.0);
        assert_eq!(Spread::of(&mut [3.0]).p50, 3.0);
    }

    #[test]
    fn what_is_not_a_number_is_far() {
        assert_eq!(gap(f32::NAN, 1.0), f32::INFINITY);
        assert_eq!(gap(1.0, f32::NAN), f32::INFINITY);
        assert_eq!(gap(f32::NEG_INFINITY, f32::NEG_INFINITY), 0.0);
        assert_eq!(gap(f32::INFINITY, f32::NEG_INFINITY), f32::INFINITY);
        assert_eq!(tensor_error(&[f32::NAN, 1.0], &[1.0, 1.0], 1).spread.max, f64::INFINITY);
    }

    #[test]
    fn log_softmax_is_normal() {
        let mut out = [0.0; 3];
        let total = log_softmax(&[1.0, 2.0, 3.0], &mut out);
        approx::assert_abs_diff_eq!(total, 3.407_605_964_444_38, epsilon = 1e-12);
        approx::assert_abs_diff_eq!(out.iter().map(|x| x.exp()).sum::<f32>(), 1.0, epsilon = 1e-6);
        let mut masked = [0.0; 2];
        log_softmax(&[f32::NEG_INFINITY, 5.0], &mut masked);
        assert_eq!(masked, [f32::NEG_INFINITY, 0.0]);
    }

    #[test]
    fn divergence_of_rows() {
        let a = [0.5_f32.ln(), 0.5_f32.ln()];
        let b = [0.75_f32.ln(), 0.25_f32.ln()];
        let mut deltas = Vec::new();
        let e = row_error(
            ReferenceRow { ids: None, values: &b },
            ReferenceRow { ids: None, values: &a },
            &mut deltas,
        );
        approx::assert_abs_diff_eq!(e.kl, 0.143_841, epsilon = 1e-5);
        assert_eq!(deltas.len(), 2);
        // The top two of three, in another order: the third counts as the rest.
        let full = [0.5_f32.ln(), 0.3_f32.ln(), 0.2_f32.ln()];
        let few = ReferenceRow { ids: Some(&[1, 0]), values: &[0.3_f32.ln(), 0.5_f32.ln()] };
        let e = row_error(ReferenceRow { ids: None, values: &full }, few, &mut deltas);
        approx::assert_abs_diff_eq!(e.kl, 0.0, epsilon = 1e-6);
        assert!(e.agrees && e.max == 0.0);
    }

    #[test]
    fn a_scaled_tensor_shows_as_gain() {
        let reference = [1.0_f32, -2.0, 3.0, 0.5];
        let ours = reference.map(|x| x * 1.01);
        let e = tensor_error(&ours, &reference, 2);
        approx::assert_abs_diff_eq!(e.gain, 0.01, epsilon = 1e-6);
        approx::assert_abs_diff_eq!(e.cosine, 1.0, epsilon = 1e-9);
        assert_eq!(e.rows.len(), 2);
    }

    #[test]
    fn grids() {
        for (x, bits) in
            [(1.0, 0), (1.5, 1), (0.1_f32, 23), (0.099_975_586, 9), (1.000_976_6, 10), (0.0, 0)]
        {
            assert_eq!(mantissa_bits(x), bits, "{x}");
        }
        assert_eq!(grid(&[0.0, 1.5, f32::NAN]), (1, 1));
    }
}
