//! `causal_conv` and `previous` on a device.

use registry::dtype::Dtype;

use crate::Error;
use crate::device::{KernelArgument, KernelParts};
use crate::ops::causal_conv::{CausalConv, heads_of_taps};
use crate::ops::device::{activation, index};
use crate::ops::{Args, ChunkRows, Ctx, Kernel, Kernels};
use crate::states::Memory;
use crate::states::recurrent::DeviceRecurrentStep;
use crate::states::store::device::RowWrites;
use crate::value::DeviceValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("causal_conv", DeviceConv::prepare);
    kernels.add("previous", previous);
}

/// Adds the rows of a chunk to its state. Returns the inputs of the state as kernels read them, the position of the
/// first, and that of the chunk.
fn append(
    ctx: &mut Ctx<'_>,
    chunk: &ChunkRows,
    x: &DeviceValue,
    needed: usize,
    writes: &mut RowWrites,
) -> Result<[KernelArgument; 4], Error> {
    let wrong = ctx.error("its state does not hold inputs of this shape");
    let start = index(ctx, chunk.start)?;
    let Memory::Conv(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
    if !memory.continues(x.width(), needed, chunk.start) {
        return Err(wrong);
    }
    memory.inputs.append_value(x, (chunk.rows.start, chunk.rows.len()), writes)?;
    let (past, first) = memory.inputs.cache()?;
    Ok([past.list[0], past.list[1], first.into(), start.into()])
}

/// Makes rows of a chunk the blocks of its recurrence. Returns the block before the chunk as kernels read inputs of a state,
/// its position, and that of the chunk.
fn replace_block(
    ctx: &mut Ctx<'_>,
    chunk: &ChunkRows,
    x: &DeviceValue,
    kept_rows: &mut KernelParts,
) -> Result<[KernelArgument; 4], Error> {
    let wrong = ctx.error("its state does not hold inputs of this shape");
    let width = x.width();
    let row_size = index(ctx, width)?;
    let start = index(ctx, chunk.start)?;
    let end = index(ctx, chunk.rows.end)?;
    let Memory::Recurrent(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
    if memory.width() != width || memory.end() != chunk.start {
        return Err(wrong);
    }
    let DeviceRecurrentStep { before, after, dtype } = memory.device_step(chunk.rows.len())?;
    let first = end - after.len() as u32;
    for (row, block) in (first..).zip(after) {
        let arguments = vec![
            (&*x.buffer).into(),
            x.dtype.into(),
            row.into(),
            row_size.into(),
            block.into(),
            dtype.into(),
        ];
        kept_rows.push_each(width, arguments);
    }
    Ok([before.into(), Dtype::F32.into(), start.saturating_sub(1).into(), start.into()])
}

struct DeviceConv {
    kind: u32,
    stepwise: bool,
    /// The input that has numbers of each row to add to the kernel.
    taps: Option<usize>,
}

impl DeviceConv {
    fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let CausalConv { then: _, stepwise, taps } = CausalConv::prepare(args)?;
        Ok(Self { kind: activation::argument(args, "activation")?, stepwise, taps })
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
        let own = self.taps.map(|input| ctx.device_input(input)).transpose()?;
        let heads = match &own {
            None => 1,
            Some(own) => heads_of_taps(&own.shape, x.rows(), channels, taps)
                .ok_or_else(|| ctx.error("taps of rows do not fit the kernel"))?,
        };
        let y = ctx.device_output(0, x.rows())?;
        let mut writes = RowWrites::default();
        let mut launch = KernelParts::new("causal_conv");
        for chunk in ctx.chunks() {
            let rows = chunk.rows.len();
            let mut arguments: Vec<KernelArgument> = vec![
                (&*x.buffer).into(),
                x.dtype.into(),
                index(ctx, chunk.rows.start)?.into(),
                index(ctx, rows)?.into(),
                index(ctx, channels)?.into(),
                weight.into(),
                index(ctx, taps)?.into(),
                own.as_ref().map(|own| &*own.buffer).into(),
                own.as_ref().map_or(Dtype::F32, |own| own.dtype).into(),
                index(ctx, heads)?.into(),
                bias.into(),
            ];
            arguments.extend(append(ctx, chunk, &x, taps - 1, &mut writes)?);
            arguments.extend::<[KernelArgument; 4]>([
                (self.stepwise && chunk.start > 0).into(),
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
        let rows = chunk.rows.len();
        let mut arguments: Vec<KernelArgument> = vec![
            (&*x.buffer).into(),
            x.dtype.into(),
            index(ctx, chunk.rows.start)?.into(),
            index(ctx, rows)?.into(),
            index(ctx, width)?.into(),
        ];
        let is_recurrence = matches!(ctx.memory_mut(chunk.slot)?, Memory::Recurrent(_));
        arguments.extend(if is_recurrence {
            replace_block(ctx, chunk, &x, &mut kept_rows)?
        } else {
            append(ctx, chunk, &x, 1, &mut writes)?
        });
        arguments.extend::<[KernelArgument; 2]>([(&*y.buffer).into(), y.dtype.into()]);
        launch.push_each(rows * width, arguments);
    }
    let mut launches = writes.into_launches();
    launches.extend([launch, kept_rows]);
    queue.launch_parts(&launches)?;
    ctx.set_device(0, y)
}
