//! Sums over pairs of values, eight pairs at a time.
//!
//! Eight sums are kept and added up at the end, with or without vectors, so that the result is the same on
//! every CPU. The compiler vectorizes the loop for the enabled CPU features.

/// Sums over source values and decoded values.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ErrorSums {
    /// Squared differences.
    pub error: f64,
    /// Squared source values.
    pub power: f64,
    /// Products of both.
    pub product: f64,
    /// Squared decoded values.
    pub decoded: f64,
    /// Largest absolute difference.
    pub largest: f64,
}

/// Number of pairs per iteration.
const WIDTH: usize = 8;

widest! {
    /// Computes the sums with the widest vectors of the CPU.
    pub fn sums(numbers: &[f32], seen: &[f32]) -> ErrorSums = plain;
}

#[inline(always)]
fn plain(numbers: &[f32], seen: &[f32]) -> ErrorSums {
    let mut lanes = LaneSums::default();
    let (chunks, rest) = numbers.as_chunks::<WIDTH>();
    let (seen_chunks, seen_rest) = seen.as_chunks::<WIDTH>();
    for (x, y) in chunks.iter().zip(seen_chunks) {
        lanes.add(x, y);
    }
    let padded = |rest: &[f32]| std::array::from_fn(|n| rest.get(n).copied().unwrap_or(0.0));
    lanes.add(&padded(rest), &padded(seen_rest));
    let sum = |lanes: [f64; WIDTH]| lanes.iter().sum();
    ErrorSums {
        error: sum(lanes.error),
        power: sum(lanes.power),
        product: sum(lanes.product),
        decoded: sum(lanes.decoded),
        largest: lanes.largest.iter().fold(0.0, |most: f64, x| most.max(*x)),
    }
}

#[derive(Default)]
struct LaneSums {
    error: [f64; WIDTH],
    power: [f64; WIDTH],
    product: [f64; WIDTH],
    decoded: [f64; WIDTH],
    largest: [f64; WIDTH],
}

impl LaneSums {
    #[inline(always)]
    fn add(&mut self, x: &[f32; WIDTH], y: &[f32; WIDTH]) {
        let (x, y) = (x.map(f64::from), y.map(f64::from));
        let error: [f64; WIDTH] = std::array::from_fn(|n| y[n] - x[n]);
        let each = |sum: &mut [f64; WIDTH], a: &[f64; WIDTH], b: &[f64; WIDTH]| {
            for n in 0..WIDTH {
                sum[n] += a[n] * b[n];
            }
        };
        each(&mut self.error, &error, &error);
        each(&mut self.power, &x, &x);
        each(&mut self.product, &x, &y);
        each(&mut self.decoded, &y, &y);
        for (most, error) in self.largest.iter_mut().zip(error) {
            let size = error.abs();
            *most = if size > *most { size } else { *most };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_give_the_same_sums() {
        let x: Vec<f32> = (0..1003).map(|n| (n as f32 * 0.37).sin() * 1.7).collect();
        let y: Vec<f32> = x.iter().map(|x| (x * 16.0).round() / 16.0).collect();
        for upto in [0, 1, 7, 8, 9, 250, 1003] {
            let (x, y) = (&x[..upto], &y[..upto]);
            assert_eq!(sums(x, y), plain(x, y));
            let one = |f: fn(f64, f64) -> f64| -> f64 {
                x.iter().zip(y).map(|(&x, &y)| f(x.into(), y.into())).sum()
            };
            let whole = plain(x, y);
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-12 * b.abs();
            assert!(near(whole.error, one(|x, y| (y - x) * (y - x))));
            assert!(near(whole.power, one(|x, _| x * x)));
            assert!(near(whole.product, one(|x, y| x * y)));
            assert!(near(whole.decoded, one(|_, y| y * y)));
            let most = x.iter().zip(y).map(|(&x, &y)| f64::from(y) - f64::from(x));
            assert_eq!(whole.largest, most.fold(0.0, |most: f64, x| most.max(x.abs())));
        }
    }
}
