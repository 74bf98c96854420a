//! `lightning`: linear attention with a fixed decay per head, every step rounded.
//!
//! As the reference's module (`LightningAttention` of transformers): a sequence's first chunk goes by blocks,
//! whose decays are tables of the checkpoint (rounded to its dtype, unlike what the formula
//! gives), and what continues a sequence goes position by position.

use rayon::prelude::*;
use registry::dtype::Dtype;

use super::scan::by_unit;
use super::{Args, Ctx, Kernel, Kernels};
use crate::Error;
use crate::kernels::round::{round, round1};
use crate::states::Memory;
use crate::states::recurrent::RecurrentStep;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("lightning", Lightning::prepare);
}

/// One head of one chunk.
#[derive(Clone, Copy)]
struct LightningHead<'a> {
    /// Numbers of a key, and of a value.
    sizes: (usize, usize),
    /// Row `n` of this head begins at `n` times this.
    strides: (usize, usize),
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    slope: f32,
    query_decay: &'a [f32],    // [block]
    key_decay: &'a [f32],      // [block]
    diagonal_decay: &'a [f32], // [block, block]
    dtype: Dtype,
}

/// Sizes of the heads, and the length of a block.
pub(super) struct Lightning {
    pub(super) heads: usize,
    pub(super) key: usize,
    pub(super) value: usize,
    pub(super) block: usize,
}

impl Lightning {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let (&[heads, key], &[value_heads, value]) = (args.input(1)?, args.input(2)?) else {
            return Err(args.error("keys and values have two axes each, heads and head size"));
        };
        let block = args.count("block")?;
        let tables = ["slope_rate", "query_decay", "key_decay", "diagonal_decay"];
        let numbers = [heads, heads * block, heads * block, heads * block * block];
        if block == 0
            || value_heads != heads
            || args.width(0)? != heads * key
            || tables.map(|role| args.numbers(role)) != numbers
            || args.state_width()? != heads * key * value
        {
            return Err(args.error("its inputs and tables do not fit"));
        }
        args.expect_output(heads * value)?;
        Ok(Self { heads, key, value, block })
    }
}

impl Kernel for Lightning {
    fn needs_whole_chunks(&self) -> bool {
        true
    }

    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let q = ctx.input(0)?;
        let k = ctx.input(1)?;
        let v = ctx.input(2)?;
        let &Self { heads, key, value, block } = self;
        let slopes = ctx.need_vector("slope_rate")?;
        let query_decay = ctx.need_vector("query_decay")?;
        let key_decay = ctx.need_vector("key_decay")?;
        let diagonal_decay = ctx.need_vector("diagonal_decay")?;
        let dtype = ctx.output_dtype(0);
        let q = q.view();
        let k = k.view();
        let v = v.view();
        let mut y = vec![0.0; v.len()];
        for chunk in ctx.chunks() {
            let wrong = ctx.error("its state does not hold a matrix of this shape per head");
            let rows = chunk.rows.clone();
            let Memory::Recurrent(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
            if memory.width() != heads * key * value || memory.end() != chunk.start {
                return Err(wrong);
            }
            let RecurrentStep { before, after } = memory.step(rows.len());
            let size = key * value;
            let outputs: Vec<Vec<f32>> = by_unit(after, heads, size)
                .into_par_iter()
                .enumerate()
                .map(|(n, after)| {
                    let head = LightningHead {
                        sizes: (key, value),
                        strides: (heads * key, heads * value),
                        q: &q[rows.start * heads * key + n * key..],
                        k: &k[rows.start * heads * key + n * key..],
                        v: &v[rows.start * heads * value + n * value..],
                        slope: slopes[n],
                        query_decay: &query_decay[n * block..][..block],
                        key_decay: &key_decay[n * block..][..block],
                        diagonal_decay: &diagonal_decay[n * block * block..][..block * block],
                        dtype,
                    };
                    if chunk.start == 0 {
                        head.blocks(rows.len(), after)
                    } else {
                        head.steps(rows.len(), &before[n * size..][..size], after)
                    }
                })
                .collect();
            let y = &mut y[rows.start * heads * value..rows.end * heads * value];
            for (head, output) in outputs.iter().enumerate() {
                for (y, row) in y.chunks_exact_mut(heads * value).zip(output.chunks_exact(value)) {
                    y[head * value..][..value].copy_from_slice(row);
                }
            }
        }
        ctx.set(0, y)
    }
}

impl LightningHead<'_> {
    fn q(&self, row: usize) -> &[f32] {
        &self.q[row * self.strides.0..][..self.sizes.0]
    }

    fn k(&self, row: usize) -> &[f32] {
        &self.k[row * self.strides.0..][..self.sizes.0]
    }

    fn v(&self, row: usize) -> &[f32] {
        &self.v[row * self.strides.1..][..self.sizes.1]
    }

    /// Continues a sequence: `[rows, value]`.
    fn steps(&self, rows: usize, before: &[f32], mut after: Vec<&mut [f32]>) -> Vec<f32> {
        let value = self.sizes.1;
        let ratio = round1(self.dtype, (-self.slope).exp());
        let first = rows - after.len();
        let mut matrix = before.to_vec();
        let mut y = vec![0.0; rows * value];
        for (row, y) in y.chunks_exact_mut(value).enumerate() {
            for (line, k) in matrix.chunks_exact_mut(value).zip(self.k(row)) {
                for (s, v) in line.iter_mut().zip(self.v(row)) {
                    let decayed = round1(self.dtype, ratio * *s);
                    let new = round1(self.dtype, k * v);
                    *s = round1(self.dtype, decayed + new);
                }
            }
            read(&matrix, self.q(row), y);
            round(self.dtype, y);
            if let Some(n) = row.checked_sub(first) {
                after[n].copy_from_slice(&matrix);
            }
        }
        y
    }

    /// Begins a sequence: `[rows, value]`.
    fn blocks(&self, rows: usize, mut after: Vec<&mut [f32]>) -> Vec<f32> {
        let (key, value) = self.sizes;
        let block = self.query_decay.len();
        let first = rows - after.len();
        let mut matrix = vec![0.0; key * value];
        let mut y = vec![0.0; rows * value];
        let mut scaled = vec![0.0; key];
        let mut within = vec![0.0; value];
        for start in (0..rows).step_by(block) {
            let end = rows.min(start + block);
            for row in start..end {
                let y = &mut y[row * value..][..value];
                within.fill(0.0);
                for other in start..=row {
                    let products = self.q(row).iter().zip(self.k(other)).map(|(q, k)| q * k);
                    let score = round1(self.dtype, products.sum());
                    let decay = self.diagonal_decay[(row - start) * block + other - start];
                    let score = round1(self.dtype, score * decay);
                    within.iter_mut().zip(self.v(other)).for_each(|(y, v)| *y += score * v);
                }
                round(self.dtype, &mut within);
                let decay = self.query_decay[row - start];
                scaled.iter_mut().zip(self.q(row)).for_each(|(s, q)| *s = q * decay);
                round(self.dtype, &mut scaled);
                read(&matrix, &scaled, y);
                round(self.dtype, y);
                y.iter_mut().zip(&within).for_each(|(y, x)| *y += x);
                round(self.dtype, y);
                // What the sequence would have left, had it ended here.
                if let Some(n) = row.checked_sub(first) {
                    self.left(start, row + 1, &matrix, after[n]);
                }
            }
            let before = matrix.clone();
            self.left(start, end, &before, &mut matrix);
        }
        y
    }

    /// Computes the matrix after rows `start..end` of one block.
    fn left(&self, start: usize, end: usize, before: &[f32], into: &mut [f32]) {
        let count = end - start;
        let value = self.sizes.1;
        into.fill(0.0);
        for row in start..end {
            let decay = self.key_decay[self.key_decay.len() - count + row - start];
            for (line, k) in into.chunks_exact_mut(value).zip(self.k(row)) {
                let k = round1(self.dtype, k * decay);
                line.iter_mut().zip(self.v(row)).for_each(|(s, v)| *s += k * v);
            }
        }
        round(self.dtype, into);
        let decay = round1(self.dtype, round1(self.dtype, -self.slope * count as f32).exp());
        for (s, before) in into.iter_mut().zip(before) {
            *s = round1(self.dtype, round1(self.dtype, before * decay) + *s);
        }
    }
}

/// Computes `y = q · matrix`, sums over the keys in order.
fn read(matrix: &[f32], q: &[f32], y: &mut [f32]) {
    let value = y.len();
    y.fill(0.0);
    for (line, q) in matrix.chunks_exact(value).zip(q) {
        y.iter_mut().zip(line).for_each(|(y, s)| *y += q * s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_steps_are_the_same_sum() {
        let q = test_numbers(10);
        let k = test_numbers(11);
        let v = test_numbers(13);
        let slope = 0.3f32;
        let query = [decay(slope, 1), decay(slope, 2), decay(slope, 3)];
        let key = [decay(slope, 2), decay(slope, 1), 1.0];
        let diagonal =
            [1.0, 0.0, 0.0, decay(slope, 1), 1.0, 0.0, decay(slope, 2), decay(slope, 1), 1.0];
        let head = LightningHead {
            sizes: (2, 2),
            strides: (2, 2),
            q: &q,
            k: &k,
            v: &v,
            slope,
            query_decay: &query,
            key_decay: &key,
            diagonal_decay: &diagonal,
            dtype: Dtype::F32,
        };
        let mut a = [[0.0; 4]; 3];
        let mut b = [[0.0; 4]; 3];
        let by_block = head.blocks(5, a.iter_mut().map(|m| &mut m[..]).collect());
        let by_step = head.steps(5, &[0.0; 4], b.iter_mut().map(|m| &mut m[..]).collect());
        for (a, b) in
            by_block.iter().zip(&by_step).chain(a.iter().flatten().zip(b.iter().flatten()))
        {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
    }

    fn decay(slope: f32, n: usize) -> f32 {
        (-slope * n as f32).exp()
    }

    fn test_numbers(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 29 % 17) as f32 - 8.0) / 5.0).collect()
    }
}
