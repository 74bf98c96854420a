//! `block_pool`: a weighted mean of each complete block of positions, at the last position of the block.

use super::causal_conv::{expect_inputs, extend_inputs};
use super::row_scores::block_size;
use super::{Args, Ctx, Kernel, Kernels};
use crate::Error;
use crate::kernels::math;
use crate::kernels::round::{round, round1};
use registry::dtype::Dtype;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("block_pool", BlockPool::prepare);
}

/// The pooling of blocks of positions.
pub(super) struct BlockPool {
    /// Numbers of a row; as many gates come behind them.
    pub(super) numbers: usize,
    pub(super) block: usize,
    /// True if the first half of the numbers is pooled with the block behind.
    pub(super) overlap: bool,
}

impl BlockPool {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let width = args.width(0)?;
        let overlap = args.flag("overlap")?;
        let pool = Self { numbers: width / 2, block: block_size(args)?, overlap };
        let numbers = pool.numbers;
        if !width.is_multiple_of(if overlap { 4 } else { 2 })
            || args.numbers("position_bias") != numbers * pool.block
        {
            return Err(args.error("each number has a gate, and a bias at each place of a block"));
        }
        expect_inputs(args, 2 * numbers, pool.reach())?;
        args.expect_output(pool.size())?;
        Ok(pool)
    }

    /// Returns the positions before a row that its result reads.
    pub(super) fn reach(&self) -> usize {
        (1 + usize::from(self.overlap)) * self.block - 1
    }

    /// Returns the numbers of a result.
    pub(super) fn size(&self) -> usize {
        if self.overlap { self.numbers / 2 } else { self.numbers }
    }

    /// Pools a block whose inputs, each with its gates behind it, are `rows`; with overlap those of the block before
    /// come first, unless there is none.
    fn pool(&self, rows: &[f32], bias: &[f32], dtype: Dtype, y: &mut [f32]) {
        let &Self { numbers, block, .. } = self;
        let size = self.size();
        let count = rows.len() / (2 * numbers);
        let mut weights = vec![0.0; count];
        for (n, y) in y.iter_mut().enumerate() {
            // The newest block has its numbers in the last half.
            let number = |place: usize| if count - place <= block { numbers - size + n } else { n };
            for (place, weight) in weights.iter_mut().enumerate() {
                let at = number(place);
                let gate = rows[(2 * place + 1) * numbers + at];
                *weight = gate + bias[(place % block) * numbers + at];
            }
            softmax(&mut weights);
            let products = weights.iter().enumerate().map(|(place, weight)| {
                round1(dtype, rows[2 * place * numbers + number(place)] * round1(dtype, *weight))
            });
            *y = products.sum();
        }
        round(dtype, y);
    }
}

/// Makes weights of scores.
fn softmax(scores: &mut [f32]) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for x in &mut *scores {
        *x = math::exp(*x - largest);
    }
    let total: f32 = scores.iter().sum();
    for x in scores {
        *x /= total;
    }
}

impl Kernel for BlockPool {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let dtype = ctx.output_dtype(0);
        let bias = ctx.need_vector("position_bias")?;
        let &Self { numbers, block, .. } = self;
        let size = self.size();
        let reach = self.reach();
        let width = 2 * numbers;
        let view = x.view();
        let mut y = vec![0.0; x.rows() * size];
        for chunk in ctx.chunks() {
            let rows = &view[chunk.rows.start * width..chunk.rows.end * width];
            let all = extend_inputs(ctx, chunk, rows)?;
            for (n, row) in chunk.rows.clone().enumerate() {
                let end = chunk.start + n + 1;
                if !end.is_multiple_of(block) {
                    continue;
                }
                let count = (reach + 1).min(end);
                let last = reach + n + 1;
                let rows = &all[(last - count) * width..last * width];
                self.pool(rows, bias, dtype, &mut y[row * size..(row + 1) * size]);
            }
        }
        ctx.set(0, y)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(pool: &BlockPool, rows: &[f32], bias: &[f32]) -> Vec<f32> {
        let mut y = vec![0.0; pool.size()];
        pool.pool(rows, bias, Dtype::F32, &mut y);
        y
    }

    #[test]
    fn weights_are_a_softmax_over_positions() {
        let pool = BlockPool { numbers: 2, block: 2, overlap: false };
        // Two numbers and their gates for each position.
        let rows = [4.0, 3.0, 0.0, 0.0, 8.0, 5.0, 0.0, 0.0];
        assert_eq!(pooled(&pool, &rows, &[0.0; 4]), [6.0, 4.0]);
        let bias = [0.0, 0.0, 0.0, 200.0];
        assert_eq!(pooled(&pool, &rows, &bias), [6.0, 5.0]);
    }

    #[test]
    fn the_first_half_is_pooled_with_the_block_behind() {
        let pool = BlockPool { numbers: 2, block: 1, overlap: true };
        let rows = [4.0, 3.0, 0.0, 0.0, 8.0, 5.0, 0.0, 0.0];
        assert_eq!(pool.reach(), 1);
        assert_eq!(pooled(&pool, &rows, &[0.0; 2]), [4.5]);
        assert_eq!(pooled(&pool, &rows[..4], &[0.0; 2]), [3.0]);
        assert_eq!(pooled(&pool, &rows, &[200.0, 0.0]), [4.0]);
        assert_eq!(pooled(&pool, &rows, &[0.0, 200.0]), [5.0]);
    }

    #[test]
    fn weights_and_products_are_rounded() {
        let pool = BlockPool { numbers: 1, block: 3, overlap: false };
        let rows = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0];
        let mut y = [0.0];
        pool.pool(&rows, &[0.0; 3], Dtype::Bf16, &mut y);
        let third = round1(Dtype::Bf16, 1.0 / 3.0);
        assert_eq!(y[0], round1(Dtype::Bf16, third + third + third));
        assert_ne!(third + third + third, 1.0);
    }
}
