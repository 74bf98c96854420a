//! `xielu`: a learned activation (Huang et al. 2024), a rounding after every step.

use super::{Ctx, Kernels, rows};
use crate::Error;
use crate::kernels::math::softplus;
use crate::kernels::round::round1;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.add("xielu", run);
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

/// Returns the learned numbers, rounded as the reference rounds them.
pub(super) fn params(ctx: &Ctx<'_>) -> Result<XieluParams, Error> {
    let dtype = ctx.output_dtype(0);
    let beta = single(ctx, "beta")?;
    let eps = single(ctx, "eps")?;
    let positive = round1(dtype, softplus(single(ctx, "alpha_p")?));
    let negative = round1(dtype, beta + round1(dtype, softplus(single(ctx, "alpha_n")?)));
    Ok(XieluParams { positive, negative, beta, eps })
}

/// Returns the number of a weight that has to be a single one.
fn single(ctx: &Ctx<'_>, role: &str) -> Result<f32, Error> {
    match ctx.need_vector(role)? {
        [x] => Ok(*x),
        other => Err(ctx.error(format!("`{role}` has {} numbers, not one", other.len()))),
    }
}

pub(super) fn run(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let dtype = ctx.output_dtype(0);
    let XieluParams { positive, negative, beta, eps } = params(ctx)?;
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
