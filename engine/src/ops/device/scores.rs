//! Sizes of the scores of attention, which parts of a step hold in turn.

use crate::device::source::{THREADS, constant};

/// Scores that are held at once; more parts go in turn.
pub(super) const SCORES: usize = 1 << 26;

/// The kernels that compute scores.
pub(super) const KERNELS: &str = include_str!("../../device/kernels/attend.cu");

/// Heads of a block of scores.
pub(super) const SCORE_HEADS: usize = constant(KERNELS, "SCORE_HEADS") as usize;

/// Numbers of a block of values.
pub(super) const COLUMNS: usize = constant(KERNELS, "COLUMNS") as usize;

/// Blocks of the scores of a row: `score_tiles` of `attend.cu`.
pub(super) fn score_tiles(span: usize) -> usize {
    span.div_ceil(THREADS)
}

/// Divides parts into groups whose scores are held at once; a part with more has a group of its own.
pub(super) fn score_groups<P>(parts: &[P], scores: impl Fn(&P) -> usize) -> Vec<&[P]> {
    let mut groups = Vec::new();
    let mut remaining = parts;
    while !remaining.is_empty() {
        let mut held = 0_usize;
        let fits = remaining.iter().take_while(|part| {
            held = held.saturating_add(scores(part));
            held <= SCORES
        });
        let (group, left) = remaining.split_at(fits.count().max(1));
        groups.push(group);
        remaining = left;
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_hold_as_many_scores_as_allowed() {
        let parts = [SCORES / 2, SCORES / 2, 1, SCORES + 1, 1, SCORES - 1];
        let groups = score_groups(&parts, |part| *part);
        assert_eq!(groups.iter().map(|group| group.len()).collect::<Vec<_>>(), [2, 1, 1, 2]);
        assert_eq!(groups.concat(), parts);
    }
}
