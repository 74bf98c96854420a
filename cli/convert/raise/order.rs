//! In which order tensors are raised: what saves most divergence for the bytes it takes comes first.

use conversion::mix::LEVELS;

/// What a group costs and takes at each level.
pub(super) struct Costs {
    /// Nats.
    cost: [f64; LEVELS],
    bytes: [u64; LEVELS],
}

/// A group that goes to a finer level.
#[derive(Debug, PartialEq)]
pub(super) struct Raise {
    pub(super) group: usize,
    pub(super) to: usize,
    /// Nats for a byte.
    worth: f64,
}

impl Costs {
    /// `measured` is what the group costs at the lowest level. Divergence grows with the square of small
    /// errors, so what it costs at the others follows from the squared `errors` of its tensors there.
    pub(super) fn new(
        measured: f64,
        tensors: &[usize],
        errors: &[[f64; LEVELS]],
        bytes: impl Fn(usize, usize) -> u64,
    ) -> Self {
        /// More than this is as bad as it gets, and adds up to a number.
        const MOST: f64 = 1e6;
        let at = |level: usize| tensors.iter().map(|&n| errors[n][level]).sum::<f64>();
        let (mut cost, mut sizes) = ([0.0; LEVELS], [0; LEVELS]);
        for level in 0..LEVELS {
            let share = at(level) / at(0);
            // Without an error there is nothing to gain.
            let share = if share.is_finite() { share.min(1.0) } else { 0.0 };
            cost[level] = measured.clamp(0.0, MOST) * share;
            sizes[level] = tensors.iter().map(|&n| bytes(n, level)).sum();
        }
        Self { cost, bytes: sizes }
    }

    /// The raise from a level that is worth most, the highest of equals.
    fn best(&self, group: usize, from: usize) -> Option<Raise> {
        let raise = |to: usize| {
            let more = self.bytes[to].checked_sub(self.bytes[from]).filter(|&more| more > 0)?;
            let worth = (self.cost[from] - self.cost[to]).max(0.0) / more as f64;
            Some(Raise { group, to, worth })
        };
        (from + 1..LEVELS).filter_map(raise).max_by(|a, b| a.worth.total_cmp(&b.worth))
    }
}

/// All raises, in order; after the last, no group has a finer level.
pub(super) fn raises(groups: &[Costs]) -> Vec<Raise> {
    let mut raises = Vec::new();
    for (group, costs) in groups.iter().enumerate() {
        let mut at = 0;
        while let Some(raise) = costs.best(group, at) {
            at = raise.to;
            raises.push(raise);
        }
    }
    // Of one group each is worth less than the one before, and the sort is stable.
    raises.sort_by(|a, b| b.worth.total_cmp(&a.worth));
    raises
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(groups: &[Costs]) -> Vec<(usize, usize)> {
        raises(groups).iter().map(|raise| (raise.group, raise.to)).collect()
    }

    #[test]
    fn what_saves_most_for_its_size_comes_first() {
        let errors = [[1.0, 1.0, 0.1, 0.01, 0.0], [0.0; LEVELS]];
        let sizes = [40, 40, 60, 80, 160];
        let costs = |measured: f64, tensor: usize, times: u64| {
            Costs::new(measured, &[tensor], &errors, |_, level| sizes[level] * times)
        };
        // The first step is worth more than the second, of all groups by what they cost for their size.
        let two = [costs(1.0, 0, 100), costs(1.0, 0, 1)];
        assert_eq!(order(&two), [(1, 2), (1, 3), (0, 2), (1, 4), (0, 3), (0, 4)]);
        // What costs nothing goes all the way at once, and last.
        let idle = [costs(-1e-9, 0, 1), costs(1.0, 1, 1), costs(1.0, 0, 1)];
        assert_eq!(order(&idle), [(2, 2), (2, 3), (2, 4), (0, 4), (1, 4)]);
        // A level that is worth less than the next is passed over.
        let errors = [[1.0, 0.9, 0.1, 0.05, 0.0]];
        let little = Costs::new(1.0, &[0], &errors, |_, level| [40, 50, 60, 80, 160][level]);
        assert_eq!(order(&[little]), [(0, 2), (0, 3), (0, 4)]);
        // A divergence without end leaves an order.
        let endless = [costs(f64::INFINITY, 0, 1), costs(1.0, 0, 1)];
        assert_eq!(order(&endless).len(), 6);
    }
}
