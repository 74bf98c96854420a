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
}

impl Differ {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self { init: args.number("init")? })
    }
}

impl Differ {
    /// Computes the share of the second half from the weights.
    pub(super) fn share(&self, ctx: &Ctx<'_>) -> Result<f32, Error> {
        let dtype = ctx.output_dtype(0);
        let r = |x| round1(dtype, x);
        let share = |n: usize| -> Result<f32, Error> {
            let q = ctx.need_vector(&format!("lambda_q{n}"))?;
            let k = ctx.need_vector(&format!("lambda_k{n}"))?;
            let products: Vec<f32> = q.iter().zip(k).map(|(q, k)| r(q * k)).collect();
            Ok(r(math::exp(math::sum(&products))))
        };
        // torch adds a number to 16-bit values as one of their dtype.
        Ok(r(r(share(1)? - share(2)?) + r(self.init)))
    }
}

impl Kernel for Differ {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let dtype = ctx.output_dtype(0);
        let share = self.share(ctx)?;
        let half = ctx.output_width(0)?;
        if x.width() != 2 * half {
            return Err(ctx.error("it has two halves"));
        }
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
