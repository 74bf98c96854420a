//! `rope`: rotates pairs of the first dims of every head by the row's position.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for wide vectors")]

use registry::dtype::Dtype;

use super::{Args, Ctx, Kernel, Kernels, rows};
use crate::Error;
use crate::kernels::round::{round_bf16, round_f16};
use crate::kernels::wide::{Wide, wide};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("rope", Rope::prepare);
}

/// The rounding of cosines and sines, and of the products with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RopeCompute {
    /// Everything is of the activation dtype: cos, sin, each product, the sum.
    Activation,
    /// Everything is f32 until the end.
    F32,
    /// cos and sin are of the activation dtype, the arithmetic is f32.
    QkF32,
}

/// The place of the two numbers of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PairLayout {
    /// Half the rotated numbers apart.
    Half,
    /// Side by side.
    Interleaved,
    /// Side by side in the input, and half the rotated numbers apart in the output.
    InterleavedToHalf,
}

/// The rotation of one node.
pub(super) struct Rope {
    pub(super) compute: RopeCompute,
    pub(super) layout: PairLayout,
    pub(super) inverse: bool,
}

impl Rope {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self {
            compute: args.one_of(
                "compute",
                &[
                    ("activation", RopeCompute::Activation),
                    ("f32", RopeCompute::F32),
                    ("qk_f32", RopeCompute::QkF32),
                ],
            )?,
            layout: args.one_of(
                "layout",
                &[
                    ("half", PairLayout::Half),
                    ("interleaved", PairLayout::Interleaved),
                    ("interleaved_to_half", PairLayout::InterleavedToHalf),
                ],
            )?,
            inverse: args.flag("inverse")?,
        })
    }
}

impl Kernel for Rope {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let angles = ctx.angles()?;
        let &Self { compute, layout, inverse } = self;
        let head = x.shape().last().copied().unwrap_or(1);
        let pairs = angles.pairs;
        let width = x.width();
        if 2 * pairs > head || angles.cos.len() != x.rows() * pairs {
            return Err(ctx.error(format!("a head of {head} has no {pairs} pairs to rotate")));
        }
        let dtype = ctx.output_dtype(0);
        let (cos, sin) = match compute {
            RopeCompute::F32 => (&angles.cos, &angles.sin),
            RopeCompute::Activation | RopeCompute::QkF32 => {
                (&angles.cos_rounded, &angles.sin_rounded)
            }
        };
        let inner = if compute == RopeCompute::Activation { dtype } else { Dtype::F32 };
        let sign = if inverse { -1.0 } else { 1.0 };
        let y = rows::map(&x.view(), width, width, |row, x, y| {
            let cos = &cos[row * pairs..(row + 1) * pairs];
            let sin = &sin[row * pairs..(row + 1) * pairs];
            let row = RotatedRow { layout, head, cos, sin, sign, x, y };
            // Each pair of grids is a loop of its own.
            match (dtype, inner) {
                (Dtype::F32, _) => wide(Rotation { row, outer: same, inner: same }),
                (Dtype::Bf16, Dtype::F32) => wide(Rotation { row, outer: round_bf16, inner: same }),
                (Dtype::Bf16, _) => wide(Rotation { row, outer: round_bf16, inner: round_bf16 }),
                (Dtype::F16, Dtype::F32) => wide(Rotation { row, outer: round_f16, inner: same }),
                (Dtype::F16, _) => wide(Rotation { row, outer: round_f16, inner: round_f16 }),
            }
        });
        ctx.set(0, y)
    }
}

#[inline(always)]
fn same(x: f32) -> f32 {
    x
}

/// One row: all heads at one position.
struct RotatedRow<'a> {
    layout: PairLayout,
    /// Width of a head.
    head: usize,
    cos: &'a [f32],
    sin: &'a [f32],
    /// The factor on sines.
    sign: f32,
    x: &'a [f32],
    y: &'a mut [f32],
}

/// Rotates the heads of a row, with the rounding of products and that of sums.
struct Rotation<'a, O, I> {
    row: RotatedRow<'a>,
    outer: O,
    inner: I,
}

impl<O: Fn(f32) -> f32, I: Fn(f32) -> f32> Wide for Rotation<'_, O, I> {
    #[inline(always)]
    fn run(self) {
        let Self { row: RotatedRow { layout, head, cos, sin, sign, x, y }, outer, inner } = self;
        let pairs = cos.len();
        let turned = |a: f32, b: f32, c: f32, s: f32| {
            let s = sign * s;
            (outer(inner(a * c) + inner(-b * s)), outer(inner(b * c) + inner(a * s)))
        };
        for (x, y) in x.chunks_exact(head).zip(y.chunks_exact_mut(head)) {
            let (x, x_rest) = x.split_at(2 * pairs);
            let (y, y_rest) = y.split_at_mut(2 * pairs);
            y_rest.copy_from_slice(x_rest);
            let angles = cos.iter().zip(sin);
            if layout == PairLayout::Interleaved {
                let numbers = y.as_chunks_mut::<2>().0.iter_mut().zip(x.as_chunks::<2>().0);
                for ((y, x), (c, s)) in numbers.zip(angles) {
                    (y[0], y[1]) = turned(x[0], x[1], *c, *s);
                }
                continue;
            }
            let (first, second) = y.split_at_mut(pairs);
            let numbers = first.iter_mut().zip(second);
            if layout == PairLayout::InterleavedToHalf {
                let numbers = numbers.zip(x.as_chunks::<2>().0);
                for (((first, second), x), (c, s)) in numbers.zip(angles) {
                    (*first, *second) = turned(x[0], x[1], *c, *s);
                }
                continue;
            }
            let (a, b) = x.split_at(pairs);
            for (((first, second), (a, b)), (c, s)) in numbers.zip(a.iter().zip(b)).zip(angles) {
                (*first, *second) = turned(*a, *b, *c, *s);
            }
        }
    }
}
