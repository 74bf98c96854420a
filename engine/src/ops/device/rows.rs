//! Arithmetic of rows on a device: positions, streams, and learned functions of one value.

use crate::Error;
use crate::device::{DeviceBuffer, KernelArgument, count};
use crate::kernels::round::round1;
use crate::ops::device::{index, last_axis};
use crate::ops::differ::Differ;
use crate::ops::gaussian_topk::GaussianTopk;
use crate::ops::heads_linear::HeadsLinear;
use crate::ops::position::{PositionEmbed, Sinusoid, Temperature, positions};
use crate::ops::streams::Mean;
use crate::ops::xielu::{self, XieluParams};
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::value::{DeviceValue, stored_bytes};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("position_embed", |args: &Args<'_>| {
        PositionEmbed::prepare(args).map(DevicePositionEmbed)
    });
    kernels.prepared("sinusoid", |args: &Args<'_>| Sinusoid::prepare(args).map(DeviceSinusoid));
    kernels.prepared("temperature", |args: &Args<'_>| {
        Temperature::prepare(args).map(DeviceTemperature)
    });
    kernels.add("zero_first", zero_first);
    kernels.prepared("mean", |args: &Args<'_>| Mean::prepare(args).map(DeviceMean));
    kernels.add("mix_streams", mix_streams);
    kernels.add("outer", outer);
    kernels.prepared("heads_linear", |args: &Args<'_>| {
        HeadsLinear::prepare(args).map(DeviceHeadsLinear)
    });
    kernels.prepared("gaussian_topk", |args: &Args<'_>| {
        GaussianTopk::prepare(args).map(DeviceGaussianTopk)
    });
    kernels.add("xielu", xielu);
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

/// Returns an error unless a value has rows of `width` numbers.
fn expect_width(ctx: &Ctx<'_>, value: &DeviceValue, width: usize) -> Result<(), Error> {
    if value.width() == width {
        return Ok(());
    }
    Err(ctx.error(format!("rows of {} numbers, not of {width}", value.width())))
}

struct DevicePositionEmbed(PositionEmbed);

impl Kernel for DevicePositionEmbed {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let weight = ctx.device_matrix("weight")?;
        let width = ctx.output_width(0)?;
        if weight.inputs != width {
            return Err(ctx.error(format!("its weight has rows of {}, not {width}", weight.inputs)));
        }
        let mut places = Vec::new();
        for position in positions(ctx) {
            let at = position.saturating_add(self.0.offset);
            if at >= weight.outputs {
                return Err(ctx.error(format!(
                    "position {position} is past the last that the model has learned"
                )));
            }
            places.push(index(ctx, at)?);
        }
        let rows = queue.upload(bytemuck::cast_slice(&places))?;
        let y = ctx.device_output(0, places.len())?;
        let arguments = [
            (&weight.buffer).into(),
            weight.form.into(),
            weight.factor.into(),
            (&rows).into(),
            index(ctx, width)?.into(),
            1.0.into(),
            false.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
            count(y.len()),
        ];
        queue.launch_each("embed", y.len(), &arguments)?;
        ctx.set_device(0, y)
    }
}

struct DeviceSinusoid(Sinusoid);

impl Kernel for DeviceSinusoid {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let rows = self.0.rows(ctx)?;
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
        expect_width(ctx, &y, x.width())?;
        let more = [(&factors).into(), index(ctx, x.width())?.into()];
        each(ctx, "scale_rows", &x, &more, y)
    }
}

/// Sets the first row of each sequence to 0.
fn zero_first(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.device_input(0)?;
    if ctx.chunks().iter().map(|chunk| chunk.rows.end).max() != Some(x.rows()) {
        return Err(ctx.error("it stands where rows of the step are left out"));
    }
    let mut flags = vec![0_u32; x.rows()];
    for chunk in ctx.chunks().iter().filter(|chunk| chunk.start == 0) {
        flags[chunk.rows.start] = 1;
    }
    let flags = ctx.queue()?.upload(bytemuck::cast_slice(&flags))?;
    let y = ctx.device_output(0, x.rows())?;
    expect_width(ctx, &y, x.width())?;
    let more = [(&flags).into(), index(ctx, x.width())?.into()];
    each(ctx, "zero_rows", &x, &more, y)
}

struct DeviceMean(Mean);

impl Kernel for DeviceMean {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let y = ctx.device_output(0, x.rows())?;
        let (true, &[_, .., heads, size]) = (self.0.over_heads, x.shape.as_slice()) else {
            expect_width(ctx, &y, x.width() / last_axis(&x).max(1))?;
            return along_last_axis(ctx, "mean", y);
        };
        expect_width(ctx, &y, x.width() / heads.max(1))?;
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

fn mix_streams(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.device_input(0)?;
    let c = ctx.device_input(1)?;
    let (&[_, from, width], &[_, to, inner]) = (x.shape.as_slice(), c.shape.as_slice()) else {
        return Err(ctx.error("it takes streams and a matrix per row"));
    };
    if inner != from || x.rows() != c.rows() {
        return Err(ctx.error(format!("a matrix of {to} by {inner} does not mix {from} streams")));
    }
    let y = ctx.device_output(0, x.rows())?;
    expect_width(ctx, &y, to * width)?;
    let more = [
        (&*c.buffer).into(),
        c.dtype.into(),
        index(ctx, from)?.into(),
        index(ctx, to)?.into(),
        index(ctx, width)?.into(),
    ];
    each(ctx, "mix_streams", &x, &more, y)
}

fn outer(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.device_input(0)?;
    let c = ctx.device_input(1)?;
    if x.rows() != c.rows() {
        return Err(ctx.error("its inputs have as many rows"));
    }
    let y = ctx.device_output(0, x.rows())?;
    expect_width(ctx, &y, c.width() * x.width())?;
    let more = [
        (&*c.buffer).into(),
        c.dtype.into(),
        index(ctx, c.width())?.into(),
        index(ctx, x.width())?.into(),
    ];
    each(ctx, "outer", &x, &more, y)
}

struct DeviceHeadsLinear(HeadsLinear);

impl Kernel for DeviceHeadsLinear {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let (&[_, heads, size], &[_, out]) = (x.shape.as_slice(), ctx.output_shape(0)?) else {
            return Err(ctx.error("it works on heads"));
        };
        let weight = ctx.device_vector("weight");
        let bias = ctx.device_vector("bias");
        let y = ctx.device_output(0, x.rows())?;
        let numbers = weight.map_or(0, DeviceBuffer::bytes) / 4;
        if size == 0
            || numbers != self.0.matrices(heads) * out * size
            || bias.is_some_and(|b| b.bytes() != 4 * heads * out)
            || y.width() != heads * out
        {
            return Err(ctx.error(format!(
                "a weight of {numbers} numbers does not take {heads} heads of {size} to {out}"
            )));
        }
        let more = [
            weight.into(),
            bias.into(),
            index(ctx, heads)?.into(),
            index(ctx, size)?.into(),
            index(ctx, out)?.into(),
            self.0.turned.into(),
            self.0.shared.into(),
        ];
        each(ctx, "heads_linear", &x, &more, y)
    }
}

struct DeviceGaussianTopk(GaussianTopk);

impl Kernel for DeviceGaussianTopk {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let y = ctx.device_output(0, x.rows())?;
        expect_width(ctx, &y, x.width())?;
        let arguments = [
            (&*x.buffer).into(),
            x.dtype.into(),
            index(ctx, x.width())?.into(),
            round1(y.dtype, self.0.z).into(),
            (&*y.buffer).into(),
            y.dtype.into(),
        ];
        ctx.queue()?.launch("gaussian_topk", x.rows(), &arguments)?;
        ctx.set_device(0, y)
    }
}

fn xielu(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.device_input(0)?;
    let XieluParams { positive, negative, beta, eps } = xielu::params(ctx)?;
    let y = ctx.device_output(0, x.rows())?;
    expect_width(ctx, &y, x.width())?;
    let more = [positive, negative, beta, eps].map(KernelArgument::from);
    each(ctx, "xielu", &x, &more, y)
}

struct DeviceDiffer(Differ);

impl Kernel for DeviceDiffer {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let share = self.0.share(ctx)?;
        let y = ctx.device_output(0, x.rows())?;
        expect_width(ctx, &x, 2 * y.width())?;
        let more = [share.into(), index(ctx, y.width())?.into()];
        each(ctx, "differ", &x, &more, y)
    }
}
