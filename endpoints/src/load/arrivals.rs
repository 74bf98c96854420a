//! Arrival times of requests.

use std::time::Duration;

use fastrand::Rng;

/// Process that gives the times at which requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum ArrivalProcess {
    /// All requests at once.
    #[default]
    Immediate,
    /// Poisson process with this many requests per second.
    Poisson(f64),
    /// Constant intervals, with this many requests per second.
    Constant(f64),
}

/// Latest arrival time: about 3 years.
const LATEST: f64 = 1e8;

/// Returns the time after that many seconds, at most the latest arrival time.
fn arrival_time(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.0, LATEST))
}

impl ArrivalProcess {
    /// Returns the requests per second; none if all are sent at once.
    pub fn rate(self) -> Option<f64> {
        match self {
            Self::Immediate => None,
            Self::Poisson(rate) | Self::Constant(rate) => Some(rate),
        }
    }

    /// Returns the arrival times of `count` requests, in ascending order.
    ///
    /// As in `vllm bench serve`, intervals of the Poisson process are scaled so that the last request
    /// arrives after `count / rate` seconds. The offered rate is then the same for every seed.
    pub fn times(self, count: usize, seed: u64) -> Vec<Duration> {
        match self {
            Self::Immediate => vec![Duration::ZERO; count],
            Self::Constant(rate) => (1..=count).map(|n| arrival_time(n as f64 / rate)).collect(),
            Self::Poisson(rate) => {
                let mut rng = Rng::with_seed(seed);
                let mut sum = 0.0;
                let mut times = Vec::with_capacity(count);
                for _ in 0..count {
                    // The logarithm of a number in (0, 1] is finite.
                    sum -= (1.0 - rng.f64()).ln();
                    times.push(sum);
                }
                let scale = if sum > 0.0 { count as f64 / rate / sum } else { 0.0 };
                times.into_iter().map(|time| arrival_time(time * scale)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_request_arrives_when_the_rate_says() {
        for process in [ArrivalProcess::Poisson(4.0), ArrivalProcess::Constant(4.0)] {
            let times = process.times(100, 7);
            assert!(times.is_sorted() && times.len() == 100);
            assert!((times[99].as_secs_f64() - 25.0).abs() < 1e-6, "{:?}", times[99]);
        }
        assert_eq!(ArrivalProcess::Immediate.times(3, 0), vec![Duration::ZERO; 3]);
        assert!(ArrivalProcess::Poisson(4.0).times(0, 1).is_empty());
    }

    #[test]
    fn intervals_of_a_poisson_process_are_exponential() {
        let times = ArrivalProcess::Poisson(1.0).times(20_000, 3);
        let gaps: Vec<f64> =
            times.windows(2).map(|two| two[1].as_secs_f64() - two[0].as_secs_f64()).collect();
        // The deviation of an exponential distribution is its mean, and e^-1 of it exceeds the mean.
        let square = gaps.iter().map(|gap| (gap - 1.0).powi(2)).sum::<f64>() / gaps.len() as f64;
        let above = gaps.iter().filter(|gap| **gap > 1.0).count() as f64 / gaps.len() as f64;
        assert!((square.sqrt() - 1.0).abs() < 0.05 && (above - 0.368).abs() < 0.02);
        let constant = ArrivalProcess::Constant(1.0).times(10, 3);
        assert_eq!(constant[3], constant[2] + Duration::from_secs(1));
    }

    #[test]
    fn a_seed_gives_the_same_times_again() {
        assert!(poisson_times(1) == poisson_times(1) && poisson_times(1) != poisson_times(2));
    }

    fn poisson_times(seed: u64) -> Vec<Duration> {
        ArrivalProcess::Poisson(9.0).times(50, seed)
    }

    #[test]
    fn odd_rates_give_times_within_bounds() {
        for rate in [1e-300, 1e300, f64::MIN_POSITIVE] {
            for process in [ArrivalProcess::Poisson(rate), ArrivalProcess::Constant(rate)] {
                assert!(process.times(5, 0).iter().all(|time| time.as_secs_f64() <= LATEST));
            }
        }
    }
}
