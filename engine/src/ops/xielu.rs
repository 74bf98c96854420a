//! `xielu`: a learned activation (Huang et al. 2024), a rounding after every step.

use super::{Args, Ctx, Kernel, Kernels, rows};
use crate::Error;
use crate::kernels::math::softplus;
use crate::kernels::round::round1;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("xielu", Xielu::prepare);
}

/// Learned numbers of the activation.
pub(super) struct XieluParams {
    /// The factor of squares of positive numbers.
    pub(super) positive: f32,
    /// The factor of the exponentials of other numbers.
    pub(super) negative: f32,
    pub(super) beta: f32,
    pub(super) eps: f32,
}

/// Returns the number of a weight, which is a single one.
fn single(ctx: &Ctx<'_>, role: &str) -> Result<f32, Error> {
    Ok(ctx.need_vector(role)?.first().copied().unwrap_or(f32::NAN))
}

/// The activation, whose four weights are single numbers.
pub(super) struct Xielu;

impl Xielu {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        for role in ["alpha_p", "alpha_n", "beta", "eps"] {
            let numbers = args.numbers(role);
            if numbers != 1 {
                return Err(args.error(format!("`{role}` has {numbers} numbers, not one")));
            }
        }
        args.expect_output(args.width(0)?)?;
        Ok(Self)
    }

    /// Returns the learned numbers, rounded as the reference rounds them.
    pub(super) fn params(ctx: &Ctx<'_>) -> Result<XieluParams, Error> {
        let dtype = ctx.output_dtype(0);
        let beta = single(ctx, "beta")?;
        let eps = single(ctx, "eps")?;
        let positive = round1(dtype, softplus(single(ctx, "alpha_p")?));
        let negative = round1(dtype, beta + round1(dtype, softplus(single(ctx, "alpha_n")?)));
        Ok(XieluParams { positive, negative, beta, eps })
    }
}

impl Kernel for Xielu {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let dtype = ctx.output_dtype(0);
        let XieluParams { positive, negative, beta, eps } = Self::params(ctx)?;
        let y = rows::pieces(&x.view(), |_, x, y| {
            for (y, &x) in y.iter_mut().zip(x) {
                let bent = if x > 0.0 {
                    round1(dtype, round1(dtype, positive * x) * x)
                } else {
                    let below = round1(dtype, round1(dtype, x.min(eps).exp_m1()) - x);
                    round1(dtype, below * negative)
                };
                *y = round1(dtype, bent + round1(dtype, beta * x));
            }
        });
        ctx.set(0, y)
    }
}
