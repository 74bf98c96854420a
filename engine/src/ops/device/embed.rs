//! `embed` on a device.

use crate::Error;
use crate::device::count;
use crate::kernels::round::round1;
use crate::ops::device::index;
use crate::ops::embed::Embed;
use crate::ops::{Args, Ctx, Kernel, Kernels};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("embed", DeviceEmbed::prepare);
}

struct DeviceEmbed(Embed);

impl DeviceEmbed {
    fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Embed::prepare(args).map(Self)
    }
}

impl Kernel for DeviceEmbed {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let &Embed { scale, rounds, .. } = &self.0;
        let queue = ctx.queue()?;
        let weight = ctx.device_matrix("weight")?;
        let places = self.0.places(ctx)?;
        let tokens = queue.upload(bytemuck::cast_slice(&places))?;
        let y = ctx.device_output(0, places.len())?;
        let arguments = [
            (&weight.buffer).into(),
            weight.form.into(),
            weight.factor.into(),
            (&tokens).into(),
            index(ctx, self.0.width())?.into(),
            scale.map_or(1.0, |s: f32| if rounds { round1(ctx.activation(), s) } else { s }).into(),
            scale.is_some().into(),
            (&*y.buffer).into(),
            y.dtype.into(),
            count(y.len()),
        ];
        queue.launch_each("embed", y.len(), &arguments)?;
        ctx.set_device(0, y)
    }
}
