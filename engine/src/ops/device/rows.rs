//! Arithmetic of rows on a device: positions, streams, and learned functions of one value.

use crate::Error;
use crate::device::source::constant;
use crate::device::{KernelArgument, count};
use crate::ops::device::embed::look_up;
use crate::ops::device::{index, last_axis};
use crate::ops::differ::Differ;
use crate::ops::heads_linear::HeadsLinear;
use crate::ops::position::{PositionEmbed, Sinusoid, Temperature, ZeroFirst};
use crate::ops::streams::{Mean, MixStreams, Outer, Sinkhorn};
use crate::ops::xielu::{Xielu, XieluParams};
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::value::{DeviceValue, stored_bytes};

/// The most rows of a matrix that `sinkhorn` normalizes.
const SIDE: usize = constant(include_str!("../../device/kernels/rows.cu"), "SIDE") as usize;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("position_embed", |args: &Args<'_>| {
        PositionEmbed::prepare(args).map(DevicePositionEmbed)
    });
    kernels.prepared("sinusoid", |args: &Args<'_>| Sinusoid::prepare(args).map(DeviceSinusoid));
    kernels.prepared("temperature", |args: &Args<'_>| {
        Temperature::prepare(args).map(DeviceTemperature)
    });
    kernels.prepared("zero_first", |args: &Args<'_>| ZeroFirst::prepare(args).map(DeviceZeroFirst));
    kernels.prepared("mean", |args: &Args<'_>| Mean::prepare(args).map(DeviceMean));
    kernels.prepared("mix_streams", |args: &Args<'_>| MixStreams::prepare(args).map(DeviceMix));
    kernels.prepared("outer", |args: &Args<'_>| Outer::prepare(args).map(DeviceOuter));
    kernels.prepared("sinkhorn", DeviceSinkhorn::prepare);
    kernels.prepared("heads_linear", |args: &Args<'_>| {
        HeadsLinear::prepare(args).map(DeviceHeadsLinear)
    });
    kernels.prepared("xielu", |args: &Args<'_>| Xielu::prepare(args).map(|_| DeviceXielu));
    kernels.prepared("differ", |args: &Args<'_>| Differ::prepare(args).map(DeviceDiffer));
}

/// Runs a kernel that begins with a value and ends with the output, and has a thread for each number of it.
fn each(
    ctx: &mut Ctx<'_>,
    kernel: &str,
    x: &DeviceValue,
    more: &[KernelArgument],
    y: DeviceValue,
) -> Result<(), Error> {
    let mut arguments: Vec<KernelArgument> = vec![(&*x.buffer).into(), x.dtype.into()];
    arguments.extend(more);
    arguments.extend::<[KernelArgument; 3]>([(&*y.buffer).into(), y.dtype.into(), count(y.len())]);
    ctx.queue()?.launch_each(kernel, y.len(), &arguments)?;
    ctx.set_device(0, y)
}

struct DevicePositionEmbed(PositionEmbed);

impl Kernel for DevicePositionEmbed {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let places = self.0.places(ctx)?.into_iter().map(|place| index(ctx, place));
        let places: Vec<u32> = places.collect::<Result<_, _>>()?;
        let rows = ctx.queue()?.upload(bytemuck::cast_slice(&places))?;
        let y = ctx.device_output(0, places.len())?;
        look_up(ctx, &rows, None, y)
    }
}

struct DeviceSinusoid(Sinusoid);

impl Kernel for DeviceSinusoid {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let rows = self.0.rows(ctx);
        let y = ctx.device_output(0, rows.len() / ctx.output_width(0)?.max(1))?;
        y.buffer.write(0, &stored_bytes(y.dtype, &rows))?;
        ctx.set_device(0, y)
    }
}

struct DeviceTemperature(Temperature);

impl Kernel for DeviceTemperature {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let factors = self.0.factors(ctx, x.rows())?;
        let factors = ctx.queue()?.upload(bytemuck::cast_slice(&factors))?;
        let y = ctx.device_output(0, x.rows())?;
        let more = [(&factors).into(), index(ctx, x.width())?.into()];
        each(ctx, "scale_rows", &x, &more, y)
    }
}

struct DeviceZeroFirst(ZeroFirst);

impl Kernel for DeviceZeroFirst {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let mut flags = vec![0_u32; x.rows()];
        for row in ZeroFirst::first_rows(ctx, x.rows())? {
            flags[row] = 1;
        }
        let flags = ctx.queue()?.upload(bytemuck::cast_slice(&flags))?;
        let y = ctx.device_output(0, x.rows())?;
        let more = [(&flags).into(), index(ctx, self.0.width)?.into()];
        each(ctx, "zero_rows", &x, &more, y)
    }
}

struct DeviceMean(Mean);

impl Kernel for DeviceMean {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let y = ctx.device_output(0, x.rows())?;
        let Mean::Heads(heads, size) = self.0 else { return along_last_axis(ctx, "mean", y) };
        let more = [index(ctx, heads)?.into(), index(ctx, size)?.into()];
        each(ctx, "mean_of_heads", &x, &more, y)
    }
}

/// Launches a block for each vector of the last axis.
pub(super) fn along_last_axis(
    ctx: &mut Ctx<'_>,
    kernel: &str,
    y: DeviceValue,
) -> Result<(), Error> {
    let x = ctx.device_input(0)?;
    let axis = last_axis(&x);
    let arguments = [
        (&*x.buffer).into(),
        x.dtype.into(),
        index(ctx, axis)?.into(),
        (&*y.buffer).into(),
        y.dtype.into(),
    ];
    ctx.queue()?.launch(kernel, x.len() / axis.max(1), &arguments)?;
    ctx.set_device(0, y)
}

struct DeviceMix(MixStreams);

impl Kernel for DeviceMix {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let &MixStreams { from, to, width } = &self.0;
        let x = ctx.device_input(0)?;
        let c = ctx.device_input(1)?;
        let y = ctx.device_output(0, x.rows())?;
        let more = [
            (&*c.buffer).into(),
            c.dtype.into(),
            index(ctx, from)?.into(),
            index(ctx, to)?.into(),
            index(ctx, width)?.into(),
        ];
        each(ctx, "mix_streams", &x, &more, y)
    }
}

struct DeviceOuter(Outer);

impl Kernel for DeviceOuter {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let &Outer { streams, width } = &self.0;
        let x = ctx.device_input(0)?;
        let c = ctx.device_input(1)?;
        let y = ctx.device_output(0, x.rows())?;
        let more = [
            (&*c.buffer).into(),
            c.dtype.into(),
            index(ctx, streams)?.into(),
            index(ctx, width)?.into(),
        ];
        each(ctx, "outer", &x, &more, y)
    }
}

struct DeviceSinkhorn(Sinkhorn);

impl DeviceSinkhorn {
    fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let sinkhorn = Sinkhorn::prepare(args)?;
        if sinkhorn.size > SIDE {
            return Err(
                args.error(format!("matrices beyond {SIDE} rows have no kernel on the device"))
            );
        }
        Ok(Self(sinkhorn))
    }
}

impl Kernel for DeviceSinkhorn {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let &Sinkhorn { size, iterations, eps } = &self.0;
        let x = ctx.device_input(0)?;
        let y = ctx.device_output(0, x.rows())?;
        let arguments = [
            (&*x.buffer).into(),
            x.dtype.into(),
            index(ctx, size)?.into(),
            index(ctx, iterations)?.into(),
            eps.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
        ];
        ctx.queue()?.launch("sinkhorn", x.rows(), &arguments)?;
        ctx.set_device(0, y)
    }
}

struct DeviceHeadsLinear(HeadsLinear);

impl Kernel for DeviceHeadsLinear {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let &HeadsLinear { heads, size, out, turned, shared } = &self.0;
        let x = ctx.device_input(0)?;
        let y = ctx.device_output(0, x.rows())?;
        let more = [
            ctx.device_vector("weight").into(),
            ctx.device_vector("bias").into(),
            index(ctx, heads)?.into(),
            index(ctx, size)?.into(),
            index(ctx, out)?.into(),
            turned.into(),
            shared.into(),
        ];
        each(ctx, "heads_linear", &x, &more, y)
    }
}

struct DeviceXielu;

impl Kernel for DeviceXielu {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let XieluParams { positive, negative, beta, eps } = Xielu::params(ctx)?;
        let y = ctx.device_output(0, x.rows())?;
        let more = [positive, negative, beta, eps].map(KernelArgument::from);
        each(ctx, "xielu", &x, &more, y)
    }
}

struct DeviceDiffer(Differ);

impl Kernel for DeviceDiffer {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let share = self.0.share(ctx)?;
        let y = ctx.device_output(0, x.rows())?;
        let more = [share.into(), index(ctx, self.0.half)?.into()];
        each(ctx, "differ", &x, &more, y)
    }
}
