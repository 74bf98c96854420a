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

impl ErrorSums {
    /// True if no square was beyond the range of f32.
    fn is_reliable(&self) -> bool {
        let within = |sum: f64| sum.is_finite() && sum >= LEAST;
        within(self.power)
            && within(self.decoded)
            && (within(self.error) || self.error == 0.0 && self.largest == 0.0)
    }
}

widest! {
    /// Squares in f32.
    fn narrow_sums(numbers: &[f32], seen: &[f32]) -> ErrorSums = plain_narrow_sums;
}

widest! {
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
        let sum = |parts: [f64; WIDTH]| parts.iter().sum();
        ErrorSums {
            error: sum(self.error),
            power: sum(self.power),
            decoded: sum(self.decoded),
            largest: self.largest.iter().fold(0.0, |most: f32, x| most.max(*x)),
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
            let one = |f: fn(f64, f64) -> f64| -> f64 {
                x.iter().zip(y).map(|(&x, &y)| f(x.into(), y.into())).sum()
            };
            for (found, bound) in [(sums(x, y), 1e-6), (wide_sums(x, y), 1e-12)] {
                let near = |a: f64, b: f64| (a - b).abs() <= bound * b.abs();
                assert!(near(found.error, one(|x, y| (y - x) * (y - x))));
                assert!(near(found.power, one(|x, _| x * x)));
                assert!(near(found.decoded, one(|_, y| y * y)));
                let most = x.iter().zip(y).map(|(x, y)| (y - x).abs());
                assert_eq!(found.largest, most.fold(0.0, f32::max));
            }
        }
    }

    #[test]
    fn squares_beyond_f32_are_summed_in_f64() {
        let x = values(200);
        let off: Vec<f32> = x.iter().map(|x| x * 1.01).collect();
        let base = wide_sums(&x, &off);
        for power in [-140, -100, -70, -20, 20, 63, 66, 120] {
            let scale = 2.0_f64.powi(power) as f32;
            let scaled = |x: &[f32]| -> Vec<f32> { x.iter().map(|x| x * scale).collect() };
            let found = sums(&scaled(&x), &scaled(&off));
            let factor = f64::from(scale).powi(2);
            // Values of 2^-140 have 9 bits.
            let bound = if power < -120 { 0.1 } else { 1e-6 };
            for (found, base) in [
                (found.error, base.error),
                (found.power, base.power),
                (found.decoded, base.decoded),
            ] {
                assert!((found / (base * factor) - 1.0).abs() < bound, "2^{power}: {found:e}");
            }
        }
        assert_eq!(sums(&[0.0; 70], &[0.0; 70]), ErrorSums::default());
        assert_eq!(sums(&[1.0], &[f32::INFINITY]).error, f64::INFINITY);
        assert!(sums(&[1.0], &[f32::NAN]).error.is_nan());
        // An error far below the values is not lost.
        assert!(sums(&[1.0, 1e-30], &[1.0, 2e-30]).error > 0.0);
    }
}
