//! `grouped_conv` on a device.

use crate::Error;
use crate::device::{KernelArgument, KernelParts};
use crate::ops::device::index;
use crate::ops::grouped_conv::ConvSizes;
use crate::ops::{Ctx, Kernels};
use crate::states::Memory;
use crate::states::store::device::RowWrites;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.add("grouped_conv", run);
}

fn run(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let queue = ctx.queue()?;
    let x = ctx.device_input(0)?;
    let sizes = ConvSizes::of(ctx, x.width())?;
    let ConvSizes { channels, width, second, group } = sizes;
    let mut weights: Vec<KernelArgument> = Vec::new();
    for (role, numbers) in [
        ("weight", channels * width),
        ("bias", channels),
        ("grouped", channels * group * second),
        ("grouped_bias", channels),
    ] {
        let weight = ctx.device_vector(role).filter(|weight| weight.bytes() == 4 * numbers);
        let weight = weight.ok_or_else(|| {
            ctx.error(format!("weight `{role}` is missing, or not of {numbers} numbers"))
        })?;
        weights.push(weight.into());
    }
    for size in [width, second, group] {
        weights.push(index(ctx, size)?.into());
    }
    let y = ctx.device_output(0, x.rows())?;
    let mut writes = RowWrites::default();
    let mut launch = KernelParts::new("grouped_conv");
    for chunk in ctx.chunks() {
        let wrong = ctx.error("its state does not hold inputs of this shape");
        let rows = chunk.rows.len();
        let from = chunk.rows.start;
        let mut arguments: Vec<KernelArgument> = vec![
            (&*x.buffer).into(),
            x.dtype.into(),
            index(ctx, from)?.into(),
            index(ctx, rows)?.into(),
            index(ctx, channels)?.into(),
        ];
        arguments.extend(&weights);
        let start = index(ctx, chunk.start)?;
        let Memory::Conv(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
        if memory.inputs.width() != channels
            || memory.needed != sizes.needed()
            || memory.inputs.end() != chunk.start
        {
            return Err(wrong);
        }
        memory.inputs.append_value(&x, (from, rows), &mut writes)?;
        let (past, first) = memory.inputs.cache()?;
        arguments.extend(&past.list[..2]);
        arguments.extend::<[KernelArgument; 4]>([
            first.into(),
            start.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
        ]);
        launch.push_each(rows * channels, arguments);
    }
    let mut launches = writes.into_launches();
    launches.push(launch);
    queue.launch_parts(&launches)?;
    ctx.set_device(0, y)
}
