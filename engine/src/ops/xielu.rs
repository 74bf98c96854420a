//! `xielu`: a learned activation (Huang et al. 2024), a rounding after every step.

use super::{Ctx, Kernels, rows};
use crate::Error;
use crate::kernels::math::softplus;
use crate::kernels::round::round1;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.add("xielu", run);
}

pub(super) fn run(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let dtype = ctx.output_dtype(0);
    let r = |x| round1(dtype, x);
    let one = |role: &str| -> Result<f32, Error> {
        match ctx.need_vector(role)? {
            [x] => Ok(*x),
            other => Err(ctx.error(format!("`{role}` has {} numbers, not one", other.len()))),
        }
    };
    let (beta, eps) = (one("beta")?, one("eps")?);
    let alpha_p = r(softplus(one("alpha_p")?));
    let alpha_n = r(beta + r(softplus(one("alpha_n")?)));
    let y = rows::pieces(&x.view(), |_, x, y| {
        for (y, &x) in y.iter_mut().zip(x) {
            let bent = if x > 0.0 {
                r(r(alpha_p * x) * x)
            } else {
                r(r(r(x.min(eps).exp_m1()) - x) * alpha_n)
            };
            *y = r(bent + r(beta * x));
        }
    });
    ctx.set(0, y)
}
