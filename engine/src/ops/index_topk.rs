//! `index_topk`: which positions a sparse attention looks at, by small keys of their own.
//!
//! The scores of the reference's indexer, in f32. Among equal scores `torch.topk`
//! takes any; here, and in dumps, the lowest position comes first.

use rayon::prelude::*;

use super::row_scores::block_size;
use super::{Args, ChunkRows, Ctx, Kernel, Kernels};
use crate::Error;
use crate::kernels::choose::descending;
use crate::kernels::math;
use crate::states::Memory;
use crate::value::GraphValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("index_topk", IndexTopk::prepare);
}

/// Sizes of the heads of queries, which share the keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct IndexSizes {
    pub(super) heads: usize,
    /// Numbers of a key.
    pub(super) size: usize,
}

impl IndexSizes {
    /// Returns the sizes of a node with queries and keys.
    pub(super) fn of(args: &Args<'_>) -> Result<Self, Error> {
        let queries = args.width(0)?;
        let size = args.width(1)?;
        if size == 0 || !queries.is_multiple_of(size) || args.state_width()? != size {
            return Err(args.error(format!(
                "queries of {queries} numbers and keys of {size} do not fit its state"
            )));
        }
        Ok(Self { heads: queries / size, size })
    }
}

/// Adds the keys of a chunk to its state. Returns the keys from a position on.
pub(super) fn append_keys(
    ctx: &mut Ctx<'_>,
    chunk: &ChunkRows,
    keys: &[f32],
    first: usize,
) -> Result<Vec<f32>, Error> {
    let wrong = ctx.error("its state does not hold the keys before this step");
    let Memory::Index(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
    if memory.end() != chunk.start {
        return Err(wrong);
    }
    let size = memory.width();
    memory.append(&keys[chunk.rows.start * size..chunk.rows.end * size]);
    Ok(memory.tail(first))
}

/// The number of selected keys, and the factor on their scores.
pub(super) struct IndexTopk {
    pub(super) sizes: IndexSizes,
    pub(super) topk: usize,
    pub(super) scale: f32,
    /// Positions of a block, which has the key of its last position.
    pub(super) block: usize,
    /// True if the block that is not complete yet is selected too.
    pub(super) newest: bool,
    /// True if each head of a query has a weight, which is the last input.
    pub(super) weighted: bool,
}

impl IndexTopk {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let sizes = IndexSizes::of(args)?;
        let weighted = args.node().inputs.len() > 2;
        if weighted && args.width(2)? != sizes.heads {
            let weights = args.width(2)?;
            return Err(args.error(format!("{weights} weights for {} heads", sizes.heads)));
        }
        let index = Self {
            sizes,
            topk: args.count("topk")?,
            scale: args.number("scale")?,
            block: block_size(args)?,
            newest: args.flag("newest")?,
            weighted,
        };
        args.expect_output(index.width())?;
        Ok(index)
    }

    /// Returns the numbers that are given for each row.
    pub(super) fn width(&self) -> usize {
        self.topk + usize::from(self.newest)
    }

    /// Selects among the blocks that a query with these keys sees; `y` has -1 everywhere.
    fn choose(&self, q: &[f32], w: Option<&[f32]>, seen: &[f32], y: &mut [f32]) {
        let block = self.block;
        let size = self.sizes.size;
        let keys = seen.chunks_exact(size).skip(block - 1).step_by(block);
        let scores: Vec<f32> = keys.map(|key| score(q, w, key, self.scale)).collect();
        select(&scores, &mut y[..self.topk]);
        if self.newest && !(seen.len() / size).is_multiple_of(block) {
            y[scores.len().min(self.topk)] = scores.len() as f32;
        }
    }
}

impl Kernel for IndexTopk {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let q = ctx.input(0)?;
        let k = ctx.input(1)?;
        let w = self.weighted.then(|| ctx.input(2)).transpose()?;
        let IndexSizes { heads, size } = self.sizes;
        let width = heads * size;
        let q = q.view();
        let k = k.view();
        let w = w.as_ref().map(GraphValue::view);
        let count = self.width();
        let mut y = vec![-1.0; q.len() / width * count];
        for chunk in ctx.chunks() {
            let keys = append_keys(ctx, chunk, &k, 0)?;
            y[chunk.rows.start * count..chunk.rows.end * count]
                .par_chunks_exact_mut(count)
                .zip(q[chunk.rows.start * width..].par_chunks_exact(width))
                .enumerate()
                .for_each(|(n, (y, q))| {
                    let row = chunk.rows.start + n;
                    let w = w.as_deref().map(|w| &w[row * heads..(row + 1) * heads]);
                    let seen = &keys[..(chunk.start + n + 1) * size];
                    self.choose(q, w, seen, y);
                });
        }
        ctx.set(0, y)
    }
}

fn score(q: &[f32], w: Option<&[f32]>, key: &[f32], scale: f32) -> f32 {
    q.chunks_exact(key.len()).enumerate().fold(0.0, |sum, (head, q)| {
        let hit = dot(q, key) * scale;
        // NaN stays NaN.
        sum + w.map_or(1.0, |w| w[head]) * if hit < 0.0 { 0.0 } else { hit }
    })
}

/// Multiplies one head of a query with a key.
pub(super) fn dot(q: &[f32], key: &[f32]) -> f32 {
    let mut products = [0.0; 64];
    q.chunks(64)
        .zip(key.chunks(64))
        .map(|(q, key)| {
            let products = &mut products[..q.len()];
            products.iter_mut().zip(q).zip(key).for_each(|((p, q), k)| *p = q * k);
            math::sum(products)
        })
        .sum()
}

/// Selects the indices of the largest scores, ascending; `y` stays unchanged where there are fewer.
pub(super) fn select(scores: &[f32], y: &mut [f32]) {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    if scores.len() > y.len() {
        order.select_nth_unstable_by(y.len() - 1, |a: &usize, b: &usize| {
            descending(scores[*a], scores[*b]).then(a.cmp(b))
        });
        order.truncate(y.len());
        order.sort_unstable();
    }
    y.iter_mut().zip(&order).for_each(|(y, place)| *y = *place as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn among_equals_the_first_are_taken() {
        let mut y = [-1.0; 3];
        select(&[0.0, 2.0, 0.0, 0.0, 1.0], &mut y);
        assert_eq!(y, [0.0, 1.0, 4.0]);
        let mut y = [-1.0; 3];
        select(&[0.0, 2.0], &mut y);
        assert_eq!(y, [0.0, 1.0, -1.0]);
    }

    #[test]
    fn what_points_away_counts_nothing() {
        let q = [1.0, 0.0, 0.0, 1.0];
        assert_eq!(score(&q, Some(&[2.0, 5.0]), &[3.0, -1.0], 0.5), 3.0);
        assert_eq!(score(&q, Some(&[2.0, -5.0]), &[-3.0, 1.0], 0.5), -2.5);
        assert_eq!(score(&q, None, &[3.0, 2.0], 0.5), 2.5);
    }

    #[test]
    fn blocks_have_the_keys_of_their_last_positions() {
        let sizes = IndexSizes { heads: 1, size: 1 };
        let index =
            IndexTopk { sizes, topk: 2, scale: 1.0, block: 2, newest: true, weighted: false };
        let chosen = |seen: &[f32]| {
            let mut y = vec![-1.0; index.width()];
            index.choose(&[1.0], None, seen, &mut y);
            y
        };
        assert_eq!(chosen(&[9.0]), [0.0, -1.0, -1.0]);
        assert_eq!(chosen(&[9.0, 1.0]), [0.0, -1.0, -1.0]);
        assert_eq!(chosen(&[9.0, 1.0, 0.0]), [0.0, 1.0, -1.0]);
        assert_eq!(chosen(&[9.0, 1.0, 0.0, 3.0, 0.0, 2.0, 7.0]), [1.0, 2.0, 3.0]);
        assert_eq!(chosen(&[9.0, 1.0, 0.0, 3.0, 0.0, 2.0]), [1.0, 2.0, -1.0]);
    }
}
