//! `gated_norm` on a device.

use crate::Error;
use crate::device::source;
use crate::ops::device::index;
use crate::ops::gated_norm::GatedNorm;
use crate::ops::norm::NormCast;
use crate::ops::{Args, Ctx, Kernel, Kernels};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("gated_norm", DeviceGatedNorm::prepare);
}

struct DeviceGatedNorm {
    rule: GatedNorm,
    /// True if the gate's activation is a sigmoid, or else silu.
    sigmoids: bool,
}

impl DeviceGatedNorm {
    fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let sigmoids = args.one_of("activation", &[("silu", false), ("sigmoid", true)])?;
        Ok(Self { rule: GatedNorm::prepare(args)?, sigmoids })
    }
}

impl Kernel for DeviceGatedNorm {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let x = ctx.device_input(0)?;
        let gate = ctx.device_input(1)?;
        let &GatedNorm { eps, cast, gate_first, axis, group, .. } = &self.rule;
        let y = ctx.device_output(0, x.rows())?;
        let continued = self.rule.continued(ctx, x.rows())?;
        let weight = ctx.device_vector("weight");
        let output_dtype = y.dtype;
        let activation = ctx.activation();
        let grids: Vec<u32> = continued
            .iter()
            .map(|continued| source::dtype(if *continued { activation } else { output_dtype }))
            .collect();
        let grids = queue.upload(bytemuck::cast_slice(&grids))?;
        let arguments = [
            (&*x.buffer).into(),
            x.dtype.into(),
            (&*gate.buffer).into(),
            gate.dtype.into(),
            weight.into(),
            index(ctx, axis)?.into(),
            index(ctx, x.width())?.into(),
            index(ctx, group)?.into(),
            eps.into(),
            (cast == NormCast::Before).into(),
            gate_first.into(),
            self.sigmoids.into(),
            (&grids).into(),
            (&*y.buffer).into(),
            y.dtype.into(),
        ];
        queue.launch("gated_norm", x.len() / group, &arguments)?;
        ctx.set_device(0, y)
    }
}
