//! Functions of one number that loops can vectorise and that give the same bits everywhere.

#![expect(clippy::inline_always, reason = "a call in the loop would keep it from being vectorised")]

/// Computes e^x, at most 1 unit in the last place from correctly rounded. No branch and no call, so a loop
/// over it becomes vector code. The polynomial is Cephes' `expf` (Moshier 1992).
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    let clamped = if x > 89.0 { 89.0 } else { x };
    let clamped = if clamped < -104.0 { -104.0 } else { clamped };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = clamped - n * 0.693_359_4;
    let r = r + n * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let y = p * (r * r) + r + 1.0;
    // 2^n in two halves, so that neither leaves the range of normal numbers.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    y * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// Computes 2^n, for exponents of normal numbers.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

/// Computes 1 / (1 + e^-x).
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Computes x · sigmoid(x), as torch computes it: x / (1 + e^-x).
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// Computes ln(1 + e^x), with torch's threshold of 20.
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// Computes x · Φ(x).
pub fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// Computes the tanh form of [`gelu`] (Hendrycks and Gimpel 2016).
pub fn gelu_tanh(x: f32) -> f32 {
    0.5 * x * (1.0 + (SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x)).tanh())
}

/// √(2/π).
pub const SQRT_2_OVER_PI: f32 = 0.797_884_6;

/// Sums in a fixed order: in f32 over eight running sums, and over blocks in f64.
#[inline(always)]
pub fn sum(data: &[f32]) -> f32 {
    fold(data, |x| x)
}

/// Numbers that running sums take up before they are added to a sum in f64.
///
/// A running sum of thousands of squares of bf16 numbers is too small by two millionths: roundings of such
/// short numbers lean to one side.
const BLOCK: usize = 512;

/// Sums `f` of each number.
#[inline(always)]
pub fn fold(data: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let blocks = data.chunks(BLOCK).map(|block| f64::from(fold_block(block, &f)));
    blocks.sum::<f64>() as f32
}

/// Sums `f` of each number of a block.
#[inline(always)]
fn fold_block(data: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0f32; 8];
    let eights = data.chunks_exact(8);
    let tail: f32 = eights.remainder().iter().map(|&x| f(x)).sum();
    for part in eights {
        for lane in 0..8 {
            sums[lane] += f(part[lane]);
        }
    }
    let [a, b, c, d]: [f32; 4] = std::array::from_fn(|lane| sums[lane] + sums[lane + 4]);
    (a + b) + (c + d) + tail
}

/// Computes Σ a·b in f32, over eight running sums in a fixed order.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let x = a.chunks_exact(8);
    let y = b.chunks_exact(8);
    let tail: f32 = x.remainder().iter().zip(y.remainder()).map(|(a, b)| a * b).sum();
    for (x, y) in x.zip(y) {
        for lane in 0..8 {
            sums[lane] += x[lane] * y[lane];
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (b + f)) + ((c + g) + (d + h)) + tail
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_squares_of_short_numbers_do_not_lean_to_one_side() {
        let mut state = 1_u32;
        let x: Vec<f32> = (0..7168)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // A number with the eight digits of bf16.
                f32::from_bits((state as f32 / u32::MAX as f32 * 0.04).to_bits() & 0xffff_0000)
            })
            .collect();
        let exact: f64 = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        let off = f64::from(fold(&x, |x| x * x)) / exact - 1.0;
        assert!(off.abs() < 1e-7, "{off}");
        // One block is summed as ever.
        assert_eq!(fold(&x[..512], |x| x), fold_block(&x[..512], |x| x));
        assert_eq!(sum(&[]), 0.0);
    }

    #[test]
    fn exp_is_within_an_ulp_or_two_and_handles_the_ends() {
        let mut x = -103.0f32;
        while x < 88.7 {
            let got = f64::from(exp(x));
            let want = f64::from(x).exp();
            let ulp =
                f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32);
            assert!((got - want).abs() <= 1.5 * ulp, "exp({x}) = {got}, not {want}");
            x += 0.0137;
        }
        for (x, want) in [
            (f32::NEG_INFINITY, 0.0),
            (f32::INFINITY, f32::INFINITY),
            (200.0, f32::INFINITY),
            (0.0, 1.0),
            (-0.0, 1.0),
        ] {
            assert_eq!(exp(x), want, "{x}");
        }
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn dots() {
        let a: Vec<f32> = (1..=19).map(|n| n as f32).collect();
        assert_eq!(dot(&a, &a), 2470.0);
        assert_eq!(dot(&[], &[]), 0.0);
    }

    #[test]
    fn known_values() {
        for (got, want) in [
            (silu(1.0), 0.731_058_6),
            (sigmoid(-2.0), 0.119_202_92),
            (gelu(1.0), 0.841_344_7),
            (gelu_tanh(1.0), 0.841_192),
            (softplus(0.0), std::f32::consts::LN_2),
            (softplus(30.0), 30.0),
            (silu(f32::NEG_INFINITY).abs(), f32::NAN),
            (silu(-100.0), 0.0),
        ] {
            assert!((got - want).abs() < 1e-6 || want.is_nan() && got.is_nan(), "{got} {want}");
        }
    }
}
