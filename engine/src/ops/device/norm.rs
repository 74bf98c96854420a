//! `rms_norm`, `layer_norm`, `l2_norm` on a device.

use registry::dtype::Dtype;

use crate::Error;
use crate::device::DeviceBuffer;
use crate::ops::device::{index, last_axis};
use crate::ops::norm::{L2Norm, LayerNorm, NormCast, RmsNorm};
use crate::ops::{Args, Ctx, Kernel, Kernels};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("rms_norm", DeviceNorm::rms);
    kernels.prepared("layer_norm", DeviceNorm::layer);
    kernels.prepared("l2_norm", DeviceNorm::l2);
}

/// A normalisation of rows.
struct DeviceNorm {
    eps: f32,
    cast: NormCast,
    plus_one: bool,
    centred: bool,
}

impl DeviceNorm {
    fn rms(args: &Args<'_>) -> Result<Self, Error> {
        let RmsNorm { eps, cast, plus_one } = RmsNorm::prepare(args)?;
        Ok(Self { eps, cast, plus_one, centred: false })
    }

    fn layer(args: &Args<'_>) -> Result<Self, Error> {
        let LayerNorm { eps, cast, plus_one } = LayerNorm::prepare(args)?;
        Ok(Self { eps, cast, plus_one, centred: true })
    }

    fn l2(args: &Args<'_>) -> Result<Self, Error> {
        let L2Norm { eps } = L2Norm::prepare(args)?;
        Ok(Self { eps, cast: NormCast::After, plus_one: false, centred: false })
    }
}

impl Kernel for DeviceNorm {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let &Self { eps, cast, plus_one, centred } = self;
        let queue = ctx.queue()?;
        let x = ctx.device_input(0)?;
        let y = ctx.device_output(0, x.rows())?;
        let axis = last_axis(&x);
        let width = x.width();
        let (joined_weight, weight) = numbers_of_heads(ctx, "weight")?;
        let (joined_bias, bias) = numbers_of_heads(ctx, "bias")?;
        let weight = joined_weight.as_ref().or(weight);
        let bias = joined_bias.as_ref().or(bias);
        let mut periods = [1, 1];
        for ((role, w), period) in
            [("weight", weight), ("bias", bias)].into_iter().zip(&mut periods)
        {
            let Some(numbers) = w.map(|w| w.bytes() / 4) else { continue };
            if numbers != axis && numbers != width {
                return Err(ctx.error(format!(
                    "its {role} has {numbers} numbers; the axis has {axis}, the row {width}"
                )));
            }
            *period = index(ctx, numbers / axis.max(1))?;
        }
        // Only `layer_norm` rounds the sum of one and a weight.
        let sum = if centred { ctx.activation() } else { Dtype::F32 };
        let arguments = [
            (&*x.buffer).into(),
            x.dtype.into(),
            weight.into(),
            periods[0].into(),
            bias.into(),
            periods[1].into(),
            index(ctx, axis)?.into(),
            eps.into(),
            centred.into(),
            (cast == NormCast::Before).into(),
            plus_one.into(),
            sum.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
        ];
        queue.launch("norm", x.len() / axis.max(1), &arguments)?;
        ctx.set_device(0, y)
    }
}

/// Returns the numbers of a weight: those of all heads joined in a new buffer, as `per_head` stores them, or those of
/// one weight for all heads.
fn numbers_of_heads<'a>(
    ctx: &Ctx<'a>,
    role: &str,
) -> Result<(Option<DeviceBuffer>, Option<&'a DeviceBuffer>), Error> {
    let heads: Vec<&DeviceBuffer> =
        (0..).map_while(|h| ctx.device_vector(&format!("{role}.{h}"))).collect();
    if heads.is_empty() {
        return Ok((None, ctx.device_vector(role)));
    }
    let parts: Result<Vec<Vec<u8>>, Error> =
        heads.iter().map(|head| head.read(0, head.bytes())).collect();
    Ok((Some(ctx.queue()?.upload(&parts?.concat())?), None))
}
