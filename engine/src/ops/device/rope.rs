//! `rope` on a device.

use registry::dtype::Dtype;

use crate::Error;
use crate::device::count;
use crate::ops::device::{index, last_axis};
use crate::ops::rope::{PairLayout, Rope, RopeCompute};
use crate::ops::{Args, Ctx, Kernel, Kernels};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("rope", DeviceRope::prepare);
}

struct DeviceRope(Rope);

impl DeviceRope {
    fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Rope::prepare(args).map(Self)
    }
}

impl Kernel for DeviceRope {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let &Rope { compute, layout, inverse } = &self.0;
        let queue = ctx.queue()?;
        let x = ctx.device_input(0)?;
        let angles = ctx.device_angles()?;
        let head = last_axis(&x);
        let pairs = angles.pairs;
        if 2 * pairs > head || angles.rows != x.rows() {
            return Err(ctx.error(format!("a head of {head} has no {pairs} pairs to rotate")));
        }
        let y = ctx.device_output(0, x.rows())?;
        let [cos, sin] = if compute == RopeCompute::F32 { &angles.plain } else { &angles.rounded };
        let inner = if compute == RopeCompute::Activation { y.dtype } else { Dtype::F32 };
        let arguments = [
            (&*x.buffer).into(),
            x.dtype.into(),
            cos.into(),
            sin.into(),
            index(ctx, pairs)?.into(),
            index(ctx, head)?.into(),
            index(ctx, x.width())?.into(),
            (layout != PairLayout::Half).into(),
            (layout != PairLayout::Interleaved).into(),
            inverse.into(),
            inner.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
            count(y.len()),
        ];
        queue.launch_each("rope", y.len(), &arguments)?;
        ctx.set_device(0, y)
    }
}
