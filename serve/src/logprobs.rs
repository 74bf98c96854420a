//! Log-probabilities of tokens.

use engine::sample::log_softmax;

/// Lowest log-probability in answers: JSON has no infinities.
const LOWEST: f32 = -9999.0;

/// Log-probability of a token, and of the likeliest ones at its position.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenScore {
    pub(crate) id: u32,
    pub(crate) logprob: f32,
    /// 1 for the likeliest token.
    pub(crate) rank: usize,
    /// Likeliest tokens first, equal ones by id.
    pub(crate) top: Vec<(u32, f32)>,
}

/// Returns a log-probability within the bounds of answers.
fn bounded(value: f32) -> f32 {
    if value.is_nan() { LOWEST } else { value.clamp(LOWEST, 0.0) }
}

impl TokenScore {
    /// Scores a token by a row of logits, with the `count` likeliest tokens.
    pub(crate) fn of(logits: &[f32], id: u32, count: usize) -> Self {
        let mut values = vec![0.0; logits.len()];
        log_softmax(logits, &mut values);
        // Values are ordered by logits: rounding may make two log-probabilities equal.
        let order =
            |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        let rank = 1 + ids.iter().filter(|other| order(other, &id).is_lt()).count();
        let count = count.min(ids.len());
        if count > 0 && count < ids.len() {
            ids.select_nth_unstable_by(count - 1, order);
        }
        ids.truncate(count);
        ids.sort_unstable_by(order);
        let top = ids.into_iter().map(|id| (id, bounded(values[id as usize]))).collect();
        let logprob = values.get(id as usize).map_or(LOWEST, |value| bounded(*value));
        Self { id, logprob, rank, top }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_ordered_with_equal_ones_by_id() {
        let score = TokenScore::of(&[1.0, 3.0, 3.0, -1.0], 2, 3);
        assert_eq!(score.rank, 2);
        assert_eq!(score.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2, 0]);
        assert_eq!(score.top[1].1, score.logprob);
        let sum: f32 = TokenScore::of(&[1.0, 3.0, 3.0, -1.0], 0, 9)
            .top
            .iter()
            .map(|(_, value)| value.exp())
            .sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert_eq!(TokenScore::of(&[0.0, f32::NEG_INFINITY], 1, 0).logprob, LOWEST);
        assert!(TokenScore::of(&[0.0, 1.0], 1, 0).top.is_empty());
    }
}
