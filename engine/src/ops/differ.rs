//! `differ`: one half of the heads less a learned share of the other.

use super::{Args, Ctx, Kernel, Kernels, rows};
use crate::Error;
use crate::kernels::math;
use crate::kernels::round::{round, round1};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("differ", Differ::prepare);
}

/// `first half - l * second half`, where `l = exp(q1 . k1) - exp(q2 . k2) + init`, each step
/// rounded but for the sums, which are f32.
pub(super) struct Differ {
    pub(super) init: f32,
    /// Numbers of a half.
    pub(super) half: usize,
}

impl Differ {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let half = args.width(0)? / 2;
        args.expect_output(half)?;
        Ok(Self { init: args.number("init")?, half })
    }
}

impl Differ {
    /// Computes the share of the second half from the weights.
    pub(super) fn share(&self, ctx: &Ctx<'_>) -> Result<f32, Error> {
        let dtype = ctx.output_dtype(0);
        let difference = round1(dtype, exp_of_product(ctx, 1)? - exp_of_product(ctx, 2)?);
        // torch adds a number to 16-bit values as one of their dtype.
        Ok(round1(dtype, difference + round1(dtype, self.init)))
    }
}

/// Returns `exp(q . k)` of the learned vectors with this number, each product rounded.
fn exp_of_product(ctx: &Ctx<'_>, n: usize) -> Result<f32, Error> {
    let dtype = ctx.output_dtype(0);
    let q = ctx.need_vector(&format!("lambda_q{n}"))?;
    let k = ctx.need_vector(&format!("lambda_k{n}"))?;
    let products: Vec<f32> = q.iter().zip(k).map(|(q, k)| round1(dtype, q * k)).collect();
    Ok(round1(dtype, math::exp(math::sum(&products))))
}

impl Kernel for Differ {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let dtype = ctx.output_dtype(0);
        let share = self.share(ctx)?;
        let half = self.half;
        let y = rows::map(&x.view(), 2 * half, half, |_, x, y| {
            let (first, second) = x.split_at(half);
            y.iter_mut().zip(second).for_each(|(y, x)| *y = x * share);
            round(dtype, y);
            y.iter_mut().zip(first).for_each(|(y, x)| *y = x - *y);
            round(dtype, y);
        });
        ctx.set(0, y)
    }
}
