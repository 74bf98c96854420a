//! `gaussian_topk`: keeps what stands out of a row, as if its numbers were normally distributed.

use registry::normal::quantile;

use super::{Args, Ctx, Kernel, Kernels, rows};
use crate::Error;
use crate::kernels::math::{fold, sum};
use crate::kernels::round::{round, round1};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("gaussian_topk", GaussianTopk::prepare);
}

/// `relu(x - (mean + deviation * z))`, where a normal distribution has the share `sparsity`
/// below `z`. Mean and deviation are of the last axis; each step is rounded.
pub(super) struct GaussianTopk {
    pub(super) z: f32,
}

impl GaussianTopk {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        args.expect_output(args.width(0)?)?;
        Ok(Self { z: quantile(args.double("sparsity")?) as f32 })
    }
}

impl Kernel for GaussianTopk {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let dtype = ctx.output_dtype(0);
        let z = round1(dtype, self.z);
        let width = x.width();
        let y = rows::map(&x.view(), width, width, |_, x, y| {
            let exact = sum(x) / width as f32;
            let variance = fold(x, |x| (x - exact) * (x - exact)) / width as f32;
            let spread = round1(dtype, variance.sqrt());
            let cutoff = round1(dtype, round1(dtype, exact) + round1(dtype, spread * z));
            y.iter_mut().zip(x).for_each(|(y, x)| *y = x - cutoff);
            round(dtype, y);
            for y in y.iter_mut() {
                // NaN stays NaN.
                *y = if *y < 0.0 { 0.0 } else { *y };
            }
        });
        ctx.set(0, y)
    }
}
