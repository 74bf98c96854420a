//! `block_mean`: the mean of each complete block of keys, at the last position of the block.

use super::index_topk::append_keys;
use super::row_scores::block_size;
use super::{Args, Ctx, Kernel, Kernels};
use crate::Error;
use crate::kernels::round::round;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("block_mean", BlockMean::prepare);
}

/// The mean of blocks of positions.
pub(super) struct BlockMean {
    /// Numbers of a key.
    pub(super) size: usize,
    pub(super) block: usize,
}

impl BlockMean {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let size = args.width(0)?;
        if size == 0 || args.state_width()? != size {
            return Err(args.error(format!("its state does not hold keys of {size} numbers")));
        }
        args.expect_output(size)?;
        Ok(Self { size, block: block_size(args)? })
    }

    /// Writes the mean of the rows of a block, before rounding.
    fn mean(&self, rows: &[f32], y: &mut [f32]) {
        for row in rows.chunks_exact(y.len()) {
            y.iter_mut().zip(row).for_each(|(y, x)| *y += x);
        }
        for y in y.iter_mut() {
            *y /= self.block as f32;
        }
    }
}

impl Kernel for BlockMean {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let dtype = ctx.output_dtype(0);
        let &Self { size, block } = self;
        let view = x.view();
        let mut y = vec![0.0; view.len()];
        for chunk in ctx.chunks() {
            // The block that the first row belongs to begins before it.
            let first = chunk.start - chunk.start % block;
            let keys = append_keys(ctx, chunk, &view, first)?;
            for (n, keys) in keys.chunks_exact(block * size).enumerate() {
                let row = chunk.rows.start + first + (n + 1) * block - 1 - chunk.start;
                let y = &mut y[row * size..(row + 1) * size];
                self.mean(keys, y);
                round(dtype, y);
            }
        }
        ctx.set(0, y)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_of_all_rows_of_a_block() {
        let mut y = [0.0; 2];
        BlockMean { size: 2, block: 3 }.mean(&[1.0, 2.0, 3.0, 4.0, 5.0, 0.0], &mut y);
        assert_eq!(y, [3.0, 2.0]);
    }
}
