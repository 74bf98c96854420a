//! What each row brings to the scores of an attention: positions that it sees, numbers by distance, and sinks.

use std::ops::Range;

use super::Args;
use crate::Error;

/// Numbers of the inputs that rows bring to their scores.
#[derive(Clone, Copy)]
pub(super) struct RowScoreInputs {
    pub(super) selected: Option<usize>,
    pub(super) relative: Option<usize>,
    pub(super) sinks: Option<usize>,
}

impl RowScoreInputs {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self {
            selected: args.count_or_null("selected")?,
            relative: args.count_or_null("relative")?,
            sinks: args.count_or_null("query_sinks")?,
        })
    }
}

/// Returns how many numbers by distance each query head has, if they have this shape.
pub(super) fn relative_count(shape: &[usize], rows: usize, heads: usize) -> Option<usize> {
    match *shape {
        [of, of_heads, count] if of == rows && of_heads == heads => Some(count),
        _ => None,
    }
}

/// What rows bring to their scores.
#[derive(Default, Clone, Copy)]
pub(super) struct RowScores<'a> {
    pub(super) selected: Option<SelectedBlocks<'a>>,
    pub(super) relative: Option<RelativeScores<'a>>,
    /// `[rows, heads]`.
    pub(super) sinks: Option<&'a [f32]>,
}

/// Numbers by distance that are added to scores.
#[derive(Clone, Copy)]
pub(super) struct RelativeScores<'a> {
    /// `[rows, heads, count]`.
    pub(super) of: &'a [f32],
    pub(super) count: usize,
}

/// The positions that queries see, chosen in blocks for each group of key heads.
#[derive(Clone, Copy)]
pub(super) struct SelectedBlocks<'a> {
    /// `[rows, groups, count]`; numbers below 0 are no blocks.
    pub(super) of: &'a [f32],
    pub(super) groups: usize,
    pub(super) count: usize,
    /// Positions of a block.
    pub(super) size: usize,
}

impl SelectedBlocks<'_> {
    /// Returns the positions of `seen` that a row sees with one of `kv_heads` key heads.
    pub(super) fn positions(
        &self,
        row: usize,
        head: usize,
        kv_heads: usize,
        seen: &Range<usize>,
    ) -> Vec<usize> {
        let group = head / (kv_heads / self.groups).max(1);
        let at = (row * self.groups + group) * self.count;
        let blocks = self.of[at..at + self.count].iter().filter(|block| **block >= 0.0);
        let positions = blocks.flat_map(|block| {
            let first = (*block as usize).saturating_mul(self.size);
            first.max(seen.start)..first.saturating_add(self.size).min(seen.end)
        });
        positions.collect()
    }
}

/// Returns the number of positions in a block of selected ones.
pub(super) fn block_size(args: &Args<'_>) -> Result<usize, Error> {
    let size = args.count("block")?;
    if size == 0 {
        return Err(args.error("a block is at least 1 position"));
    }
    Ok(size)
}

/// Returns the groups of key heads that see positions of their own, and the number of blocks that each sees.
pub(super) fn selection_shape(shape: &[usize], kv_heads: usize) -> Option<(usize, usize)> {
    let (groups, count) = match *shape {
        [_, count] => (1, count),
        [_, groups, count] => (groups, count),
        _ => return None,
    };
    (groups > 0 && kv_heads.is_multiple_of(groups)).then_some((groups, count))
}

#[cfg(test)]
mod tests {
    use super::{SelectedBlocks, relative_count, selection_shape};

    #[test]
    fn blocks_are_positions_that_a_query_sees() {
        let of = [0.0, 2.0, -1.0, 1.0, f32::MAX, f32::NAN];
        let selected = SelectedBlocks { of: &of, groups: 2, count: 3, size: 3 };
        assert_eq!(selected.positions(0, 0, 4, &(0..8)), [0, 1, 2, 6, 7]);
        assert_eq!(selected.positions(0, 3, 4, &(4..8)), [4, 5]);
    }

    #[test]
    fn rows_and_heads_have_numbers_by_distance() {
        assert_eq!(relative_count(&[5, 4, 3], 5, 4), Some(3));
        assert_eq!(relative_count(&[5, 4], 5, 4), None);
        assert_eq!(relative_count(&[5, 3, 4], 5, 4), None);
        assert_eq!(relative_count(&[6, 4, 3], 5, 4), None);
    }

    #[test]
    fn groups_divide_the_key_heads() {
        assert_eq!(selection_shape(&[5, 2, 3], 4), Some((2, 3)));
        assert_eq!(selection_shape(&[5, 7], 4), Some((1, 7)));
        assert_eq!(selection_shape(&[5, 3, 2], 4), None);
        assert_eq!(selection_shape(&[5, 0, 2], 4), None);
    }
}
