//! Inputs of each row for the scores of an attention: positions that it sees, numbers by distance, and sinks.

use std::ops::Range;

use super::Args;
use crate::Error;

/// Inputs that rows bring to their scores, each with its place among the inputs.
#[derive(Default, Clone, Copy)]
pub(super) struct RowScoreInputs {
    pub(super) selected: Option<(usize, Selection)>,
    /// The numbers by distance, and how many each query head has.
    pub(super) relative: Option<(usize, usize)>,
    pub(super) sinks: Option<usize>,
}

impl RowScoreInputs {
    pub(super) fn prepare(args: &Args<'_>, heads: usize, kv_heads: usize) -> Result<Self, Error> {
        let block = block_size(args)?;
        let selected = args.count_or_null("selected")?;
        let selection = selected.map(|n| Selection::of(args, n, kv_heads, block)).transpose()?;
        let relative = args.count_or_null("relative")?;
        let distances = relative.map(|n| relative_count(args, n, heads)).transpose()?;
        let sinks = args.count_or_null("query_sinks")?;
        if let Some(n) = sinks
            && args.width(n)? != heads
        {
            return Err(args.error("each query head has a sink"));
        }
        Ok(Self { selected: selected.zip(selection), relative: relative.zip(distances), sinks })
    }
}

/// Returns how many numbers by distance each query head has.
fn relative_count(args: &Args<'_>, n: usize, heads: usize) -> Result<usize, Error> {
    match *args.input(n)? {
        [of_heads, count] if of_heads == heads => Ok(count),
        _ => Err(args.error("each query head has numbers by distance")),
    }
}

/// Blocks of positions that each row sees.
#[derive(Debug, Clone, Copy)]
pub(super) struct Selection {
    /// Groups of key heads that see positions of their own.
    pub(super) groups: usize,
    /// Number of blocks that a group sees.
    pub(super) count: usize,
    /// Positions of a block.
    pub(super) block: usize,
}

impl Selection {
    /// Returns the selection that input `n` is.
    fn of(args: &Args<'_>, n: usize, kv_heads: usize, block: usize) -> Result<Self, Error> {
        match *args.input(n)? {
            [count] => Ok(Self { groups: 1, count, block }),
            [groups, count] if groups > 0 && kv_heads.is_multiple_of(groups) => {
                Ok(Self { groups, count, block })
            }
            _ => {
                Err(args.error("selected positions are of as many groups as divide the key heads"))
            }
        }
    }
}

/// Numbers of rows for their scores.
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
    pub(super) selection: Selection,
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
        let Selection { groups, count, block: size } = self.selection;
        let group = head / (kv_heads / groups);
        let at = (row * groups + group) * count;
        let blocks = self.of[at..at + count].iter().filter(|block| **block >= 0.0);
        let positions = blocks.flat_map(|block| {
            let first = (*block as usize).saturating_mul(size);
            first.max(seen.start)..first.saturating_add(size).min(seen.end)
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

#[cfg(test)]
mod tests {
    use super::{SelectedBlocks, Selection};

    #[test]
    fn blocks_are_positions_that_a_query_sees() {
        let of = [0.0, 2.0, -1.0, 1.0, f32::MAX, f32::NAN];
        let selection = Selection { groups: 2, count: 3, block: 3 };
        let selected = SelectedBlocks { of: &of, selection };
        assert_eq!(selected.positions(0, 0, 4, &(0..8)), [0, 1, 2, 6, 7]);
        assert_eq!(selected.positions(0, 3, 4, &(4..8)), [4, 5]);
    }
}
