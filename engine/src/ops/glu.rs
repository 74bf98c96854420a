//! `glu`: an activation of one value times another, as a rewrite makes it of two nodes.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for wide vectors")]

use registry::dtype::Dtype;

use super::activation::Activation;
use super::{Args, Ctx, Kernel, Kernels, activation, rows};
use crate::Error;
use crate::kernels::round::round_inline;
use crate::kernels::wide::{Wide, wide};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("glu", Glu::prepare);
}

/// The function that is applied to the first value.
pub(super) struct Glu {
    then: Activation,
}

impl Glu {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let shapes = [args.input(0)?, args.input(1)?];
        if shapes[0] != shapes[1] {
            return Err(args.error(format!("{:?} and {:?} differ", shapes[0], shapes[1])));
        }
        args.expect_output(args.width(0)?)?;
        Ok(Self { then: activation::argument(args, "activation")? })
    }
}

impl Kernel for Glu {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let gate = ctx.input(0)?;
        let up = ctx.input(1)?;
        let then = self.then;
        let dtype = ctx.output_dtype(0);
        let up = up.view();
        let up: &[f32] = &up;
        let y = rows::pieces(&gate.view(), |at, gate, y| {
            y.copy_from_slice(gate);
            then(dtype, y);
            wide(Times { dtype, y, by: &up[at..] });
        });
        ctx.set(0, y)
    }
}

/// Multiplies each number and rounds.
struct Times<'a> {
    dtype: Dtype,
    y: &'a mut [f32],
    by: &'a [f32],
}

impl Wide for Times<'_> {
    #[inline(always)]
    fn run(self) {
        self.y.iter_mut().zip(self.by).for_each(|(y, by)| *y *= by);
        round_inline(self.dtype, self.y);
    }
}
