//! Arithmetic number by number on a device.

use std::sync::OnceLock;

use crate::Error;
use crate::device::source::constant;
use crate::device::{DeviceBuffer, KernelArgument, count};
use crate::kernels::round::round1;
use crate::ops::device::{convert, index};
use crate::ops::elementwise::{
    BinaryElementwise, BinaryKind, Clamp, OperandPlaces, Parameter, ScalarElementwise, ScalarKind,
    Softcap, WeightBlend, WithWeight,
};
use crate::ops::{Args, Ctx, Kernel, Kernels};

/// The kernels of these ops.
const KERNELS: &str = include_str!("../../device/kernels/elementwise.cu");
const ADD: u32 = constant(KERNELS, "ADD");
const SUBTRACT: u32 = constant(KERNELS, "SUBTRACT");
const MULTIPLY: u32 = constant(KERNELS, "MULTIPLY");
const DIVIDE: u32 = constant(KERNELS, "DIVIDE");
const DIVIDE_INTO: u32 = constant(KERNELS, "DIVIDE_INTO");

pub(super) fn kernels(kernels: &mut Kernels) {
    for (op, kind, number) in [
        ("add", BinaryKind::Add, ADD),
        ("sub", BinaryKind::Sub, SUBTRACT),
        ("mul", BinaryKind::Mul, MULTIPLY),
        ("div", BinaryKind::Div, DIVIDE),
    ] {
        kernels.prepared(op, move |args| DeviceBinary::prepare(args, kind, number));
    }
    for (op, kind, number) in
        [("weight_scale", BinaryKind::Mul, MULTIPLY), ("weight_add", BinaryKind::Add, ADD)]
    {
        kernels.prepared(op, move |args| DeviceWithWeight::prepare(args, kind, number));
    }
    kernels.prepared("parameter", |args| Parameter::prepare(args).map(DeviceParameter));
    kernels.prepared("weight_blend", |args: &Args<'_>| {
        let rule = WeightBlend::prepare(args)?;
        Ok(DeviceBlend { rule, places: OnceLock::new() })
    });
    kernels.prepared("scale", |args| ScalarElementwise::scale(args).map(DeviceScalar));
    kernels.prepared("offset", |args| ScalarElementwise::offset(args).map(DeviceScalar));
    kernels.prepared("divide", |args| ScalarElementwise::divide(args).map(DeviceScalar));
    kernels.prepared("inverse", |args| ScalarElementwise::inverse(args).map(DeviceScalar));
    kernels.prepared("softcap", |args: &Args<'_>| Softcap::prepare(args).map(DeviceSoftcap));
    kernels.prepared("clamp", |args: &Args<'_>| Clamp::prepare(args).map(DeviceClamp));
    kernels.add("cast", cast);
}

/// Returns the places of an operand as kernels read them, which are uploaded once in a session.
fn places(
    ctx: &Ctx<'_>,
    places: &OperandPlaces,
    uploaded: &OnceLock<DeviceBuffer>,
) -> Result<KernelArgument, Error> {
    let Some(places) = places else { return Ok(None::<&DeviceBuffer>.into()) };
    if let Some(uploaded) = uploaded.get() {
        return Ok(uploaded.into());
    }
    let numbers: Vec<u32> = places.iter().map(|place| *place as u32).collect();
    let buffer = ctx.queue()?.upload(bytemuck::cast_slice(&numbers))?;
    Ok(uploaded.get_or_init(|| buffer).into())
}

/// Returns the weight of a node, which is a vector.
fn vector<'a>(ctx: &Ctx<'a>, role: &str) -> Result<&'a DeviceBuffer, Error> {
    let vector = ctx.device_vector(role);
    vector.ok_or_else(|| ctx.error(format!("weight `{role}` is no vector")))
}

struct DeviceBinary {
    rule: BinaryElementwise,
    kind: u32,
    places: [OnceLock<DeviceBuffer>; 2],
}

impl DeviceBinary {
    fn prepare(args: &Args<'_>, kind: BinaryKind, number: u32) -> Result<Self, Error> {
        let rule = BinaryElementwise::prepare(args, kind)?;
        Ok(Self { rule, kind: number, places: Default::default() })
    }
}

impl Kernel for DeviceBinary {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let a = ctx.device_input(0)?;
        let b = ctx.device_input(1)?;
        let [first, second] = &self.rule.places;
        let y = ctx.device_output(0, a.rows())?;
        let arguments = [
            self.kind.into(),
            (&*a.buffer).into(),
            a.dtype.into(),
            places(ctx, first, &self.places[0])?,
            index(ctx, a.width())?.into(),
            (&*b.buffer).into(),
            b.dtype.into(),
            places(ctx, second, &self.places[1])?,
            index(ctx, b.width())?.into(),
            index(ctx, y.width())?.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
            count(y.len()),
        ];
        queue.launch_each("binary", y.len(), &arguments)?;
        ctx.set_device(0, y)
    }
}

struct DeviceParameter(Parameter);

impl Kernel for DeviceParameter {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let y = ctx.device_output(0, ctx.device_input(0)?.rows())?;
        let arguments = [
            vector(ctx, &self.0.role)?.into(),
            index(ctx, y.width())?.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
            count(y.len()),
        ];
        queue.launch_each("parameter", y.len(), &arguments)?;
        ctx.set_device(0, y)
    }
}

struct DeviceWithWeight {
    rule: WithWeight,
    kind: u32,
    places: OnceLock<DeviceBuffer>,
}

impl DeviceWithWeight {
    fn prepare(args: &Args<'_>, kind: BinaryKind, number: u32) -> Result<Self, Error> {
        let rule = WithWeight::prepare(args, kind)?;
        Ok(Self { rule, kind: number, places: OnceLock::new() })
    }
}

impl Kernel for DeviceWithWeight {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let x = ctx.device_input(0)?;
        let weight = &self.rule.weight;
        let y = ctx.device_output(0, x.rows())?;
        let arguments = [
            self.kind.into(),
            (&*x.buffer).into(),
            x.dtype.into(),
            vector(ctx, &weight.role)?.into(),
            places(ctx, &weight.places, &self.places)?,
            index(ctx, x.width())?.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
            count(y.len()),
        ];
        queue.launch_each("with_weight", y.len(), &arguments)?;
        ctx.set_device(0, y)
    }
}

struct DeviceBlend {
    rule: WeightBlend,
    places: OnceLock<DeviceBuffer>,
}

impl Kernel for DeviceBlend {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let a = ctx.device_input(0)?;
        let b = ctx.device_input(1)?;
        let weight = &self.rule.weight;
        let y = ctx.device_output(0, a.rows())?;
        let arguments = [
            (&*a.buffer).into(),
            a.dtype.into(),
            (&*b.buffer).into(),
            b.dtype.into(),
            vector(ctx, &weight.role)?.into(),
            places(ctx, &weight.places, &self.places)?,
            index(ctx, a.width())?.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
            count(y.len()),
        ];
        queue.launch_each("weight_blend", y.len(), &arguments)?;
        ctx.set_device(0, y)
    }
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
