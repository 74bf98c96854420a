//! Activations and `glu` on a device.

use crate::Error;
use crate::device::count;
use crate::device::source::constant;
use crate::ops::glu::Glu;
use crate::ops::{Args, Ctx, Kernel, Kernels};

/// The activations by the number that `activation.cu` gives them.
const NAMES: [&str; 14] = [
    "silu",
    "gelu",
    "gelu_tanh",
    "gelu_new",
    "gelu_fast",
    "relu",
    "relu2",
    "sigmoid",
    "tanh",
    "softplus",
    "quick_gelu",
    "square_root",
    "sign",
    "exp",
];

/// The number of no activation.
const NONE: u32 = constant(include_str!("../../device/kernels/causal_conv.cu"), "NO_ACTIVATION");

pub(super) fn kernels(kernels: &mut Kernels) {
    for (kind, name) in (0..).zip(NAMES) {
        kernels.add(name, move |ctx: &mut Ctx<'_>| activate(ctx, kind));
    }
    kernels.prepared("glu", DeviceGlu::prepare);
}

/// Reads an argument that names an activation, as the number in kernels.
pub(super) fn argument(args: &Args<'_>, name: &str) -> Result<u32, Error> {
    let Some(word) = args.word_or_null(name)? else { return Ok(NONE) };
    let entry = (0..).zip(NAMES).find(|(_, known)| *known == word);
    entry.map(|(kind, _)| kind).ok_or_else(|| args.error(format!("no activation `{word}`")))
}

fn activate(ctx: &mut Ctx<'_>, kind: u32) -> Result<(), Error> {
    let queue = ctx.queue()?;
    let x = ctx.device_input(0)?;
    let y = ctx.device_output(0, x.rows())?;
    let from = &*x.buffer;
    let to = &*y.buffer;
    let arguments =
        [kind.into(), from.into(), x.dtype.into(), to.into(), y.dtype.into(), count(y.len())];
    queue.launch_each("activation", y.len(), &arguments)?;
    ctx.set_device(0, y)
}

struct DeviceGlu {
    kind: u32,
}

impl DeviceGlu {
    fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let kind = argument(args, "activation")?;
        if kind == NONE {
            return Err(args.error("it names no activation"));
        }
        Glu::prepare(args)?;
        Ok(Self { kind })
    }
}

impl Kernel for DeviceGlu {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let gate = ctx.device_input(0)?;
        let up = ctx.device_input(1)?;
        let y = ctx.device_output(0, gate.rows())?;
        let arguments = [
            self.kind.into(),
            (&*gate.buffer).into(),
            gate.dtype.into(),
            (&*up.buffer).into(),
            up.dtype.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
            count(y.len()),
        ];
        queue.launch_each("glu", y.len(), &arguments)?;
        ctx.set_device(0, y)
    }
}
