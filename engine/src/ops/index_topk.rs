//! `index_topk`: which positions a sparse attention looks at, by small keys of their own.
//!
//! The scores of the reference's indexer, in f32. Among equal scores `torch.topk`
//! takes any; here, and in dumps, the lowest position comes first.

use rayon::prelude::*;

use super::{Args, ChunkRows, Ctx, Kernel, Kernels};
use crate::Error;
use crate::kernels::choose::descending;
use crate::kernels::math;
use crate::states::Memory;

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

/// Adds the keys of a chunk to its state. Returns all keys.
pub(super) fn append_keys(
    ctx: &mut Ctx<'_>,
    chunk: &ChunkRows,
    keys: &[f32],
) -> Result<Vec<f32>, Error> {
    let wrong = ctx.error("its state does not hold the keys before this step");
    let Memory::Index(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
    if memory.end() != chunk.start {
        return Err(wrong);
    }
    let size = memory.width();
    memory.append(&keys[chunk.rows.start * size..chunk.rows.end * size]);
    Ok(memory.tail(0))
}

/// The number of selected keys, and the factor on their scores.
pub(super) struct IndexTopk {
    pub(super) sizes: IndexSizes,
    pub(super) topk: usize,
    pub(super) scale: f32,
}

impl IndexTopk {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let sizes = IndexSizes::of(args)?;
        let weights = args.width(2)?;
        if weights != sizes.heads {
            return Err(args.error(format!("{weights} weights for {} heads", sizes.heads)));
        }
        let topk = args.count("topk")?;
        args.expect_output(topk)?;
        Ok(Self { sizes, topk, scale: args.number("scale")? })
    }
}

impl Kernel for IndexTopk {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let q = ctx.input(0)?;
        let k = ctx.input(1)?;
        let w = ctx.input(2)?;
        let &Self { sizes: IndexSizes { heads, size }, topk, scale } = self;
        let q = q.view();
        let k = k.view();
        let w = w.view();
        let mut y = vec![-1.0; w.len() / heads.max(1) * topk];
        for chunk in ctx.chunks() {
            let keys = append_keys(ctx, chunk, &k)?;
            y[chunk.rows.start * topk..chunk.rows.end * topk]
                .par_chunks_exact_mut(topk)
                .zip(q[chunk.rows.start * heads * size..].par_chunks_exact(heads * size))
                .zip(w[chunk.rows.start * heads..].par_chunks_exact(heads))
                .enumerate()
                .for_each(|(n, ((y, q), w))| {
                    let seen = &keys[..(chunk.start + n + 1) * size];
                    let scores: Vec<f32> =
                        seen.chunks_exact(size).map(|key| score(q, w, key, scale)).collect();
                    select(&scores, y);
                });
        }
        ctx.set(0, y)
    }
}

fn score(q: &[f32], w: &[f32], key: &[f32], scale: f32) -> f32 {
    q.chunks_exact(key.len()).zip(w).fold(0.0, |sum, (q, w)| {
        let hit = dot(q, key) * scale;
        // NaN stays NaN.
        sum + w * if hit < 0.0 { 0.0 } else { hit }
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
        assert_eq!(score(&q, &[2.0, 5.0], &[3.0, -1.0], 0.5), 3.0);
        assert_eq!(score(&q, &[2.0, -5.0], &[-3.0, 1.0], 0.5), -2.5);
    }
}
