//! The choice of a router: the largest few of many scores, of the best groups perhaps.
//!
//! Scores that are equal go by their place, the lower first. The reference leaves that open,
//! so [`TopK::margin`] says how far another choice is from being the same.

use std::cmp::Ordering;

use registry::graph::Node;
use registry::scalar::Scalar;

/// The number of items to choose, and the groups to choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopK {
    /// The number of items to choose.
    pub k: usize,
    /// Groups that the scores are in, if only the best of them count.
    pub groups: Option<ScoreGroups>,
}

/// Equal groups of scores, a few of which are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScoreGroups {
    /// The number of groups.
    pub count: usize,
    /// The number of groups kept.
    pub keep: usize,
    /// The number of best scores, 1 or 2, whose sum is the score of a group.
    pub best: usize,
    /// True if the scores of other groups become zero; otherwise they become negative infinity.
    pub zero: bool,
}

impl TopK {
    /// Returns the choice that a `choose` node makes; none if the node has no count.
    pub fn of_node(node: &Node) -> Option<Self> {
        let groups = match (number(node, "groups"), number(node, "keep")) {
            (Some(all), Some(keep)) if all > 0 => Some(ScoreGroups {
                count: all,
                keep,
                best: if has_word(node, "by", "max") { 1 } else { 2 },
                zero: has_word(node, "mask", "zero"),
            }),
            _ => None,
        };
        Some(Self { k: number(node, "k")?, groups })
    }

    /// Returns the indices of the chosen scores, best first.
    pub fn select(&self, scores: &[f32]) -> Vec<usize> {
        let masked = self.groups.map(|groups| {
            let kept_groups = top(&groups.scores(scores), groups.keep);
            groups.mask(scores, &kept_groups)
        });
        top(masked.as_deref().unwrap_or(scores), self.k)
    }

    /// Returns the change of scores that would make `other` a right choice: 0 if it is one. Infinite if
    /// `other` is no valid choice.
    pub fn margin(&self, scores: &[f32], other: &[usize]) -> f32 {
        let distinct = other.iter().enumerate().all(|(n, at)| !other[..n].contains(at));
        if other.len() != self.k || !distinct || other.iter().any(|&at| at >= scores.len()) {
            return f32::INFINITY;
        }
        let Some(groups) = self.groups else { return gap(scores, other) };
        // The groups of the other choice, filled up with the best of the rest.
        let size = scores.len() / groups.count;
        let by_group = groups.scores(scores);
        let mut kept_groups: Vec<usize> = other.iter().map(|at| at / size).collect();
        kept_groups.sort_unstable();
        kept_groups.dedup();
        if groups.zero {
            // Masked scores are zero and can be chosen, so choices do not determine the groups.
            kept_groups = top(&by_group, groups.keep);
        } else if kept_groups.len() > groups.keep {
            return f32::INFINITY;
        }
        for group in top(&by_group, groups.count) {
            if kept_groups.len() < groups.keep && !kept_groups.contains(&group) {
                kept_groups.push(group);
            }
        }
        gap(&by_group, &kept_groups).max(gap(&groups.mask(scores, &kept_groups), other))
    }
}

/// Returns the number of an argument.
fn number(node: &Node, name: &str) -> Option<usize> {
    node.argument(name).and_then(Scalar::as_usize)
}

/// True if an argument is this word.
fn has_word(node: &Node, name: &str, expected: &str) -> bool {
    matches!(node.argument(name), Some(Scalar::Str(word)) if word == expected)
}

impl ScoreGroups {
    /// Returns the score of each group: the sum of its best scores.
    fn scores(&self, scores: &[f32]) -> Vec<f32> {
        let size = (scores.len() / self.count.max(1)).max(1);
        scores
            .chunks_exact(size)
            .map(|group: &[f32]| top(group, self.best).iter().map(|&at| group[at]).sum())
            .collect()
    }

    /// Replaces the scores of groups that are not kept.
    fn mask(&self, scores: &[f32], kept_groups: &[usize]) -> Vec<f32> {
        let size = (scores.len() / self.count.max(1)).max(1);
        let masked = if self.zero { 0.0 } else { f32::NEG_INFINITY };
        scores
            .iter()
            .enumerate()
            .map(|(at, &score)| if kept_groups.contains(&(at / size)) { score } else { masked })
            .collect()
    }
}

/// Returns the indices of the largest scores, best first; of equal ones the first.
fn top(scores: &[f32], k: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..scores.len()).collect();
    let k = k.min(places.len());
    if 0 < k && k < places.len() {
        places.select_nth_unstable_by(k - 1, |a, b| place_order(scores, *a, *b));
    }
    places.truncate(k);
    places.sort_unstable_by(|a, b| place_order(scores, *a, *b));
    places
}

/// Orders places by their scores, the largest first; of equal ones the first.
fn place_order(scores: &[f32], a: usize, b: usize) -> Ordering {
    descending(scores[a], scores[b]).then(a.cmp(&b))
}

/// Orders the larger number first. NaN of either sign counts as larger than any number, as in `torch.topk`,
/// so that a NaN score is chosen and noticed instead of passed over.
pub fn descending(a: f32, b: f32) -> Ordering {
    positive_nan(b).total_cmp(&positive_nan(a))
}

/// Returns the number, or NaN without a sign for NaN.
fn positive_nan(x: f32) -> f32 {
    if x.is_nan() { f32::NAN.abs() } else { x }
}

/// Returns the margin of the best score left out above the worst score chosen, or zero.
fn gap(scores: &[f32], chosen: &[usize]) -> f32 {
    let worst = chosen.iter().map(|&at| scores[at]).fold(f32::INFINITY, f32::min);
    let left = scores.iter().enumerate().filter(|(at, _)| !chosen.contains(at));
    let best = left.map(|(_, &score)| score).fold(f32::NEG_INFINITY, f32::max);
    if best <= worst { 0.0 } else { best - worst }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCORES: [f32; 6] = [0.1, 0.9, 0.5, 0.5, 0.7, -0.2];

    fn groups(best: usize, zero: bool) -> ScoreGroups {
        ScoreGroups { count: 3, keep: 1, best, zero }
    }

    #[test]
    fn the_largest_are_chosen() {
        for (k, groups, want) in [
            (1, None, vec![1]),
            (3, None, vec![1, 4, 2]),
            (6, None, vec![1, 4, 2, 3, 0, 5]),
            // The groups count 1.0, 1.0, 0.5 by two, and 0.9, 0.5, 0.7 by one.
            (2, Some(groups(2, false)), vec![1, 0]),
            (1, Some(groups(1, false)), vec![1]),
            (3, Some(groups(2, true)), vec![1, 0, 2]),
        ] {
            assert_eq!(TopK { k, groups }.select(&SCORES), want, "{k} {groups:?}");
        }
        for nan in [f32::NAN, -f32::NAN] {
            assert_eq!(TopK { k: 1, groups: None }.select(&[0.0, nan, f32::INFINITY]), [1]);
        }
    }

    #[test]
    fn a_margin_is_what_is_missing() {
        let plain = TopK { k: 3, groups: None };
        for (other, want) in [
            (&[1, 4, 2][..], 0.0),
            (&[3, 1, 4], 0.0), // a tie
            (&[1, 2, 3], 0.2),
            (&[1, 4], f32::INFINITY),
            (&[1, 4, 4], f32::INFINITY),
            (&[1, 4, 6], f32::INFINITY),
        ] {
            assert!((plain.margin(&SCORES, other) - want).abs() < 1e-6 || want.is_infinite());
            assert_eq!(plain.margin(&SCORES, other).is_infinite(), want.is_infinite());
        }
        let grouped = TopK { k: 2, groups: Some(groups(2, false)) };
        assert_eq!(grouped.margin(&SCORES, &[0, 1]), 0.0);
        assert_eq!(grouped.margin(&SCORES, &[2, 3]), 0.0); // a tie of groups
        assert!((grouped.margin(&SCORES, &[4, 5]) - 0.5).abs() < 1e-6);
        assert!(grouped.margin(&SCORES, &[1, 2]).is_infinite());
    }
}
