//! Inverse frequencies, in f32 where the reference computes in f32.
//!
//! Powers are taken in f64 and rounded once, which is the nearest f32. The reference's
//! vectorized power is within one unit in the last place of that, on most inputs equal.

/// The parameters of YaRN.
pub(crate) struct Yarn {
    pub(crate) factor: f64,
    pub(crate) attention_factor: f64,
    pub(crate) original: f64,
    pub(crate) beta_fast: f64,
    pub(crate) beta_slow: f64,
    pub(crate) truncate: bool,
}

/// Computes `base ** (2n / dim)` for each pair.
fn powers(dim: usize, base: f32, pairs: usize) -> impl Iterator<Item = f32> {
    (0..pairs).map(move |n| {
        let exponent = (2 * n) as f32 / dim as f32;
        f64::from(base).powf(f64::from(exponent)) as f32
    })
}

/// Computes `1 / base ** (2n / dim)`.
pub(crate) fn default(dim: usize, base: f32) -> Vec<f32> {
    powers(dim, base, dim.div_ceil(2)).map(|power| 1.0 / power).collect()
}

/// Computes the default frequencies with a divisor for each pair.
pub(crate) fn divided(dim: usize, base: f32, divisors: &[f32]) -> Vec<f32> {
    powers(dim, base, dim / 2)
        .zip(divisors)
        .map(|(power, divisor)| 1.0 / (divisor * power))
        .collect()
}

/// Frequencies of the first `rotated` pairs of the head, and zeros for the rest.
pub(crate) fn proportional(head: usize, base: f32, rotated: usize, factor: f32) -> Vec<f32> {
    let zeros = std::iter::repeat_n(0.0, head / 2 - rotated);
    powers(head, base, rotated).map(|power| 1.0 / power).chain(zeros).map(|f| f / factor).collect()
}

/// Computes the base of dynamic scaling at its own context, by the formula that grows the base.
pub(crate) fn grown_base(theta: f64, factor: f64, dim: usize) -> f32 {
    let stretch = factor - (factor - 1.0);
    (theta * stretch.powf(dim as f64 / (dim as f64 - 2.0))) as f32
}

/// Computes dynamic scaling for a sequence longer than its context. The length is a tensor in the reference,
/// so everything from it on is f32.
pub(crate) fn dynamic(
    dim: usize,
    theta: f64,
    factor: f64,
    context: usize,
    length: usize,
) -> Vec<f32> {
    let stretch = factor as f32 * length as f32 / context as f32 - (factor - 1.0) as f32;
    let exponent = (dim as f64 / (dim as f64 - 2.0)) as f32;
    let base = theta as f32 * f64::from(stretch).powf(f64::from(exponent)) as f32;
    default(dim, base)
}

pub(crate) fn yarn(dim: usize, theta: f64, yarn: &Yarn) -> Vec<f32> {
    let mut low = turning_place(yarn.beta_fast, dim, theta, yarn.original);
    let mut high = turning_place(yarn.beta_slow, dim, theta, yarn.original);
    if yarn.truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let low = low.max(0.0);
    let mut high = high.min(dim as f64 - 1.0);
    if low == high {
        high += 0.001;
    }
    let start = low as f32;
    let width = (high - low) as f32;
    powers(dim, theta as f32, dim / 2)
        .enumerate()
        .map(|(n, power)| {
            let extrapolated = 1.0 / power;
            let interpolated = 1.0 / (yarn.factor as f32 * power);
            let keep = 1.0 - ((n as f32 - start) / width).clamp(0.0, 1.0);
            interpolated * (1.0 - keep) + extrapolated * keep
        })
        .collect()
}

/// Returns the place, not rounded, of the frequency that turns `rotations` times in the original context.
fn turning_place(rotations: f64, dim: usize, theta: f64, original: f64) -> f64 {
    let turns = original / (rotations * 2.0 * std::f64::consts::PI);
    dim as f64 * turns.ln() / (2.0 * theta.ln())
}

pub(crate) fn llama3(
    inv_freq: Vec<f32>,
    factor: f64,
    low: f64,
    high: f64,
    original: f64,
) -> Vec<f32> {
    let longest = (original / low) as f32;
    let shortest = (original / high) as f32;
    let factor = factor as f32;
    inv_freq
        .into_iter()
        .map(|f| {
            let wavelength = (2.0 * std::f64::consts::PI) as f32 / f;
            if wavelength > longest {
                f / factor
            } else if wavelength < shortest {
                f
            } else {
                let smooth = (original as f32 / wavelength - low as f32) / (high - low) as f32;
                (1.0 - smooth) * f / factor + smooth * f
            }
        })
        .collect()
}
