//! Ops that routers are made of, on a device: `softmax`, `total`, `p_norm`, `choose`, `pick`, `near_shares`.

use crate::Error;
use crate::device::{KernelArgument, count};
use crate::kernels::choose::TopK;
use crate::kernels::round::round1;
use crate::ops::device::rows::along_last_axis;
use crate::ops::device::{index, last_axis};
use crate::ops::route::{Choose, NearShares, PNorm, Total};
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::value::DeviceValue;

/// The most groups of scores: `GROUPS` of `route.cu`.
const GROUPS: usize = 256;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.add("softmax", softmax);
    kernels.prepared("total", |args: &Args<'_>| Total::prepare(args).map(DeviceTotal));
    kernels.prepared("p_norm", |args: &Args<'_>| PNorm::prepare(args).map(DevicePNorm));
    kernels.prepared("choose", DeviceChoose::prepare);
    kernels.add("pick", pick);
    kernels
        .prepared("near_shares", |args: &Args<'_>| NearShares::prepare(args).map(DeviceNearShares));
}

fn softmax(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let y = ctx.device_output(0, ctx.device_input(0)?.rows())?;
    along_last_axis(ctx, "softmax", y)
}

struct DeviceTotal(Total);

impl Kernel for DeviceTotal {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let size = if self.0.of_heads { last_axis(&x) } else { x.width() };
        let y = ctx.device_output(0, x.rows())?;
        let lines = x.len() / size.max(1);
        if y.len() != lines {
            return Err(ctx.error(format!("{lines} sums are no {:?}", y.shape)));
        }
        let arguments = [
            (&*x.buffer).into(),
            x.dtype.into(),
            index(ctx, size)?.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
            count(lines),
        ];
        ctx.queue()?.launch_each("total", lines, &arguments)?;
        ctx.set_device(0, y)
    }
}

struct DevicePNorm(PNorm);

impl Kernel for DevicePNorm {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let size = if self.0.of_heads { last_axis(&x) } else { x.width() };
        let y = ctx.device_output(0, x.rows())?;
        let lines = x.len() / size.max(1);
        if y.len() != lines {
            return Err(ctx.error(format!("{lines} norms are no {:?}", y.shape)));
        }
        let arguments = [
            (&*x.buffer).into(),
            x.dtype.into(),
            index(ctx, size)?.into(),
            self.0.p.into(),
            self.0.least(y.dtype).into(),
            (&*y.buffer).into(),
            y.dtype.into(),
            count(lines),
        ];
        ctx.queue()?.launch_each("p_norm", lines, &arguments)?;
        ctx.set_device(0, y)
    }
}

struct DeviceChoose {
    choice: TopK,
}

impl DeviceChoose {
    fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let Choose { choice } = Choose::prepare(args)?;
        if choice.groups.is_some_and(|groups| groups.count > GROUPS) {
            return Err(args
                .error(format!("groups of scores beyond {GROUPS} have no kernel on the device")));
        }
        Ok(Self { choice })
    }
}

impl Kernel for DeviceChoose {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let y = ctx.device_output(0, x.rows())?;
        let width = x.width();
        let TopK { k, groups } = self.choice;
        if k > width {
            return Err(ctx.error(format!("{k} cannot be chosen among {width}")));
        }
        let size = groups.map_or(1, |groups| (width / groups.count.max(1)).max(1));
        let count = groups.map_or(0, |_| width / size);
        if count > GROUPS {
            return Err(ctx.error(format!("{count} groups are more than {GROUPS}")));
        }
        let arguments = [
            (&*x.buffer).into(),
            x.dtype.into(),
            index(ctx, width)?.into(),
            index(ctx, k)?.into(),
            index(ctx, count)?.into(),
            index(ctx, size)?.into(),
            index(ctx, groups.map_or(0, |groups| groups.keep.min(count)))?.into(),
            index(ctx, groups.map_or(0, |groups| groups.best))?.into(),
            groups.is_some_and(|groups| groups.zero).into(),
            (&*y.buffer).into(),
            y.dtype.into(),
        ];
        ctx.queue()?.launch("choose", x.rows(), &arguments)?;
        ctx.set_device(0, y)
    }
}

/// Makes a number for each choice of a row.
fn of_choices(ctx: &mut Ctx<'_>, kernel: &str, margin: Option<f32>) -> Result<(), Error> {
    let x = ctx.device_input(0)?;
    let chosen = ctx.device_input(1)?;
    if x.rows() != chosen.rows() {
        return Err(ctx.error(format!("{} rows, {} choices", x.rows(), chosen.rows())));
    }
    let y: DeviceValue = ctx.device_output(0, x.rows())?;
    let mut arguments: Vec<KernelArgument> = vec![
        (&*x.buffer).into(),
        x.dtype.into(),
        index(ctx, x.width())?.into(),
        (&*chosen.buffer).into(),
        chosen.dtype.into(),
        index(ctx, chosen.width())?.into(),
    ];
    // The reference compares in the dtype of the scores.
    arguments.extend(margin.map(|margin| KernelArgument::from(round1(y.dtype, margin))));
    arguments.extend::<[KernelArgument; 3]>([
        (&*y.buffer).into(),
        y.dtype.into(),
        count(chosen.len()),
    ]);
    ctx.queue()?.launch_each(kernel, chosen.len(), &arguments)?;
    ctx.set_device(0, y)
}

fn pick(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    of_choices(ctx, "pick", None)
}

struct DeviceNearShares(NearShares);

impl Kernel for DeviceNearShares {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        of_choices(ctx, "near_shares", Some(self.0.margin))
    }
}
