//! Sums over pairs of values, 64 pairs at a time.
//!
//! Every sum has sixteen parts that are added up at the end, with or without vectors, so that the result is
//! the same on every CPU. The compiler vectorizes the loops for the enabled CPU features.
//!
//! A square of f32 has a relative error of 2^-24, and four of them are added before the sum continues in
//! f64: conversions to f64 take more time than everything else. Squares beyond the range of f32 show in the
//! sums, which are then computed again in f64.

use crate::codec::layout::each;

/// Sums over source values and decoded values.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ErrorSums {
    /// Squared differences.
    pub error: f64,
    /// Squared source values.
    pub power: f64,
    /// Squared decoded values.
    pub decoded: f64,
    /// Largest absolute difference.
    pub largest: f32,
}

/// Number of parts of a sum.
const WIDTH: usize = 16;

/// Number of pairs per iteration.
const CHUNK: usize = 4 * WIDTH;

/// Least sum of squares of f32 that no rounding to zero has changed noticeably: each of up to 2^32 squares
/// loses at most 2^-150.
const LEAST: f64 = 1e-30;

/// Computes the sums with the widest vectors of the CPU.
pub fn sums(numbers: &[f32], seen: &[f32]) -> ErrorSums {
    let quick = narrow_sums(numbers, seen);
    if quick.is_reliable() { quick } else { wide_sums(numbers, seen) }
}

/// True if a sum is finite and not too small to be exact.
fn is_in_range(sum: f64) -> bool {
    sum.is_finite() && sum >= LEAST
}

impl ErrorSums {
    /// True if no square was beyond the range of f32.
    fn is_reliable(&self) -> bool {
        is_in_range(self.power)
            && is_in_range(self.decoded)
            && (is_in_range(self.error) || self.error == 0.0 && self.largest == 0.0)
    }
}

lanes::widest! {
    /// Squares in f32.
    fn narrow_sums(numbers: &[f32], seen: &[f32]) -> ErrorSums = plain_narrow_sums;
}

lanes::widest! {
    /// Squares in f64.
    fn wide_sums(numbers: &[f32], seen: &[f32]) -> ErrorSums = plain_wide_sums;
}

#[inline(always)]
fn plain_narrow_sums(numbers: &[f32], seen: &[f32]) -> ErrorSums {
    PartialSums::default().total::<false>(numbers, seen)
}

#[inline(always)]
fn plain_wide_sums(numbers: &[f32], seen: &[f32]) -> ErrorSums {
    PartialSums::default().total::<true>(numbers, seen)
}

/// Parts of the sums.
#[derive(Default)]
struct PartialSums {
    error: [f64; WIDTH],
    power: [f64; WIDTH],
    decoded: [f64; WIDTH],
    largest: [f32; WIDTH],
}

impl PartialSums {
    /// Adds all pairs and the parts. Zeros complete the last chunk.
    #[inline(always)]
    fn total<const WIDE: bool>(mut self, x: &[f32], y: &[f32]) -> ErrorSums {
        let (x, x_rest) = x.as_chunks::<CHUNK>();
        let (y, y_rest) = y.as_chunks::<CHUNK>();
        for (x, y) in x.iter().zip(y) {
            self.add::<WIDE>(x, y);
        }
        if !x_rest.is_empty() {
            let mut x = [0.0; CHUNK];
            let mut y = [0.0; CHUNK];
            x[..x_rest.len()].copy_from_slice(x_rest);
            y[..y_rest.len()].copy_from_slice(y_rest);
            self.add::<WIDE>(&x, &y);
        }
        ErrorSums {
            error: self.error.iter().sum(),
            power: self.power.iter().sum(),
            decoded: self.decoded.iter().sum(),
            largest: self.largest.iter().fold(0.0, |greatest: f32, x| greatest.max(*x)),
        }
    }

    #[inline(always)]
    fn add<const WIDE: bool>(&mut self, x: &[f32; CHUNK], y: &[f32; CHUNK]) {
        let pairs = x.as_chunks::<WIDTH>().0.iter().zip(y.as_chunks::<WIDTH>().0);
        if WIDE {
            for (x, y) in pairs {
                let x = each(x, f64::from);
                let y = each(y, f64::from);
                for n in 0..WIDTH {
                    let error = y[n] - x[n];
                    self.error[n] += error * error;
                    self.power[n] += x[n] * x[n];
                    self.decoded[n] += y[n] * y[n];
                    let size = error.abs() as f32;
                    self.largest[n] = if size > self.largest[n] { size } else { self.largest[n] };
                }
            }
            return;
        }
        let mut error = [0.0; WIDTH];
        let mut power = [0.0; WIDTH];
        let mut decoded = [0.0; WIDTH];
        for (x, y) in pairs {
            for n in 0..WIDTH {
                let off = y[n] - x[n];
                error[n] += off * off;
                power[n] += x[n] * x[n];
                decoded[n] += y[n] * y[n];
                let size = off.abs();
                self.largest[n] = if size > self.largest[n] { size } else { self.largest[n] };
            }
        }
        for n in 0..WIDTH {
            self.error[n] += f64::from(error[n]);
            self.power[n] += f64::from(power[n]);
            self.decoded[n] += f64::from(decoded[n]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(count: usize) -> Vec<f32> {
        (0..count).map(|n| (n as f32 * 0.37).sin() * 1.7).collect()
    }

    #[test]
    fn vectors_give_the_same_sums() {
        let x = values(1003);
        let y: Vec<f32> = x.iter().map(|x| (x * 16.0).round() / 16.0).collect();
        for upto in [0, 1, 7, 8, 9, 63, 64, 65, 250, 1003] {
            let x = &x[..upto];
            let y = &y[..upto];
            assert_eq!(narrow_sums(x, y), plain_narrow_sums(x, y));
            assert_eq!(wide_sums(x, y), plain_wide_sums(x, y));
            for (actual, bound) in [(sums(x, y), 1e-6), (wide_sums(x, y), 1e-12)] {
                assert!(near(actual.error, sum_of(x, y, |x, y| (y - x) * (y - x)), bound));
                assert!(near(actual.power, sum_of(x, y, |x, _| x * x), bound));
                assert!(near(actual.decoded, sum_of(x, y, |_, y| y * y), bound));
                let errors = x.iter().zip(y).map(|(x, y)| (y - x).abs());
                assert_eq!(actual.largest, errors.fold(0.0, f32::max));
            }
        }
    }

    fn near(a: f64, b: f64, bound: f64) -> bool {
        (a - b).abs() <= bound * b.abs()
    }

    fn sum_of(x: &[f32], y: &[f32], f: fn(f64, f64) -> f64) -> f64 {
        x.iter().zip(y).map(|(&x, &y)| f(x.into(), y.into())).sum()
    }

    #[test]
    fn squares_beyond_f32_are_summed_in_f64() {
        let x = values(200);
        let off: Vec<f32> = x.iter().map(|x| x * 1.01).collect();
        let base = wide_sums(&x, &off);
        for power in [-140, -100, -70, -20, 20, 63, 66, 120] {
            let scale = 2.0_f64.powi(power) as f32;
            let [x, off] =
                [&x, &off].map(|values| values.iter().map(|x| x * scale).collect::<Vec<f32>>());
            let actual = sums(&x, &off);
            let factor = f64::from(scale).powi(2);
            // Values of 2^-140 have 9 bits.
            let bound = if power < -120 { 0.1 } else { 1e-6 };
            for (actual, base) in [
                (actual.error, base.error),
                (actual.power, base.power),
                (actual.decoded, base.decoded),
            ] {
                assert!((actual / (base * factor) - 1.0).abs() < bound, "2^{power}: {actual:e}");
            }
        }
        assert_eq!(sums(&[0.0; 70], &[0.0; 70]), ErrorSums::default());
        assert_eq!(sums(&[1.0], &[f32::INFINITY]).error, f64::INFINITY);
        assert!(sums(&[1.0], &[f32::NAN]).error.is_nan());
        // An error far below the values is not lost.
        assert!(sums(&[1.0, 1e-30], &[1.0, 2e-30]).error > 0.0);
    }
}
