//! Choosing the next token from a row of logits.

/// The settings of token sampling.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 is greedy; otherwise logits are divided by it.
    pub temperature: f32,
    /// Only the most likely `top_k` tokens, if given.
    pub top_k: Option<usize>,
    /// Only the most likely tokens that together reach this probability, if given.
    pub top_p: Option<f32>,
    /// Only tokens at least this many times as likely as the most likely one, if given.
    pub min_p: Option<f32>,
    /// The seed: the same seed and logits give the same tokens.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: None, top_p: None, min_p: None, seed: 0 }
    }
}

/// A seeded stream of choices.
#[derive(Debug, Clone)]
pub struct Sampler {
    options: Sampling,
    state: u64,
}

/// Computes the log-probabilities of a row of logits; returns its logsumexp.
pub fn log_softmax(logits: &[f32], out: &mut [f32]) -> f64 {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let top = if top.is_finite() { f64::from(top) } else { 0.0 };
    let sum: f64 = logits.iter().map(|x| (f64::from(*x) - top).exp()).sum();
    let total = top + sum.ln();
    for (o, x) in out.iter_mut().zip(logits) {
        *o = (f64::from(*x) - total) as f32;
    }
    total
}

/// Returns the most likely token; the lowest id among equals, and NaN is never chosen over a number.
pub fn greedy(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, &x) in logits.iter().enumerate() {
        if x > logits[best] || (logits[best].is_nan() && !x.is_nan()) {
            best = id;
        }
    }
    best as u32
}

impl Sampler {
    /// Creates a stream that begins at the options' seed.
    pub fn new(options: Sampling) -> Self {
        let state = options.seed;
        Self { options, state }
    }

    /// Chooses a token.
    pub fn choose(&mut self, logits: &[f32]) -> u32 {
        let Sampling { temperature, top_k, top_p, min_p, seed: _ } = self.options;
        if temperature.is_nan() || temperature <= 0.0 || logits.len() < 2 {
            return greedy(logits);
        }
        // Tokens of minus infinity are excluded ones, and NaN is no number.
        // Most likely first; equal ones by id, so the order does not depend on the sort.
        let mut ids: Vec<u32> =
            (0..logits.len() as u32).filter(|&i| logits[i as usize] > f32::NEG_INFINITY).collect();
        ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        ids.truncate(top_k.unwrap_or(ids.len()).max(1));
        let Some(&first) = ids.first() else { return greedy(logits) };
        let top = f64::from(logits[first as usize]);
        let mut weights: Vec<f64> = ids
            .iter()
            .map(|&i| ((f64::from(logits[i as usize]) - top) / f64::from(temperature)).exp())
            .collect();
        if let Some(p) = min_p {
            // The most likely token has weight 1.
            let keep = weights.partition_point(|weight| *weight >= f64::from(p.clamp(0.0, 1.0)));
            weights.truncate(keep.max(1));
        }
        if let Some(p) = top_p {
            let limit = f64::from(p.clamp(0.0, 1.0)) * weights.iter().sum::<f64>();
            let mut sum = 0.0;
            let keep = weights
                .iter()
                .position(|w| {
                    sum += w;
                    sum >= limit
                })
                .map_or(weights.len(), |n| n + 1);
            weights.truncate(keep);
        }
        let mut left = self.uniform() * weights.iter().sum::<f64>();
        for (n, weight) in weights.iter().enumerate() {
            left -= weight;
            if left < 0.0 {
                return ids[n];
            }
        }
        ids[weights.len() - 1]
    }

    /// Returns a uniform number in `[0, 1)`, by SplitMix64 (Steele, Lea and Flood 2014).
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_takes_the_largest_and_the_first_of_equals() {
        assert_eq!(greedy(&[0.0, 3.0, 3.0, -1.0]), 1);
        assert_eq!(greedy(&[f32::NAN, -2.0, -1.0]), 2);
        assert_eq!(greedy(&[f32::NEG_INFINITY, f32::NEG_INFINITY]), 0);
    }

    #[test]
    fn limits_hold_and_a_seed_repeats() {
        assert!(draw(Some(1), None, 3).iter().all(|&t| t == 2));
        assert!(draw(None, Some(0.0), 3).iter().all(|&t| t == 2));
        assert!(draw(Some(2), None, 3).iter().all(|&t| t == 2 || t == 3));
        assert_eq!(draw(None, Some(0.9), 7), draw(None, Some(0.9), 7));
        assert_ne!(draw(None, None, 7), draw(None, None, 8));
        assert!(draw(None, None, 1).contains(&0), "every token can be drawn");
    }

    fn draw(top_k: Option<usize>, top_p: Option<f32>, seed: u64) -> Vec<u32> {
        let mut sampler =
            Sampler::new(Sampling { temperature: 1.0, top_k, top_p, min_p: None, seed });
        (0..200).map(|_| sampler.choose(&[1.0, 2.0, 3.0, 2.5])).collect()
    }

    #[test]
    fn a_least_share_of_the_likeliest_holds() {
        // Shares of the likeliest: 0.135, 0.368, 1 and 0.607.
        assert!(draw_above(Some(0.5)).iter().all(|&t| t >= 2));
        assert!(draw_above(Some(0.3)).contains(&1) && !draw_above(Some(0.3)).contains(&0));
        assert!(draw_above(Some(1.0)).iter().all(|&t| t == 2));
        assert!(draw_above(Some(0.0)).contains(&0));
    }

    fn draw_above(min_p: Option<f32>) -> Vec<u32> {
        let options = Sampling { temperature: 1.0, min_p, ..Sampling::default() };
        let mut sampler = Sampler::new(options);
        (0..400).map(|_| sampler.choose(&[1.0, 2.0, 3.0, 2.5])).collect()
    }

    #[test]
    fn hostile_logits_do_not_panic() {
        let mut sampler = Sampler::new(Sampling { temperature: 0.5, ..Sampling::default() });
        for logits in
            [vec![], vec![f32::NAN; 3], vec![f32::INFINITY, 1.0], vec![f32::NEG_INFINITY; 3]]
        {
            sampler.choose(&logits);
        }
    }
}
