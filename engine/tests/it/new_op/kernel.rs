//! The kernel of an op that this program does not have.

use onboard_engine::Error;
use onboard_engine::ops::{Args, Ctx, Kernel, Kernels};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("shrink", Shrink::prepare);
}

struct Shrink {
    by: f32,
}

impl Shrink {
    fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self { by: args.number("by")? })
    }
}

impl Kernel for Shrink {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let y = x.view().iter().map(|x| x * self.by).collect();
        ctx.set(0, y)
    }
}
