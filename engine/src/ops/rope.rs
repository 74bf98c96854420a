//! `rope`: rotates pairs of the first dims of every head by the row's position.

use super::{Args, Ctx, Kernel, Kernels, rows};
use crate::Error;
use crate::kernels::round::round1;

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
        let interleaved = layout != PairLayout::Half;
        let gathers = layout != PairLayout::Interleaved;
        let head = x.shape().last().copied().unwrap_or(1);
        let (pairs, width) = (angles.pairs, x.width());
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
        let inner =
            if compute == RopeCompute::Activation { dtype } else { registry::dtype::Dtype::F32 };
        let y = rows::map(&x.view(), width, width, |row, x, y| {
            let cos = &cos[row * pairs..(row + 1) * pairs];
            let sin = &sin[row * pairs..(row + 1) * pairs];
            for (x, y) in x.chunks_exact(head).zip(y.chunks_exact_mut(head)) {
                for n in 0..pairs {
                    let (a, b) = if interleaved { (2 * n, 2 * n + 1) } else { (n, n + pairs) };
                    let (c, s) = (cos[n], if inverse { -sin[n] } else { sin[n] });
                    let turned = |x: f32, c: f32, z: f32, s: f32| {
                        round1(dtype, round1(inner, x * c) + round1(inner, z * s))
                    };
                    let (first, second) = (turned(x[a], c, -x[b], s), turned(x[b], c, x[a], s));
                    let (a, b) = if gathers { (n, n + pairs) } else { (a, b) };
                    (y[a], y[b]) = (first, second);
                }
                y[2 * pairs..].copy_from_slice(&x[2 * pairs..]);
            }
        });
        ctx.set(0, y)
    }
}
