//! Rows in the place of embeddings that a whole prompt has, and those of its parts.

use crate::ChunkGiven;

/// Rows of a prompt, and the positions of its tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GivenRows {
    /// Positions in the prompt of the tokens whose embedding a row replaces, ascending.
    pub at: Vec<usize>,
    /// The rows, one after another.
    pub rows: Vec<f32>,
    /// For each of the first layers the rows that are added behind it.
    pub beside: Vec<Vec<f32>>,
    /// For each axis the positions of all tokens; empty if they count the tokens.
    pub positions: Vec<Vec<u32>>,
}

/// The rows and positions of a part of a prompt.
#[derive(Debug)]
pub(crate) struct RowsPart<'a> {
    at: Vec<usize>,
    rows: &'a [f32],
    beside: Vec<&'a [f32]>,
    positions: Vec<Vec<u32>>,
}

/// The positions of a part, as the engine takes them.
pub(crate) type PartViews<'a> = Vec<&'a [u32]>;

impl GivenRows {
    /// Returns the rows and positions of `count` tokens from position `from` on. Tokens behind the prompt count on from the
    /// largest position.
    pub(crate) fn part(&self, from: usize, count: usize) -> RowsPart<'_> {
        let first = self.at.partition_point(|at| *at < from);
        let last = self.at.partition_point(|at| *at < from + count);
        let slice = |rows: &'_ [f32]| {
            let width = rows.len().checked_div(self.at.len()).unwrap_or(0);
            first * width..last * width
        };
        let behind = self.positions.iter().flatten().max().map_or(0, |most| *most as usize + 1);
        let position = |axis: &[u32], at: usize| {
            let beyond = behind + at.saturating_sub(axis.len());
            axis.get(at).copied().unwrap_or(u32::try_from(beyond).unwrap_or(u32::MAX))
        };
        let positions = self.positions.iter();
        RowsPart {
            at: self.at[first..last].iter().map(|at| at - from).collect(),
            rows: &self.rows[slice(&self.rows)],
            beside: self.beside.iter().map(|rows| &rows[slice(rows)]).collect(),
            positions: positions
                .map(|axis| (from..from + count).map(|at| position(axis, at)).collect())
                .collect(),
        }
    }
}

impl RowsPart<'_> {
    /// Returns the positions of each axis.
    pub(crate) fn views(&self) -> PartViews<'_> {
        self.positions.iter().map(Vec::as_slice).collect()
    }

    /// Returns the part as the engine takes it.
    pub(crate) fn chunk<'a>(&'a self, views: &'a PartViews<'a>) -> ChunkGiven<'a> {
        // Rows are added behind layers where the chunk has any.
        let beside = if self.at.is_empty() { &[][..] } else { &self.beside[..] };
        ChunkGiven { at: &self.at, rows: self.rows, beside, positions: views }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_rows_and_positions_of_their_tokens() {
        let rows = GivenRows {
            at: vec![1, 2, 4],
            rows: vec![1.0, 1.5, 2.0, 2.5, 4.0, 4.5],
            beside: vec![vec![10.0, 10.5, 20.0, 20.5, 40.0, 40.5]],
            positions: vec![vec![0, 1, 1, 3, 4], vec![0, 1, 2, 3, 4]],
        };
        let part = rows.part(2, 5);
        let views = part.views();
        let chunk = part.chunk(&views);
        assert_eq!(chunk.at, [0, 2]);
        assert_eq!(chunk.rows, [2.0, 2.5, 4.0, 4.5]);
        assert_eq!(chunk.beside, [&[20.0, 20.5, 40.0, 40.5]]);
        assert_eq!(chunk.positions, [&[1, 3, 4, 5, 6], &[2, 3, 4, 5, 6]]);
        let text = rows.part(3, 1);
        let views = text.views();
        assert!(text.chunk(&views).at.is_empty() && text.chunk(&views).beside.is_empty());
        let plain = GivenRows { positions: Vec::new(), ..rows };
        assert!(plain.part(0, 1).views().is_empty());
    }
}
