//! Ops that routers are made of, on a device: `softmax`, `total`, `p_norm`, `choose`, `choose_by_token`, `pick`,
//! `near_shares`.

use registry::ops::INTEGERS;

use crate::Error;
use crate::device::source::constant;
use crate::device::{KernelArgument, count};
use crate::kernels::choose::TopK;
use crate::kernels::round::round1;
use crate::ops::device::index;
use crate::ops::device::rows::along_last_axis;
use crate::ops::route::{Choose, ChooseByToken, NearShares, PNorm, PickChosen, Total};
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::value::DeviceValue;

/// The most groups of scores.
const GROUPS: usize = constant(include_str!("../../device/kernels/route.cu"), "GROUPS") as usize;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.add("softmax", softmax);
    kernels.prepared("total", |args: &Args<'_>| Total::prepare(args).map(DeviceTotal));
    kernels.prepared("p_norm", |args: &Args<'_>| PNorm::prepare(args).map(DevicePNorm));
    kernels.prepared("choose", DeviceChoose::prepare);
    kernels.prepared("choose_by_token", |args: &Args<'_>| {
        ChooseByToken::prepare(args).map(DeviceChooseByToken)
    });
    kernels.prepared("pick", |args: &Args<'_>| PickChosen::prepare(args).map(|_| DevicePick));
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
        let size = self.0.size;
        let y = ctx.device_output(0, x.rows())?;
        let lines = x.len() / size;
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
        let y = ctx.device_output(0, x.rows())?;
        let size = self.0.size;
        let lines = x.len() / size;
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
    width: usize,
    /// Groups of scores, and the scores of a group.
    groups: (usize, usize),
}

impl DeviceChoose {
    fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let Choose { choice, width } = Choose::prepare(args)?;
        let size = choice.groups.map_or(1, |groups| (width / groups.count.max(1)).max(1));
        let count = choice.groups.map_or(0, |_| width / size);
        if count > GROUPS {
            return Err(args
                .error(format!("groups of scores beyond {GROUPS} have no kernel on the device")));
        }
        Ok(Self { choice, width, groups: (count, size) })
    }
}

impl Kernel for DeviceChoose {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let y = ctx.device_output(0, x.rows())?;
        let TopK { k, groups } = self.choice;
        let (count, size) = self.groups;
        let arguments = [
            (&*x.buffer).into(),
            x.dtype.into(),
            index(ctx, self.width)?.into(),
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

struct DeviceChooseByToken(ChooseByToken);

impl Kernel for DeviceChooseByToken {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let &ChooseByToken { k, of, .. } = &self.0;
        let tokens = self.0.known_tokens(ctx)?;
        let y = ctx.device_output(0, tokens.len())?;
        let queue = ctx.queue()?;
        let tokens = queue.upload(bytemuck::cast_slice(tokens))?;
        let arguments = [
            ctx.device_vector(INTEGERS).into(),
            (&tokens).into(),
            index(ctx, k)?.into(),
            index(ctx, of)?.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
            count(y.len()),
        ];
        queue.launch_each("choose_by_token", y.len(), &arguments)?;
        ctx.set_device(0, y)
    }
}

/// Makes a number for each choice of a row.
fn of_choices(ctx: &mut Ctx<'_>, kernel: &str, margin: Option<f32>) -> Result<(), Error> {
    let x = ctx.device_input(0)?;
    let chosen = ctx.device_input(1)?;
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

struct DevicePick;

impl Kernel for DevicePick {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        of_choices(ctx, "pick", None)
    }
}

struct DeviceNearShares(NearShares);

impl Kernel for DeviceNearShares {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        of_choices(ctx, "near_shares", Some(self.0.margin))
    }
}
