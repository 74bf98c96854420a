//! `causal_conv` and `previous` on a device.

use registry::dtype::Dtype;

use crate::Error;
use crate::device::{KernelArgument, KernelParts};
use crate::ops::causal_conv::CausalConv;
use crate::ops::device::{activation, index};
use crate::ops::{Args, Ctx, Kernel, Kernels};
use crate::states::Memory;
use crate::states::recurrent::DeviceRecurrentStep;
use crate::states::store::device::RowWrites;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("causal_conv", DeviceConv::prepare);
    kernels.add("previous", previous);
}

struct DeviceConv {
    kind: u32,
    stepwise: bool,
}

impl DeviceConv {
    fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let CausalConv { then: _, stepwise } = CausalConv::prepare(args)?;
        Ok(Self { kind: activation::argument(args, "activation")?, stepwise })
    }
}

impl Kernel for DeviceConv {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let x = ctx.device_input(0)?;
        let channels = x.width();
        let weight = ctx.device_vector("weight");
        let bias = ctx.device_vector("bias");
        let weight = weight.ok_or_else(|| ctx.error("weight `weight` is missing"))?;
        let taps = (weight.bytes() / 4).checked_div(channels).unwrap_or(0);
        if taps == 0
            || taps * channels * 4 != weight.bytes()
            || bias.is_some_and(|b| b.bytes() != 4 * channels)
        {
            return Err(ctx.error(format!(
                "a weight of {} numbers for {channels} channels",
                weight.bytes() / 4
            )));
        }
        let y = ctx.device_output(0, x.rows())?;
        let mut writes = RowWrites::default();
        let mut launch = KernelParts::new("causal_conv");
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
                weight.into(),
                index(ctx, taps)?.into(),
                bias.into(),
            ];
            let start = index(ctx, chunk.start)?;
            let Memory::Conv(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
            if memory.inputs.width() != channels
                || memory.needed != taps - 1
                || memory.inputs.end() != chunk.start
            {
                return Err(wrong);
            }
            memory.inputs.append_value(&x, (from, rows), &mut writes)?;
            let (past, first) = memory.inputs.cache()?;
            arguments.extend(&past.list[..2]);
            arguments.extend::<[KernelArgument; 6]>([
                first.into(),
                start.into(),
                (self.stepwise && start > 0).into(),
                self.kind.into(),
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
}

/// Gives each row that of the position before.
fn previous(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let queue = ctx.queue()?;
    let x = ctx.device_input(0)?;
    let width = x.width();
    let y = ctx.device_output(0, x.rows())?;
    let mut writes = RowWrites::default();
    let mut kept_rows = KernelParts::new("keep_row");
    let mut launch = KernelParts::new("previous");
    for chunk in ctx.chunks() {
        let wrong = ctx.error("its state does not hold inputs of this shape");
        let rows = chunk.rows.len();
        let from = chunk.rows.start;
        let end = index(ctx, chunk.rows.end)?;
        let mut arguments: Vec<KernelArgument> = vec![
            (&*x.buffer).into(),
            x.dtype.into(),
            index(ctx, from)?.into(),
            index(ctx, rows)?.into(),
            index(ctx, width)?.into(),
        ];
        let row_size = index(ctx, width)?;
        let start = index(ctx, chunk.start)?;
        match ctx.memory_mut(chunk.slot)? {
            Memory::Conv(memory)
                if memory.inputs.width() == width
                    && memory.needed == 1
                    && memory.inputs.end() == chunk.start =>
            {
                memory.inputs.append_value(&x, (from, rows), &mut writes)?;
                let (past, first) = memory.inputs.cache()?;
                arguments.extend(&past.list[..2]);
                arguments.push(first.into());
            }
            Memory::Recurrent(memory) if memory.width() == width && memory.end() == chunk.start => {
                let DeviceRecurrentStep { before, after, dtype } = memory.device_step(rows)?;
                arguments.extend::<[KernelArgument; 3]>([
                    before.into(),
                    Dtype::F32.into(),
                    start.saturating_sub(1).into(),
                ]);
                let first = end - after.len() as u32;
                for (row, block) in (first..).zip(after) {
                    let block_arguments = vec![
                        (&*x.buffer).into(),
                        x.dtype.into(),
                        row.into(),
                        row_size.into(),
                        block.into(),
                        dtype.into(),
                    ];
                    kept_rows.push_each(width, block_arguments);
                }
            }
            _ => return Err(wrong),
        }
        arguments.extend::<[KernelArgument; 3]>([
            start.into(),
            (&*y.buffer).into(),
            y.dtype.into(),
        ]);
        launch.push_each(rows * width, arguments);
    }
    let mut launches = writes.into_launches();
    launches.extend([launch, kept_rows]);
    queue.launch_parts(&launches)?;
    ctx.set_device(0, y)
}
