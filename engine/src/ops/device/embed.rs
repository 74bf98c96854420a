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
        let &Embed { scale, rounds, first } = &self.0;
        let queue = ctx.queue()?;
        let weight = ctx.device_matrix("weight")?;
        let width = ctx.output_width(0)?;
        if weight.inputs != width {
            return Err(ctx.error(format!("its weight has rows of {}, not {width}", weight.inputs)));
        }
        let mut places = Vec::with_capacity(ctx.tokens().len());
        for &token in ctx.tokens() {
            let at = if first && token as usize >= weight.outputs { 0 } else { token };
            if at as usize >= weight.outputs {
                return Err(ctx.error(format!("token {token} is not below {}", weight.outputs)));
            }
            places.push(at);
        }
        let tokens = queue.upload(bytemuck::cast_slice(&places))?;
        let y = ctx.device_output(0, places.len())?;
        let arguments = [
            (&weight.buffer).into(),
            weight.form.into(),
            weight.factor.into(),
            (&tokens).into(),
            index(ctx, width)?.into(),
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
