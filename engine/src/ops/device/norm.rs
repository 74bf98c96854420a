//! `rms_norm`, `layer_norm`, `l2_norm` on a device.

use registry::dtype::Dtype;

use crate::Error;
use crate::device::DeviceBuffer;
use crate::ops::device::index;
use crate::ops::norm::{L2Norm, LayerNorm, NormCast, NormSizes, RmsNorm};
use crate::ops::{Args, Ctx, Kernel, Kernels};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("rms_norm", DeviceNorm::rms);
    kernels.prepared("layer_norm", DeviceNorm::layer);
    kernels.prepared("l2_norm", DeviceNorm::l2);
}

/// A normalisation of rows.
struct DeviceNorm {
    sizes: NormSizes,
    eps: f32,
    cast: NormCast,
    plus_one: bool,
    centred: bool,
}

impl DeviceNorm {
    fn rms(args: &Args<'_>) -> Result<Self, Error> {
        let RmsNorm { sizes, eps, cast, plus_one } = RmsNorm::prepare(args)?;
        Ok(Self { sizes, eps, cast, plus_one, centred: false })
    }

    fn layer(args: &Args<'_>) -> Result<Self, Error> {
        let LayerNorm { sizes, eps, cast, plus_one } = LayerNorm::prepare(args)?;
        Ok(Self { sizes, eps, cast, plus_one, centred: true })
    }

    fn l2(args: &Args<'_>) -> Result<Self, Error> {
        let L2Norm { sizes, eps } = L2Norm::prepare(args)?;
        Ok(Self { sizes, eps, cast: NormCast::After, plus_one: false, centred: false })
    }
}

impl Kernel for DeviceNorm {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let &Self { sizes: NormSizes { axis, parts }, eps, cast, plus_one, centred } = self;
        let queue = ctx.queue()?;
        let x = ctx.device_input(0)?;
        let y = ctx.device_output(0, x.rows())?;
        let (joined_weight, weight) = numbers_of_heads(ctx, "weight")?;
        let (joined_bias, bias) = numbers_of_heads(ctx, "bias")?;
        let weight = joined_weight.as_ref().or(weight);
        let bias = joined_bias.as_ref().or(bias);
        // Only `layer_norm` rounds the sum of one and a weight.
        let sum = if centred { ctx.activation() } else { Dtype::F32 };
        let arguments = [
            (&*x.buffer).into(),
            x.dtype.into(),
            weight.into(),
            index(ctx, parts[0])?.into(),
            bias.into(),
            index(ctx, parts[1])?.into(),
            index(ctx, axis)?.into(),
            eps.into(),
            centred.into(),
            (cast == NormCast::Before).into(),
            plus_one.into(),
            sum.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
        ];
        queue.launch("norm", x.len() / axis, &arguments)?;
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
