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
        let heads = self.0.heads(&x.shape).map_err(|why| ctx.error(why))?;
        let lines = (0..x.rows()).flat_map(|row| heads.iter().map(move |head| (row, head)));
        let lines: Vec<u32> = lines.map(|(row, head)| (row * heads.len() + head) as u32).collect();
        let width = last(&x.shape);
        chosen_lines(ctx, &x, &lines, width)
    }
}

/// Repeats each row along a new first axis.
fn copies(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.device_input(0)?;
    let n = ctx.output_shape(0)?.first().copied().unwrap_or(1);
    let lines: Vec<u32> =
        (0..x.rows()).flat_map(|row| std::iter::repeat_n(row as u32, n)).collect();
    let width = x.width();
    chosen_lines(ctx, &x, &lines, width)
}

/// Makes the output of the given lines of a value, each of `width` numbers.
fn chosen_lines(
    ctx: &mut Ctx<'_>,
    x: &DeviceValue,
    lines: &[u32],
    width: usize,
) -> Result<(), Error> {
    let queue = ctx.queue()?;
    let y = ctx.device_output(0, x.rows())?;
    if lines.len() * width != y.len() {
        return Err(ctx.error(format!("{} lines of {width} are no {:?}", lines.len(), y.shape)));
    }
    let lines = queue.upload(bytemuck::cast_slice(lines))?;
    let arguments = [
        (&*x.buffer).into(),
        x.dtype.into(),
        (&lines).into(),
        index(ctx, width)?.into(),
        (&*y.buffer).into(),
        y.dtype.into(),
        count(y.len()),
    ];
    queue.launch_each("chosen_rows", y.len(), &arguments)?;
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
