//! Error of a converted tensor against its source.
//!
//! Squares are computed in f32 and summed in f64 ([decision 76](../../../docs/decisions/0076-errors-measured-in-f32.md)).

use formats::codec::{ErrorSums, sums};

/// Sums over the values of a tensor, or of a part of it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measure {
    /// Number of values.
    pub count: u64,
    /// Sum of squared errors.
    pub error: f64,
    /// Sum of squared values.
    pub power: f64,
    /// Sum of squared decoded values.
    pub decoded: f64,
    /// Largest absolute error.
    pub largest: f64,
}

impl Measure {
    /// Compares source values with their decoded values.
    pub fn of(numbers: &[f32], seen: &[f32]) -> Self {
        let ErrorSums { error, power, decoded, largest } = sums(numbers, seen);
        Self { count: numbers.len() as u64, error, power, decoded, largest: largest.into() }
    }

    /// Returns the measure of `count` copied values.
    pub fn exact(count: usize) -> Self {
        Self { count: count as u64, ..Self::default() }
    }

    /// Adds the measures of two parts. Parts are added in tensor order, so the sums do not depend on the
    /// order in which workers finish.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            error: self.error + other.error,
            power: self.power + other.power,
            decoded: self.decoded + other.decoded,
            largest: self.largest.max(other.largest),
        }
    }

    /// Returns the relative error: root mean squared error over root mean square of the values.
    pub fn relative(&self) -> f64 {
        if self.error == 0.0 { 0.0 } else { (self.error / self.power).sqrt() }
    }

    /// Returns the cosine between source values and decoded values; 1 for a copy.
    pub fn cosine(&self) -> f64 {
        if self.error == 0.0 {
            return 1.0;
        }
        // (y - x)^2 = x^2 + y^2 - 2 x y.
        let product = (self.power + self.decoded - self.error) / 2.0;
        (product / (self.power * self.decoded).sqrt()).min(1.0)
    }

    pub(super) fn to_text(self) -> String {
        let floats = [self.error, self.power, self.decoded, self.largest];
        let words: Vec<_> = floats.iter().map(|x| format!("{:x}", x.to_bits())).collect();
        format!("{:x}:{}", self.count, words.join(":"))
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let words: Option<Vec<u64>> =
            text.split(':').map(|word| u64::from_str_radix(word, 16).ok()).collect();
        let words = words?;
        let [count, error, power, decoded, largest] = words[..] else { return None };
        let float = f64::from_bits;
        Some(Self {
            count,
            error: float(error),
            power: float(power),
            decoded: float(decoded),
            largest: float(largest),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_survive_as_text() {
        let x = [1.0, -2.0, 3.0, 0.5];
        let y = [1.5, -2.0, 2.0, 0.5];
        let total = Measure::of(&x, &y);
        let parts = Measure::of(&x[..2], &y[..2]).and(Measure::of(&x[2..], &y[2..]));
        assert_eq!(total, parts);
        assert_eq!((total.error, total.largest, total.count), (1.25, 1.0, 4));
        assert!((total.relative() - (1.25_f64 / 14.25).sqrt()).abs() < 1e-12);
        assert_eq!(Measure::parse(&total.to_text()), Some(total));
        assert_eq!(Measure::exact(3).relative(), 0.0);
        assert_eq!(Measure::exact(3).cosine(), 1.0);
        assert!(Measure::parse("1:2").is_none());
    }
}
