//! Orders the raises of tensors: the largest saving of divergence per byte comes first.

use conversion::mix::LEVELS;

/// Cost and size of a group at each level.
pub(super) struct LevelCosts {
    /// Divergence in nats.
    cost: [f64; LEVELS],
    bytes: [u64; LEVELS],
}

/// Raise of a group to a finer level.
#[derive(Debug, PartialEq)]
pub(super) struct TypeRaise {
    pub(super) group: usize,
    pub(super) to: usize,
    /// Saving in nats per byte.
    worth: f64,
}

impl LevelCosts {
    /// Estimates the cost at each level. `measured` is the group's divergence at the lowest level.
    /// Divergence grows with the square of small errors, so the costs at other levels follow from the
    /// squared `errors` of its tensors.
    pub(super) fn new(
        measured: f64,
        tensors: &[usize],
        errors: &[[f64; LEVELS]],
        bytes: impl Fn(usize, usize) -> u64,
    ) -> Self {
        /// Upper bound on a cost, so that sums stay finite.
        const MOST: f64 = 1e6;
        let mut sums = [0.0; LEVELS];
        for (level, sum) in sums.iter_mut().enumerate() {
            *sum = tensors.iter().map(|&n| errors[n][level]).sum::<f64>();
        }
        let mut cost = [0.0; LEVELS];
        let mut sizes = [0; LEVELS];
        for level in 0..LEVELS {
            let share = sums[level] / sums[0];
            // Without an error there is nothing to save.
            let share = if share.is_finite() { share.min(1.0) } else { 0.0 };
            cost[level] = measured.clamp(0.0, MOST) * share;
            sizes[level] = tensors.iter().map(|&n| bytes(n, level)).sum();
        }
        Self { cost, bytes: sizes }
    }

    /// Returns the most valuable raise from a level; in a tie, the highest.
    fn best(&self, group: usize, from: usize) -> Option<TypeRaise> {
        let raises = (from + 1..LEVELS).filter_map(|to| {
            let more = self.bytes[to].checked_sub(self.bytes[from]).filter(|&more| more > 0)?;
            let worth = (self.cost[from] - self.cost[to]).max(0.0) / more as f64;
            Some(TypeRaise { group, to, worth })
        });
        raises.max_by(|a, b| a.worth.total_cmp(&b.worth))
    }
}

/// Returns all raises, in order; after the last, no group has a finer level.
pub(super) fn raises(groups: &[LevelCosts]) -> Vec<TypeRaise> {
    let mut raises = Vec::new();
    for (group, costs) in groups.iter().enumerate() {
        let mut at = 0;
        while let Some(raise) = costs.best(group, at) {
            at = raise.to;
            raises.push(raise);
        }
    }
    // Within a group, each saving is smaller than the one before, and the sort is stable.
    raises.sort_by(|a, b| b.worth.total_cmp(&a.worth));
    raises
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(groups: &[LevelCosts]) -> Vec<(usize, usize)> {
        raises(groups).iter().map(|raise| (raise.group, raise.to)).collect()
    }

    #[test]
    fn what_saves_most_for_its_size_comes_first() {
        let errors = [[1.0, 1.0, 0.1, 0.01, 0.0], [0.0; LEVELS]];
        let sizes = [40, 40, 60, 80, 160];
        let costs = |measured: f64, tensor: usize, times: u64| {
            LevelCosts::new(measured, &[tensor], &errors, |_, level| sizes[level] * times)
        };
        // The first step saves more than the second, for every group relative to its size.
        let two = [costs(1.0, 0, 100), costs(1.0, 0, 1)];
        assert_eq!(order(&two), [(1, 2), (1, 3), (0, 2), (1, 4), (0, 3), (0, 4)]);
        // A group without cost goes all the way at once, and last.
        let idle = [costs(-1e-9, 0, 1), costs(1.0, 1, 1), costs(1.0, 0, 1)];
        assert_eq!(order(&idle), [(2, 2), (2, 3), (2, 4), (0, 4), (1, 4)]);
        // A level that saves less than the next is skipped.
        let errors = [[1.0, 0.9, 0.1, 0.05, 0.0]];
        let little = LevelCosts::new(1.0, &[0], &errors, |_, level| [40, 50, 60, 80, 160][level]);
        assert_eq!(order(&[little]), [(0, 2), (0, 3), (0, 4)]);
        // An infinite divergence still gives an order.
        let endless = [costs(f64::INFINITY, 0, 1), costs(1.0, 0, 1)];
        assert_eq!(order(&endless).len(), 6);
    }
}
