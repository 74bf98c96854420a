//! Several residual streams side by side, `[streams, width]`: `mix_streams` and `outer`; and `mean`.

use super::shape::last;
use super::{Args, Ctx, Kernel, Kernels, rows};
use crate::Error;
use crate::kernels::math::sum;
use crate::kernels::round::round;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("mix_streams", MixStreams::prepare);
    kernels.prepared("outer", Outer::prepare);
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
