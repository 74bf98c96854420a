//! Arithmetic number by number on a device.

use crate::Error;
use crate::device::{DeviceBuffer, count};
use crate::kernels::round::round1;
use crate::ops::device::{convert, index};
use crate::ops::elementwise::{Clamp, ScalarElementwise, ScalarKind, Softcap, one_weight, spread};
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::value::DeviceValue;

// The kinds of `elementwise.cu`.
const ADD: u32 = 0;
const SUBTRACT: u32 = 1;
const MULTIPLY: u32 = 2;
const DIVIDE: u32 = 3;
const DIVIDE_INTO: u32 = 4;

pub(super) fn kernels(kernels: &mut Kernels) {
    for (op, kind) in [("add", ADD), ("sub", SUBTRACT), ("mul", MULTIPLY), ("div", DIVIDE)] {
        kernels.add(op, move |ctx: &mut Ctx<'_>| binary(ctx, kind));
    }
    kernels.add("weight_scale", |ctx: &mut Ctx<'_>| with_weight(ctx, MULTIPLY));
    kernels.add("weight_add", |ctx: &mut Ctx<'_>| with_weight(ctx, ADD));
    kernels.add("weight_blend", weight_blend);
    kernels.prepared("scale", |args| ScalarElementwise::scale(args).map(DeviceScalar));
    kernels.prepared("offset", |args| ScalarElementwise::offset(args).map(DeviceScalar));
    kernels.prepared("divide", |args| ScalarElementwise::divide(args).map(DeviceScalar));
    kernels.prepared("inverse", |args| ScalarElementwise::inverse(args).map(DeviceScalar));
    kernels.prepared("softcap", |args: &Args<'_>| Softcap::prepare(args).map(DeviceSoftcap));
    kernels.prepared("clamp", |args: &Args<'_>| Clamp::prepare(args).map(DeviceClamp));
    kernels.add("cast", cast);
}

/// Returns the places of an operand that is broadcast to a row; none if every number has its own.
fn places(ctx: &Ctx<'_>, row: &[usize], from: &[usize]) -> Result<Option<DeviceBuffer>, Error> {
    if row == from {
        return Ok(None);
    }
    let spread = spread(row, from)
        .ok_or_else(|| ctx.error(format!("numbers {from:?} do not fit {row:?}")))?;
    let places: Vec<u32> = spread.into_iter().map(|at| at as u32).collect();
    ctx.queue()?.upload(bytemuck::cast_slice(&places)).map(Some)
}

/// Returns the one weight of the node, and its places in a row of `x`.
fn placed_weight<'a>(
    ctx: &Ctx<'a>,
    x: &DeviceValue,
) -> Result<(&'a DeviceBuffer, Option<DeviceBuffer>), Error> {
    let (role, shape) = one_weight(ctx)?;
    let weight = ctx.device_vector(role);
    let weight = weight.ok_or_else(|| ctx.error(format!("weight `{role}` is no vector")))?;
    Ok((weight, places(ctx, &x.shape[1..], shape)?))
}

fn binary(ctx: &mut Ctx<'_>, kind: u32) -> Result<(), Error> {
    let queue = ctx.queue()?;
    let a = ctx.device_input(0)?;
    let b = ctx.device_input(1)?;
    if a.rows() != b.rows() {
        return Err(ctx.error(format!("{:?} and {:?} do not fit", a.shape, b.shape)));
    }
    let row = ctx.output_shape(0)?;
    let at = places(ctx, row, &a.shape[1..])?;
    let bt = places(ctx, row, &b.shape[1..])?;
    let y = ctx.device_output(0, a.rows())?;
    let arguments = [
        kind.into(),
        (&*a.buffer).into(),
        a.dtype.into(),
        at.as_ref().into(),
        index(ctx, a.width())?.into(),
        (&*b.buffer).into(),
        b.dtype.into(),
        bt.as_ref().into(),
        index(ctx, b.width())?.into(),
        index(ctx, y.width())?.into(),
        (&*y.buffer).into(),
        y.dtype.into(),
        count(y.len()),
    ];
    queue.launch_each("binary", y.len(), &arguments)?;
    ctx.set_device(0, y)
}

fn with_weight(ctx: &mut Ctx<'_>, kind: u32) -> Result<(), Error> {
    let queue = ctx.queue()?;
    let x = ctx.device_input(0)?;
    let (weight, places) = placed_weight(ctx, &x)?;
    let y = ctx.device_output(0, x.rows())?;
    let arguments = [
        kind.into(),
        (&*x.buffer).into(),
        x.dtype.into(),
        weight.into(),
        places.as_ref().into(),
        index(ctx, x.width())?.into(),
        (&*y.buffer).into(),
        y.dtype.into(),
        count(y.len()),
    ];
    queue.launch_each("with_weight", y.len(), &arguments)?;
    ctx.set_device(0, y)
}

fn weight_blend(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let queue = ctx.queue()?;
    let a = ctx.device_input(0)?;
    let b = ctx.device_input(1)?;
    if a.shape != b.shape {
        return Err(ctx.error(format!("{:?} and {:?} do not fit", a.shape, b.shape)));
    }
    let (weight, places) = placed_weight(ctx, &a)?;
    let y = ctx.device_output(0, a.rows())?;
    let arguments = [
        (&*a.buffer).into(),
        a.dtype.into(),
        (&*b.buffer).into(),
        b.dtype.into(),
        weight.into(),
        places.as_ref().into(),
        index(ctx, a.width())?.into(),
        (&*y.buffer).into(),
        y.dtype.into(),
        count(y.len()),
    ];
    queue.launch_each("weight_blend", y.len(), &arguments)?;
    ctx.set_device(0, y)
}

struct DeviceScalar(ScalarElementwise);

impl Kernel for DeviceScalar {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let &ScalarElementwise { with, s, rounds } = &self.0;
        let queue = ctx.queue()?;
        let x = ctx.device_input(0)?;
        let y = ctx.device_output(0, x.rows())?;
        // torch adds a number to 16-bit values as one of their dtype, but multiplies by it in f32.
        let s = match with {
            ScalarKind::Offset => round1(y.dtype, s),
            _ if rounds => round1(ctx.activation(), s),
            _ => s,
        };
        let kind = match with {
            ScalarKind::Offset => ADD,
            ScalarKind::Scale => MULTIPLY,
            ScalarKind::Divide => DIVIDE,
            ScalarKind::Inverse => DIVIDE_INTO,
        };
        let from = &*x.buffer;
        let to = &*y.buffer;
        let arguments = [
            kind.into(),
            from.into(),
            x.dtype.into(),
            s.into(),
            to.into(),
            y.dtype.into(),
            count(y.len()),
        ];
        queue.launch_each("scalar", y.len(), &arguments)?;
        ctx.set_device(0, y)
    }
}

struct DeviceSoftcap(Softcap);

impl Kernel for DeviceSoftcap {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let x = ctx.device_input(0)?;
        let y = ctx.device_output(0, x.rows())?;
        let from = &*x.buffer;
        let to = &*y.buffer;
        let arguments = [
            from.into(),
            x.dtype.into(),
            self.0.c.into(),
            to.into(),
            y.dtype.into(),
            count(y.len()),
        ];
        queue.launch_each("softcap", y.len(), &arguments)?;
        ctx.set_device(0, y)
    }
}

struct DeviceClamp(Clamp);

impl Kernel for DeviceClamp {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let x = ctx.device_input(0)?;
        let y = ctx.device_output(0, x.rows())?;
        let from = &*x.buffer;
        let to = &*y.buffer;
        let arguments = [
            from.into(),
            x.dtype.into(),
            self.0.low.into(),
            self.0.high.into(),
            to.into(),
            y.dtype.into(),
            count(y.len()),
        ];
        queue.launch_each("clamp", y.len(), &arguments)?;
        ctx.set_device(0, y)
    }
}

/// Casts to the dtype that the graph gives the output.
fn cast(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let queue = ctx.queue()?;
    let x = ctx.device_input(0)?;
    let y = ctx.device_output(0, x.rows())?;
    convert(queue, &x, &y)?;
    ctx.set_device(0, y)
}
