//! Distributions of the lengths of prompts and outputs.

use fastrand::Rng;

/// Distribution of a number of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LengthDistribution {
    /// Always this number.
    Fixed(usize),
    /// Uniform between these two, which are included.
    Uniform(usize, usize),
    /// Normal with this mean and deviation, rounded and cut at 1 and at four deviations.
    Normal(f64, f64),
}

impl LengthDistribution {
    /// Returns the uniform distribution of `vllm bench serve` around a length: from
    /// `length * (1 - ratio)`, rounded down, to `length * (1 + ratio)`, rounded up.
    pub fn around(length: usize, ratio: f64) -> Self {
        if ratio <= 0.0 {
            return Self::Fixed(length);
        }
        let low = (length as f64 * (1.0 - ratio)).floor().max(1.0) as usize;
        let high = (length as f64 * (1.0 + ratio)).ceil() as usize;
        Self::Uniform(low, high.max(low))
    }

    /// Returns the largest number that is drawn.
    pub fn most(self) -> usize {
        match self {
            Self::Fixed(length) | Self::Uniform(_, length) => length,
            Self::Normal(mean, deviation) => (mean + 4.0 * deviation).ceil() as usize,
        }
    }

    /// Draws `count` lengths, each at least 1.
    pub fn draw(self, count: usize, seed: u64) -> Vec<usize> {
        let mut rng = Rng::with_seed(seed);
        std::iter::repeat_with(|| self.draw_one(&mut rng)).take(count).collect()
    }

    /// Draws one length.
    fn draw_one(self, rng: &mut Rng) -> usize {
        match self {
            Self::Fixed(length) => length.max(1),
            Self::Uniform(low, high) => rng.usize(low.min(high)..=high.max(low)).max(1),
            Self::Normal(mean, deviation) => {
                // Box and Muller's transform.
                let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
                let normal = radius * (std::f64::consts::TAU * rng.f64()).cos();
                let length = mean + deviation * normal.clamp(-4.0, 4.0);
                length.round().max(1.0) as usize
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_within_their_distribution() {
        assert_eq!(LengthDistribution::Fixed(7).draw(3, 0), [7, 7, 7]);
        let lengths = LengthDistribution::Uniform(3, 5).draw(1000, 1);
        for length in 3..=5 {
            assert!(lengths.iter().filter(|drawn| **drawn == length).count() > 250);
        }
        assert!(lengths.iter().all(|length| (3..=5).contains(length)));
        let normal = LengthDistribution::Normal(100.0, 10.0);
        let lengths = normal.draw(10_000, 1);
        let mean = lengths.iter().sum::<usize>() as f64 / 10_000.0;
        let square = lengths.iter().map(|n| (*n as f64 - mean).powi(2)).sum::<f64>() / 10_000.0;
        assert!((mean - 100.0).abs() < 1.0 && (square.sqrt() - 10.0).abs() < 0.5);
        assert!(lengths.iter().all(|length| *length <= normal.most()));
        assert!(LengthDistribution::Normal(0.0, 3.0).draw(99, 1).iter().all(|n| *n >= 1));
    }

    #[test]
    fn a_ratio_is_that_of_vllm() {
        let around = LengthDistribution::around;
        assert_eq!(around(1000, 0.0), LengthDistribution::Fixed(1000));
        assert_eq!(around(1001, 0.5), LengthDistribution::Uniform(500, 1502));
        assert_eq!(around(1, 0.9), LengthDistribution::Uniform(1, 2));
    }
}
