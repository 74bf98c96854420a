//! `index_blocks`: which blocks of positions each head of a sparse attention looks at, by small keys of their own.
//!
//! Scores are in f32, as in the reference. Among equal scores the lowest block comes first, as in `index_topk`.

use rayon::prelude::*;

use super::index_topk::{IndexSizes, append_keys, dot, select};
use super::row_scores::block_size;
use super::{Args, Ctx, Kernel, Kernels};
use crate::Error;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("index_blocks", IndexBlocks::prepare);
}

/// The number of selected blocks, their size, and the number of last blocks that come before all others.
pub(super) struct IndexBlocks {
    pub(super) sizes: IndexSizes,
    pub(super) topk: usize,
    pub(super) block: usize,
    pub(super) local: usize,
}

impl IndexBlocks {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let sizes = IndexSizes::of(args)?;
        let topk = args.count("topk")?;
        args.expect_output(sizes.heads * topk)?;
        Ok(Self { sizes, topk, block: block_size(args)?, local: args.count("local")? })
    }

    /// Returns the scores of the blocks that one head of a query sees, of all keys up to its own.
    fn scores(&self, q: &[f32], seen: &[f32]) -> Vec<f32> {
        let blocks = seen.chunks(self.block.saturating_mul(q.len()));
        let others = blocks.len().saturating_sub(self.local);
        blocks.enumerate().map(|(n, keys)| score(q, keys, n >= others)).collect()
    }
}

/// Returns the largest product of a query and the keys of a block, or infinity for a last block; NaN stays NaN.
fn score(q: &[f32], keys: &[f32], last: bool) -> f32 {
    if last {
        return f32::INFINITY;
    }
    let products = keys.chunks_exact(q.len()).map(|key| dot(q, key));
    products.fold(f32::NEG_INFINITY, |most, x| if x > most || x.is_nan() { x } else { most })
}

impl Kernel for IndexBlocks {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let q = ctx.input(0)?;
        let k = ctx.input(1)?;
        let topk = self.topk;
        let IndexSizes { heads, size } = self.sizes;
        let width = heads * size;
        let q = q.view();
        let k = k.view();
        let mut y = vec![-1.0; q.len() / size * topk];
        for chunk in ctx.chunks() {
            let keys = append_keys(ctx, chunk, &k, 0)?;
            y[chunk.rows.start * heads * topk..chunk.rows.end * heads * topk]
                .par_chunks_exact_mut(topk)
                .zip(q[chunk.rows.start * width..].par_chunks_exact(size))
                .enumerate()
                .for_each(|(n, (y, q))| {
                    let seen = &keys[..(chunk.start + n / heads + 1) * size];
                    select(&self.scores(q, seen), y);
                });
        }
        ctx.set(0, y)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: IndexSizes = IndexSizes { heads: 1, size: 1 };

    #[test]
    fn a_block_counts_its_largest_product() {
        let index = IndexBlocks { sizes: SIZES, topk: 2, block: 2, local: 0 };
        assert_eq!(index.scores(&[2.0], &[1.0, 3.0, -1.0, -2.0, 5.0]), [6.0, -2.0, 10.0]);
    }

    #[test]
    fn the_last_blocks_come_before_all_others() {
        let index = IndexBlocks { sizes: SIZES, topk: 2, block: 2, local: 2 };
        let endless = f32::INFINITY;
        assert_eq!(index.scores(&[2.0], &[1.0, 3.0, -1.0, -2.0, 5.0]), [6.0, endless, endless]);
        assert_eq!(index.scores(&[2.0], &[1.0]), [endless]);
    }
}
