//! Several residual streams side by side, `[streams, width]`: `mix_streams` and `outer`; `sinkhorn`, which normalizes a
//! matrix between them; and `mean`.

use super::shape::last;
use super::{Args, Ctx, Kernel, Kernels, rows};
use crate::Error;
use crate::kernels::math::sum;
use crate::kernels::round::round;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("mix_streams", MixStreams::prepare);
    kernels.prepared("outer", Outer::prepare);
    kernels.prepared("sinkhorn", Sinkhorn::prepare);
    kernels.prepared("mean", Mean::prepare);
}

/// `y[m] = sum over n of coefficients[m][n] * x[n]`, with one rounding.
pub(super) struct MixStreams {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) width: usize,
}

impl MixStreams {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let (&[from, width], &[to, inner]) = (args.input(0)?, args.input(1)?) else {
            return Err(args.error("it takes streams and a matrix per row"));
        };
        if inner != from {
            return Err(
                args.error(format!("a matrix of {to} by {inner} does not mix {from} streams"))
            );
        }
        args.expect_output(to * width)?;
        Ok(Self { from, to, width })
    }
}

impl Kernel for MixStreams {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let coefficients = ctx.input(1)?;
        let &Self { from, to, width } = self;
        let dtype = ctx.output_dtype(0);
        let view = coefficients.view();
        let c: &[f32] = &view;
        let y = rows::map(&x.view(), x.width(), to * width, |row, x, y| {
            let c = &c[row * to * from..(row + 1) * to * from];
            for (c, y) in c.chunks_exact(from).zip(y.chunks_exact_mut(width)) {
                for (c, x) in c.iter().zip(x.chunks_exact(width)) {
                    y.iter_mut().zip(x).for_each(|(y, x)| *y += c * x);
                }
            }
            round(dtype, y);
        });
        ctx.set(0, y)
    }
}

/// `y[n] = coefficients[n] * x`.
pub(super) struct Outer {
    pub(super) streams: usize,
    pub(super) width: usize,
}

impl Outer {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let width = args.width(0)?;
        let streams = args.width(1)?;
        args.expect_output(streams * width)?;
        Ok(Self { streams, width })
    }
}

impl Kernel for Outer {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let coefficients = ctx.input(1)?;
        let &Self { streams, width } = self;
        let dtype = ctx.output_dtype(0);
        let view = coefficients.view();
        let c: &[f32] = &view;
        let y = rows::map(&x.view(), width, streams * width, |row, x, y| {
            for (c, y) in c[row * streams..].iter().zip(y.chunks_exact_mut(width)) {
                y.iter_mut().zip(x).for_each(|(y, x)| *y = c * x);
            }
            round(dtype, y);
        });
        ctx.set(0, y)
    }
}

/// Divides a square matrix by the sums of its columns and rows in turn.
pub(super) struct Sinkhorn {
    /// Rows, and columns.
    pub(super) size: usize,
    pub(super) iterations: usize,
    /// Added to each sum.
    pub(super) eps: f32,
}

impl Sinkhorn {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let &[size, columns] = args.input(0)? else {
            return Err(args.error("it takes a matrix per row"));
        };
        if size != columns || size == 0 {
            return Err(args.error(format!("a matrix of {size} by {columns} is not square")));
        }
        args.expect_output(size * size)?;
        Ok(Self { size, iterations: args.count("iterations")?, eps: args.number("eps")? })
    }

    fn normalize(&self, matrix: &mut [f32]) {
        self.divide_columns(matrix);
        for _ in 1..self.iterations {
            for row in matrix.chunks_exact_mut(self.size) {
                let total: f32 = row.iter().sum();
                for x in row {
                    *x /= total + self.eps;
                }
            }
            self.divide_columns(matrix);
        }
    }

    fn divide_columns(&self, matrix: &mut [f32]) {
        for column in 0..self.size {
            let total: f32 = matrix.iter().skip(column).step_by(self.size).sum();
            let column = matrix.iter_mut().skip(column).step_by(self.size);
            column.for_each(|x| *x /= total + self.eps);
        }
    }
}

impl Kernel for Sinkhorn {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let dtype = ctx.output_dtype(0);
        let width = self.size * self.size;
        let y = rows::map(&x.view(), width, width, |_, x, y| {
            y.copy_from_slice(x);
            self.normalize(y);
            round(dtype, y);
        });
        ctx.set(0, y)
    }
}

/// Mean of an axis, summed in f32.
pub(super) enum Mean {
    /// Of so many numbers, which are the last axis.
    Numbers(usize),
    /// Of heads of a size, which are the last two axes.
    Heads(usize, usize),
}

impl Mean {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let shape = args.input(0)?;
        let width: usize = shape.iter().product();
        let over_heads = args.one_of("over", &[("numbers", false), ("heads", true)])?;
        let mean = match *shape {
            [.., heads, size] if over_heads => Self::Heads(heads, size),
            _ if over_heads => return Err(args.error("it has no axis of heads")),
            _ => Self::Numbers(last(shape).max(1)),
        };
        let (Self::Numbers(count) | Self::Heads(count, _)) = mean;
        args.expect_output(width / count.max(1))?;
        Ok(mean)
    }
}

impl Kernel for Mean {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        match *self {
            Self::Numbers(count) => mean_of_numbers(ctx, count),
            Self::Heads(heads, size) => mean_of_heads(ctx, heads, size),
        }
    }
}

fn mean_of_numbers(ctx: &mut Ctx<'_>, axis: usize) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let dtype = ctx.output_dtype(0);
    let width = x.width();
    let y = rows::map(&x.view(), width, width / axis, |_, x, y| {
        for (x, y) in x.chunks_exact(axis).zip(y.iter_mut()) {
            *y = sum(x) / axis as f32;
        }
        round(dtype, y);
    });
    ctx.set(0, y)
}

fn mean_of_heads(ctx: &mut Ctx<'_>, heads: usize, size: usize) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let dtype = ctx.output_dtype(0);
    let y = rows::map(&x.view(), heads * size, size, |_, x, y| {
        for head in x.chunks_exact(size) {
            y.iter_mut().zip(head).for_each(|(y, x)| *y += x);
        }
        for y in y.iter_mut() {
            *y /= heads as f32;
        }
        round(dtype, y);
    });
    ctx.set(0, y)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_divided_first_and_last() {
        let mut matrix = [1.0, 2.0, 3.0, 2.0];
        Sinkhorn { size: 2, iterations: 1, eps: 0.0 }.normalize(&mut matrix);
        assert_eq!(matrix, [0.25, 0.5, 0.75, 0.5]);
        Sinkhorn { size: 2, iterations: 1, eps: 1.0 }.normalize(&mut matrix);
        assert_eq!(matrix, [0.125, 0.25, 0.375, 0.25]);
        let mut matrix = [1.0, 2.0, 3.0, 2.0];
        Sinkhorn { size: 2, iterations: 40, eps: 0.0 }.normalize(&mut matrix);
        for sum in [matrix[0] + matrix[1], matrix[2] + matrix[3], matrix[0] + matrix[2]] {
            assert!((sum - 1.0).abs() < 1e-5, "{matrix:?}");
        }
        let mut matrix = [1.0, 2.0, 3.0, 2.0];
        Sinkhorn { size: 2, iterations: 2, eps: 0.0 }.normalize(&mut matrix);
        // Rows sum to 3/4 and 5/4 before, and columns to 1 behind.
        let expected = [1.0 / 3.0 / (1.0 / 3.0 + 0.6), 2.0 / 3.0 / (2.0 / 3.0 + 0.4)];
        assert!((matrix[0] - expected[0]).abs() < 1e-6 && (matrix[1] - expected[1]).abs() < 1e-6);
    }
}
