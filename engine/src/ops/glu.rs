//! `glu`: an activation of one value times another, as a rewrite makes it of two nodes.

use super::{Ctx, activation, rows};
use crate::Error;
use crate::kernels::round::round;

pub(super) fn run(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let (gate, up) = (ctx.input(0)?, ctx.input(1)?);
    let name = ctx.text("activation", "");
    let then = activation::of(name).ok_or_else(|| ctx.error(format!("no activation `{name}`")))?;
    if gate.shape() != up.shape() {
        return Err(ctx.error(format!("{:?} and {:?} differ", gate.shape(), up.shape())));
    }
    let dtype = ctx.output_dtype(0);
    let up = up.view();
    let up: &[f32] = &up;
    let y = rows::pieces(&gate.view(), |at, gate, y| {
        y.copy_from_slice(gate);
        then(dtype, y);
        y.iter_mut().zip(&up[at..]).for_each(|(y, u)| *y *= u);
        round(dtype, y);
    });
    ctx.set(0, y)
}
