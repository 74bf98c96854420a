//! `heads`, `merge`, `split`, `concat`, `slice`, `copies`, `regroup` on a device.

use crate::Error;
use crate::device::count;
use crate::ops::device::index;
use crate::ops::shape::{AxisSplit, Concat, Copies, Regroup, Slice, last, reshape};
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::value::DeviceValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.add("heads", reshape);
    kernels.add("merge", reshape);
    kernels.prepared("split", |args: &Args<'_>| AxisSplit::prepare(args).map(DeviceSplit));
    kernels.prepared("concat", |args: &Args<'_>| Concat::prepare(args).map(DeviceConcat));
    kernels.prepared("slice", |args: &Args<'_>| Slice::prepare(args).map(DeviceSlice));
    kernels.prepared("copies", |args: &Args<'_>| Copies::prepare(args).map(DeviceCopies));
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

struct DeviceSplit(AxisSplit);

impl Kernel for DeviceSplit {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        for (n, &(from, width)) in self.0.columns.iter().enumerate() {
            let y = ctx.device_output(n, x.rows())?;
            columns(ctx, (&x, from), (&y, 0), width)?;
            ctx.set_device(n, y)?;
        }
        Ok(())
    }
}

struct DeviceSlice(Slice);

impl Kernel for DeviceSlice {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let y = ctx.device_output(0, x.rows())?;
        columns(ctx, (&x, self.0.from), (&y, 0), self.0.width)?;
        ctx.set_device(0, y)
    }
}

struct DeviceRegroup(Regroup);

impl Kernel for DeviceRegroup {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let y = ctx.device_output(0, x.rows())?;
        let arguments = [
            (&*x.buffer).into(),
            x.dtype.into(),
            index(ctx, self.0.groups)?.into(),
            index(ctx, self.0.size)?.into(),
            index(ctx, self.0.dim)?.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
            count(y.len()),
        ];
        ctx.queue()?.launch_each("regroup", y.len(), &arguments)?;
        ctx.set_device(0, y)
    }
}

struct DeviceCopies(Copies);

impl Kernel for DeviceCopies {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.device_input(0)?;
        let y = ctx.device_output(0, x.rows())?;
        let width = x.width();
        let row = DeviceValue { shape: vec![x.rows(), width], ..x };
        let copies = DeviceValue { shape: vec![y.rows(), self.0.count * width], ..y.clone() };
        for copy in 0..self.0.count {
            columns(ctx, (&row, 0), (&copies, copy * width), width)?;
        }
        ctx.set_device(0, y)
    }
}

struct DeviceConcat(Concat);

impl Kernel for DeviceConcat {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let rows = ctx.device_input(0)?.rows();
        let y = ctx.device_output(0, rows)?;
        let mut to = 0;
        for (n, &width) in self.0.widths.iter().enumerate() {
            columns(ctx, (&ctx.device_input(n)?, 0), (&y, to), width)?;
            to += width;
        }
        ctx.set_device(0, y)
    }
}
