//! `heads`, `merge`, `split`, `concat`, `slice`, `copies`, `regroup` on a device.

use crate::Error;
use crate::device::count;
use crate::ops::device::index;
use crate::ops::shape::{Regroup, Slice, last, reshape};
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::value::DeviceValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.add("heads", reshape);
    kernels.add("merge", reshape);
    kernels.add("split", split);
    kernels.add("concat", concat);
    kernels.prepared("slice", |args: &Args<'_>| Slice::prepare(args).map(DeviceSlice));
    kernels.add("copies", copies);
    kernels.prepared("regroup", |args: &Args<'_>| Regroup::prepare(args).map(DeviceRegroup));
}

/// Copies `width` columns of every line from column `from` of `x` to column `to` of `y`.
fn columns(
    ctx: &Ctx<'_>,
    (x, from): (&DeviceValue, usize),
    (y, to): (&DeviceValue, usize),
    width: usize,
) -> Result<(), Error> {
    let x_axis = last(&x.shape);
    let y_axis = last(&y.shape);
    let lines = x.len().checked_div(x_axis).unwrap_or(0);
    if from + width > x_axis || to + width > y_axis || lines * y_axis != y.len() {
        return Err(ctx.error(format!("columns {from}..{} of {x_axis}", from + width)));
    }
    let total = lines * width;
    let arguments = [
        (&*x.buffer).into(),
        x.dtype.into(),
        index(ctx, x_axis)?.into(),
        index(ctx, from)?.into(),
        (&*y.buffer).into(),
        y.dtype.into(),
        index(ctx, y_axis)?.into(),
        index(ctx, to)?.into(),
        index(ctx, width)?.into(),
        count(total),
    ];
    ctx.queue()?.launch_each("columns", total, &arguments)
}

fn split(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.device_input(0)?;
    let mut from = 0;
    for n in 0..ctx.node().outputs.len() {
        let y = ctx.device_output(n, x.rows())?;
        let width = last(&y.shape);
        columns(ctx, (&x, from), (&y, 0), width)?;
        ctx.set_device(n, y)?;
        from += width;
    }
    Ok(())
}

struct DeviceSlice(Slice);

impl Kernel for DeviceSlice {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let y = ctx.device_output(0, x.rows())?;
        columns(ctx, (&x, self.0.from), (&y, 0), last(&y.shape))?;
        ctx.set_device(0, y)
    }
}

struct DeviceRegroup(Regroup);

impl Kernel for DeviceRegroup {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let size = self.0.size(&x.shape).map_err(|why| ctx.error(why))?;
        let y = ctx.device_output(0, x.rows())?;
        if y.shape != x.shape {
            return Err(ctx.error(format!("{:?} are no {:?}", x.shape, y.shape)));
        }
        let arguments = [
            (&*x.buffer).into(),
            x.dtype.into(),
            index(ctx, self.0.groups)?.into(),
            index(ctx, size)?.into(),
            index(ctx, last(&x.shape))?.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
            count(y.len()),
        ];
        ctx.queue()?.launch_each("regroup", y.len(), &arguments)?;
        ctx.set_device(0, y)
    }
}

/// Repeats each row along a new first axis.
fn copies(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.device_input(0)?;
    let n = ctx.output_shape(0)?.first().copied().unwrap_or(1);
    let y = ctx.device_output(0, x.rows())?;
    let width = x.width();
    if y.width() != n * width {
        return Err(ctx.error(format!("{n} copies of {:?} are no {:?}", x.shape, y.shape)));
    }
    let row = DeviceValue { shape: vec![x.rows(), width], ..x };
    let copies = DeviceValue { shape: vec![y.rows(), n * width], ..y.clone() };
    for copy in 0..n {
        columns(ctx, (&row, 0), (&copies, copy * width), width)?;
    }
    ctx.set_device(0, y)
}

fn concat(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let inputs = (0..ctx.node().inputs.len()).map(|n| ctx.device_input(n));
    let inputs: Vec<DeviceValue> = inputs.collect::<Result<_, _>>()?;
    let y = ctx.device_output(0, inputs.first().map_or(0, DeviceValue::rows))?;
    if inputs.iter().map(|x| last(&x.shape)).sum::<usize>() != last(&y.shape) {
        return Err(ctx.error("its inputs do not make up the output"));
    }
    let mut to = 0;
    for x in &inputs {
        columns(ctx, (x, 0), (&y, to), last(&x.shape))?;
        to += last(&x.shape);
    }
    ctx.set_device(0, y)
}
