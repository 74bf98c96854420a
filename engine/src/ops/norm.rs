//! `rms_norm`, `layer_norm`, `l2_norm`: statistics in f32 over the last axis.

use super::shape::last;
use super::{Args, Ctx, Kernel, Kernels, rows};
use crate::Error;
use crate::kernels::math::{fold, sum};
use crate::kernels::round::{round, round1};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("rms_norm", RmsNorm::prepare);
    kernels.prepared("layer_norm", LayerNorm::prepare);
    kernels.prepared("l2_norm", L2Norm::prepare);
}

/// The rounding of normalised numbers before or after the weight is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NormCast {
    /// Rounded first, then multiplied, then rounded again.
    Before,
    /// Multiplied in f32, then rounded.
    After,
}

impl NormCast {
    pub(super) fn of(args: &Args<'_>) -> Result<Self, Error> {
        args.one_of("cast", &[("before", Self::Before), ("after", Self::After)])
    }
}

/// Sizes of a norm: those of its weights fit the last axis or the whole row.
#[derive(Debug, Clone, Copy)]
pub(super) struct NormSizes {
    pub(super) axis: usize,
    /// Parts of a weight and of a bias, each of an axis: one, or one for each head.
    pub(super) parts: [usize; 2],
}

impl NormSizes {
    fn of(args: &Args<'_>) -> Result<Self, Error> {
        let axis = last(args.input(0)?);
        let width = args.width(0)?;
        let mut parts = [1, 1];
        for (role, parts) in ["weight", "bias"].into_iter().zip(&mut parts) {
            let heads = (0..).map(|head| args.numbers(&format!("{role}.{head}")));
            let joined: usize = heads.take_while(|numbers| *numbers > 0).sum();
            let numbers = joined + args.numbers(role);
            if numbers != axis && numbers != width && numbers != 0 {
                return Err(args.error(format!(
                    "its {role} has {numbers} numbers; the axis has {axis}, the row {width}"
                )));
            }
            *parts = numbers.checked_div(axis).unwrap_or(0).max(1);
        }
        if axis == 0 {
            return Err(args.error("its input has no numbers"));
        }
        args.expect_output(width)?;
        Ok(Self { axis, parts })
    }
}

/// Normalisation by the root mean square.
pub(super) struct RmsNorm {
    pub(super) sizes: NormSizes,
    pub(super) eps: f32,
    pub(super) cast: NormCast,
    pub(super) plus_one: bool,
}

impl RmsNorm {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self {
            sizes: NormSizes::of(args)?,
            eps: args.number("eps")?,
            cast: NormCast::of(args)?,
            plus_one: args.flag("plus_one")?,
        })
    }
}

impl Kernel for RmsNorm {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let eps = self.eps;
        // `1 + w` is computed in f32, whatever the weight's dtype.
        let weight = ctx
            .vector("weight")
            .map(|w| if self.plus_one { w.iter().map(|w| 1.0 + w).collect() } else { w.to_vec() });
        normalise(ctx, self.sizes.axis, [weight.as_deref(), None], self.cast, |x, y| {
            let scale = 1.0 / (fold(x, |x| x * x) / x.len() as f32 + eps).sqrt();
            y.iter_mut().zip(x).for_each(|(y, x)| *y = x * scale);
        })
    }
}

/// Normalisation by mean and variance.
pub(super) struct LayerNorm {
    pub(super) sizes: NormSizes,
    pub(super) eps: f32,
    pub(super) cast: NormCast,
    pub(super) plus_one: bool,
}

impl LayerNorm {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self {
            sizes: NormSizes::of(args)?,
            eps: args.number("eps")?,
            cast: NormCast::of(args)?,
            plus_one: args.flag("plus_one")?,
        })
    }
}

impl Kernel for LayerNorm {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let eps = self.eps;
        let mut weight = numbers_of_heads(ctx, "weight");
        let bias = numbers_of_heads(ctx, "bias");
        // Unlike in `rms_norm`, `1 + w` is a sum of tensors and rounded like one.
        if self.plus_one {
            weight.iter_mut().flatten().for_each(|w| *w = round1(ctx.activation(), 1.0 + *w));
        }
        normalise(ctx, self.sizes.axis, [weight.as_deref(), bias.as_deref()], self.cast, |x, y| {
            let mean = sum(x) / x.len() as f32;
            let scale = 1.0 / (fold(x, |x| (x - mean) * (x - mean)) / x.len() as f32 + eps).sqrt();
            y.iter_mut().zip(x).for_each(|(y, x)| *y = (x - mean) * scale);
        })
    }
}

/// Returns the numbers of a weight. With a norm per head those of all heads stand one after another, as `per_head`
/// stores them.
fn numbers_of_heads(ctx: &Ctx<'_>, role: &str) -> Option<Vec<f32>> {
    let all: Vec<f32> =
        (0..).map_while(|h| ctx.vector(&format!("{role}.{h}"))).flatten().copied().collect();
    if all.is_empty() { ctx.vector(role).map(<[f32]>::to_vec) } else { Some(all) }
}

/// Normalisation by the root mean square without a weight, as query and key norms of that name compute it.
pub(super) struct L2Norm {
    pub(super) sizes: NormSizes,
    pub(super) eps: f32,
}

impl L2Norm {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self { sizes: NormSizes::of(args)?, eps: args.number("eps")? })
    }
}

impl Kernel for L2Norm {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let eps = self.eps;
        normalise(ctx, self.sizes.axis, [None, None], NormCast::After, |x, y| {
            let scale = 1.0 / (fold(x, |x| x * x) / x.len() as f32 + eps).sqrt();
            y.iter_mut().zip(x).for_each(|(y, x)| *y = x * scale);
        })
    }
}

fn normalise(
    ctx: &mut Ctx<'_>,
    axis: usize,
    [weight, bias]: [Option<&[f32]>; 2],
    cast: NormCast,
    each: impl Fn(&[f32], &mut [f32]) + Sync,
) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let dtype = ctx.output_dtype(0);
    let width = x.width();
    let y = rows::map(&x.view(), width, width, |_, x, y| {
        for (n, (x, y)) in x.chunks_exact(axis).zip(y.chunks_exact_mut(axis)).enumerate() {
            each(x, y);
            if cast == NormCast::Before {
                round(dtype, y);
            }
            if let Some(w) = weight {
                let w = part_of_axis(w, axis, n);
                y.iter_mut().zip(w).for_each(|(y, w)| *y *= w);
            }
            if let Some(b) = bias {
                let b = part_of_axis(b, axis, n);
                y.iter_mut().zip(b).for_each(|(y, b)| *y += b);
            }
            round(dtype, y);
        }
    });
    ctx.set(0, y)
}

/// Returns the numbers of a weight for the axis `n` of a row. A weight of the whole row has one part per head.
fn part_of_axis(weight: &[f32], axis: usize, n: usize) -> &[f32] {
    let first = if weight.len() == axis { 0 } else { n * axis };
    &weight[first..][..axis]
}
