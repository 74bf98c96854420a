//! Several residual streams side by side, `[streams, width]`: `mix_streams` and `outer`; and `mean`.

use super::{Args, Ctx, Kernel, Kernels, rows};
use crate::Error;
use crate::kernels::math::sum;
use crate::kernels::round::round;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.add("mix_streams", mix);
    kernels.add("outer", outer);
    kernels.prepared("mean", Mean::prepare);
}

/// Computes `y[m] = sum over n of coefficients[m][n] * x[n]`, with one rounding.
pub(super) fn mix(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let coefficients = ctx.input(1)?;
    let (&[_, from, width], &[_, to, inner]) = (x.shape(), coefficients.shape()) else {
        return Err(ctx.error("it takes streams and a matrix per row"));
    };
    if inner != from || x.rows() != coefficients.rows() {
        return Err(ctx.error(format!("a matrix of {to} by {inner} does not mix {from} streams")));
    }
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

/// Computes `y[n] = coefficients[n] * x`.
pub(super) fn outer(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let coefficients = ctx.input(1)?;
    let width = x.width();
    let streams = coefficients.width();
    if x.rows() != coefficients.rows() {
        return Err(ctx.error("its inputs have as many rows"));
    }
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

/// Mean of an axis, summed in f32.
pub(super) struct Mean {
    /// True for the axis before the last.
    pub(super) over_heads: bool,
}

impl Mean {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self { over_heads: args.one_of("over", &[("numbers", false), ("heads", true)])? })
    }
}

impl Kernel for Mean {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        if self.over_heads { mean_of_heads(ctx) } else { mean_of_numbers(ctx) }
    }
}

fn mean_of_numbers(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let dtype = ctx.output_dtype(0);
    let axis = x.shape().iter().skip(1).next_back().copied().unwrap_or(1).max(1);
    let width = x.width();
    let y = rows::map(&x.view(), width, width / axis, |_, x, y| {
        for (x, y) in x.chunks_exact(axis).zip(y.iter_mut()) {
            *y = sum(x) / axis as f32;
        }
        round(dtype, y);
    });
    ctx.set(0, y)
}

fn mean_of_heads(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let dtype = ctx.output_dtype(0);
    let &[_, .., heads, size] = x.shape() else {
        return Err(ctx.error("it has no axis of heads"));
    };
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
