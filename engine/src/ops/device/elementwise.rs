//! Arithmetic number by number on a device.

use crate::Error;
use crate::device::{DeviceBuffer, DeviceQueue, count};
use crate::kernels::round::round1;
use crate::ops::device::{convert, index};
use crate::ops::elementwise::{
    Clamp, ScalarElementwise, ScalarKind, Softcap, spread, weight_places,
};
use crate::ops::{Args, Ctx, Kernel, Kernels};

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

/// Returns the places of a broadcast operand; none if every number has its own.
fn places(
    ctx: &Ctx<'_>,
    queue: &DeviceQueue,
    from: &[usize],
) -> Result<Option<DeviceBuffer>, Error> {
    let out = ctx.output_shape(0)?;
    if out == from {
        return Ok(None);
    }
    let spread = spread(out, from)
        .ok_or_else(|| ctx.error(format!("numbers {from:?} do not fit {out:?}")))?;
    let places: Vec<u32> = spread.into_iter().map(|at| at as u32).collect();
    queue.upload(bytemuck::cast_slice(&places)).map(Some)
}

fn binary(ctx: &mut Ctx<'_>, kind: u32) -> Result<(), Error> {
    let queue = ctx.queue()?;
    let a = ctx.device_input(0)?;
    let b = ctx.device_input(1)?;
    if a.rows() != b.rows() {
        return Err(ctx.error(format!("{:?} and {:?} do not fit", a.shape, b.shape)));
    }
    let at = places(ctx, queue, &a.shape[1..])?;
    let bt = places(ctx, queue, &b.shape[1..])?;
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
    let (Some((role, id)), 1) = (ctx.node().weights.first_key_value(), ctx.node().weights.len())
    else {
        return Err(ctx.error("it has one weight"));
    };
    let weight = ctx.device_vector(role);
    let weight = weight.ok_or_else(|| ctx.error(format!("weight `{role}` is no vector")))?;
    let shape = &ctx.graph.weights[id.0].shape;
    let at = spread(&x.shape[1..], shape)
        .ok_or_else(|| ctx.error(format!("a weight {shape:?} does not fit {:?}", &x.shape[1..])))?;
    let places: Vec<u32> = at.into_iter().map(|at| at as u32).collect();
    let places = queue.upload(bytemuck::cast_slice(&places))?;
    let y = ctx.device_output(0, x.rows())?;
    let arguments = [
        kind.into(),
        (&*x.buffer).into(),
        x.dtype.into(),
        weight.into(),
        (&places).into(),
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
    let weight = ctx.device_vector("weight");
    let weight = weight.ok_or_else(|| ctx.error("its weight is no vector"))?;
    let places = weight_places(ctx, &a.shape)?;
    let places: Vec<u32> = places.into_iter().map(|at| at as u32).collect();
    let places = queue.upload(bytemuck::cast_slice(&places))?;
    let y = ctx.device_output(0, a.rows())?;
    let arguments = [
        (&*a.buffer).into(),
        a.dtype.into(),
        (&*b.buffer).into(),
        b.dtype.into(),
        weight.into(),
        (&places).into(),
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
