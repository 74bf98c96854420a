//! Statistics of paired results.

/// Returns the standard error of a mean, with `n - 1` in the denominator as lm-eval's `mean_stderr`.
///
/// For shares of correct answers this is the binomial standard error `sqrt(p (1 - p) / (n - 1))`.
pub fn standard_error(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    if values.len() < 2 {
        return None;
    }
    let mean = mean(values)?;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((squares / (n - 1.0) / n).sqrt())
}

/// Returns the mean; none for an empty slice.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the two-sided p value of McNemar's exact test.
///
/// `only_a` and `only_b` count the items that only one side has right. Under the null hypothesis, the
/// smaller of them is binomial with one half.
pub fn mcnemar(only_a: u64, only_b: u64) -> f64 {
    let n = only_a + only_b;
    let least = only_a.min(only_b);
    // The sum uses the logarithm of each term, so that thousands of items do not underflow.
    let mut term = -(n as f64) * std::f64::consts::LN_2;
    let mut sum = term;
    for k in 0..least {
        term += (((n - k) as f64) / ((k + 1) as f64)).ln();
        let (high, low) = if term > sum { (term, sum) } else { (sum, term) };
        sum = high + (low - high).exp().ln_1p();
    }
    (2.0 * sum.exp()).min(1.0)
}

/// Returns the upper end of the 95 % interval of a share, by Wilson (1927).
pub fn wilson_upper(hits: usize, n: usize) -> Option<f64> {
    // The quantile of the normal distribution at 0.975.
    const Z: f64 = 1.96;
    let hits = hits as f64;
    let n = n as f64;
    if n == 0.0 {
        return None;
    }
    let share = hits / n;
    let part = Z * Z / n;
    let spread = Z * (share * (1.0 - share) / n + part / (4.0 * n)).sqrt();
    Some((share + part / 2.0 + spread) / (1.0 + part))
}

/// Number of bootstrap draws.
const DRAWS: usize = 4000;
/// Maximum number of values that the bootstrap draws; more items are resampled less often.
const WORK: usize = 40_000_000;
/// Seed of the bootstrap: the same files give the same interval.
const SEED: u64 = 0x0e7a_15ee_d0b0_075a;

/// Returns the 95 % interval of the mean by the percentile bootstrap.
pub fn bootstrap(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() < 2 {
        return None;
    }
    let draws = (WORK / values.len()).clamp(200, DRAWS);
    let mut state = SEED;
    let mut means: Vec<f64> = (0..draws)
        .map(|_| {
            let drawn: f64 =
                (0..values.len()).map(|_| values[below(&mut state, values.len())]).sum();
            drawn / values.len() as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    Some((quantile(&means, 0.025)?, quantile(&means, 0.975)?))
}

/// Returns a quantile of sorted values, linear between neighbours as in numpy's default.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = share.clamp(0.0, 1.0) * last as f64;
    let low = (place.floor() as usize).min(last);
    let high = (low + 1).min(last);
    let part = place - low as f64;
    // Two infinities of one sign have no difference.
    if part == 0.0 || sorted[low] == sorted[high] {
        return Some(sorted[low]);
    }
    Some(sorted[low] + (sorted[high] - sorted[low]) * part)
}

/// Draws an index below `n`, by SplitMix64 (Steele, Lea and Flood 2014).
fn below(state: &mut u64, n: usize) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    ((u128::from(z) * n as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From scipy 1.17.1: `stats.binomtest(min(b, c), b + c, 0.5).pvalue`.
    const BINOMTEST: [(u64, u64, f64); 9] = [
        (1, 0, 1.0),
        (6, 5, 1.0),
        (10, 11, 1.0),
        (2, 12, 0.012_939_453_125),
        (0, 8, 0.007_812_5),
        (30, 60, 0.002_060_265_680_963_074_5),
        (500, 600, 0.002_819_544_991_436_428_4),
        (4000, 4100, 0.271_331_087_143_932_3),
        (90, 10, 3.063_290_175_437_984_5e-17),
    ];

    #[test]
    fn the_test_of_mcnemar_is_the_one_of_scipy() {
        assert_eq!(mcnemar(0, 0), 1.0);
        for (b, c, expected) in BINOMTEST {
            for p in [mcnemar(b, c), mcnemar(c, b)] {
                assert!((p - expected).abs() <= 1e-10 * expected, "{b} {c}: {p} {expected}");
            }
        }
    }

    fn paired(wins: usize, losses: usize, ties: usize) -> Vec<f64> {
        [vec![1.0; wins], vec![-1.0; losses], vec![0.0; ties]].concat()
    }

    #[test]
    fn the_standard_error_is_the_one_of_scipy() {
        // From scipy 1.17.1: `stats.sem(numpy.r_[numpy.ones(k), numpy.zeros(n - k)])`.
        for (k, n, expected) in [
            (53, 200, 0.031_285_281_590_887_2),
            (133, 200, 0.033_458_517_029_435_8),
            (85, 200, 0.035_043_046_034_511_39),
            (86, 200, 0.035_094_989_549_183_32),
            (1, 10, 0.1),
        ] {
            let error = standard_error(&paired(k, 0, n - k)).unwrap();
            assert!((error - expected).abs() < 1e-12, "{k} of {n}: {error}");
            let p = k as f64 / n as f64;
            assert!((error - (p * (1.0 - p) / (n as f64 - 1.0)).sqrt()).abs() < 1e-12);
        }
        assert_eq!(standard_error(&[1.0]), None);
    }

    #[test]
    fn the_bootstrap_gives_the_interval_of_scipy() {
        // From scipy 1.17.1: `stats.bootstrap((d,), numpy.mean, n_resamples=100000, method="percentile",
        // rng=numpy.random.default_rng(0)).confidence_interval`.
        for (d, low, high) in
            [(paired(10, 11, 179), -0.05, 0.04), (paired(90, 10, 100), 0.32, 0.48)]
        {
            let interval = bootstrap(&d).unwrap();
            assert!(
                (interval.0 - low).abs() < 0.006 && (interval.1 - high).abs() < 0.006,
                "{interval:?}"
            );
            assert_eq!(bootstrap(&d), Some(interval), "the seed is fixed");
        }
        assert_eq!(bootstrap(&[]), None);
    }

    #[test]
    fn the_upper_end_of_a_share_is_the_one_of_statsmodels() {
        // `proportion_confint(hits, n, method="wilson")[1]` with z = 1.96.
        for (hits, n, expected) in
            [(0, 10, 0.277_540), (5, 10, 0.763_410), (190, 200, 0.972_617_65)]
        {
            assert!(
                (wilson_upper(hits, n).unwrap() - expected).abs() < 1e-5,
                "{hits} of {n}: {:?}",
                wilson_upper(hits, n)
            );
        }
        assert_eq!(wilson_upper(0, 0), None);
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        assert_eq!(quantile(&[1.0, 2.0, 4.0], 0.75), Some(3.0));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[1.0, f64::INFINITY, f64::INFINITY], 0.9), Some(f64::INFINITY));
    }
}
