//! `embed` on a device.

use crate::Error;
use crate::device::{DeviceBuffer, count};
use crate::kernels::round::round1;
use crate::ops::device::index;
use crate::ops::embed::Embed;
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::value::DeviceValue;

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
        let activation = ctx.activation();
        let scale = scale.map(|scale: f32| if rounds { round1(activation, scale) } else { scale });
        let places = self.0.places(ctx)?;
        let rows = ctx.queue()?.upload(bytemuck::cast_slice(&places))?;
        let y = ctx.device_output(0, places.len())?;
        look_up(ctx, &rows, scale, y)
    }
}

/// Fills the output with rows of the weight, times a factor if there is one.
pub(super) fn look_up(
    ctx: &mut Ctx<'_>,
    rows: &DeviceBuffer,
    scale: Option<f32>,
    y: DeviceValue,
) -> Result<(), Error> {
    let weight = ctx.device_matrix("weight")?;
    let arguments = [
        (&weight.buffer).into(),
        weight.form.into(),
        weight.factor.into(),
        rows.into(),
        index(ctx, weight.inputs)?.into(),
        scale.unwrap_or(1.0).into(),
        scale.is_some().into(),
        (&*y.buffer).into(),
        y.dtype.into(),
        count(y.len()),
    ];
    ctx.queue()?.launch_each("embed", y.len(), &arguments)?;
    ctx.set_device(0, y)
}
