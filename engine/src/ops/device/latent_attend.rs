//! `latent_attend` on a device.

use std::ops::Range;

use crate::Error;
use crate::device::{DeviceBuffer, KernelArgument};
use crate::kernels::attention::BLOCK_QUERIES;
use crate::ops::device::attend::{SCORES, SeenPositions};
use crate::ops::device::round_inputs::rows_for;
use crate::ops::device::{index, linear};
use crate::ops::latent_attend::{HeadSizes, LatentAttend};
use crate::ops::{Args, ChunkRows, Ctx, Kernel, Kernels};
use crate::states::Memory;
use crate::value::DeviceValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels
        .prepared("latent_attend", |args: &Args<'_>| LatentAttend::prepare(args).map(DeviceLatent));
}

struct DeviceLatent(LatentAttend);

/// Rows of one chunk.
struct LatentPart<'a> {
    slot: usize,
    /// Rows of the step.
    rows: Range<usize>,
    /// Position of the first row.
    start: usize,
    /// The choice of positions, if the rows do not see all of them.
    chosen: Option<&'a DeviceValue>,
}

impl Kernel for DeviceLatent {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let (q, c, r) = (ctx.device_input(0)?, ctx.device_input(1)?, ctx.device_input(2)?);
        let weight = ctx.device_matrix("weight")?;
        let sizes = self.0.sizes(&q.shape, (c.width(), r.width()), (weight.inputs, weight.outputs));
        let sizes = sizes.map_err(|why| ctx.error(why))?;
        let HeadSizes { heads, value, .. } = sizes;
        let width = sizes.width();
        let y = ctx.device_output(0, q.rows())?;
        if y.width() != heads * value {
            return Err(ctx.error(format!("{heads} heads of {value} are no {:?}", y.shape)));
        }
        let chosen = (ctx.node().inputs.len() > 3).then(|| ctx.device_input(3)).transpose()?;
        if ctx.is_watched() {
            ctx.observe_cached(0, &c.download()?);
            ctx.observe_cached(1, &r.download()?);
        }
        for chunk in ctx.chunks() {
            expand(ctx, chunk, (&c, &r), width, &y)?;
        }
        for ChunkRows { slot, rows, start, mask, .. } in ctx.chunks() {
            let end = start + rows.len();
            // Blocks of queries as on the CPU: those that reach beyond the choice see its positions alone.
            let all = match &chosen {
                None => rows.len(),
                Some(chosen) => {
                    let blocks = (0..rows.len()).step_by(BLOCK_QUERIES);
                    let ends = blocks.map(|from| rows.len().min(from + BLOCK_QUERIES));
                    ends.take_while(|to| start + to <= chosen.width()).last().unwrap_or(0)
                }
            };
            for (part, chosen) in [(0..all, None), (all..rows.len(), chosen.as_ref())] {
                let span = chosen.map_or(end, DeviceValue::width);
                let batch = (SCORES / (heads * span).max(1)).max(1);
                for from in part.clone().step_by(batch) {
                    let to = part.end.min(from + batch);
                    let seen: Vec<Range<usize>> = (start + from..start + to)
                        .map(|position| mask.document_of(position)..position + 1)
                        .collect();
                    let rows = rows.start + from..rows.start + to;
                    let part = LatentPart { slot: *slot, rows, start: start + from, chosen };
                    self.attend(ctx, &part, &seen, sizes, (&q, &y))?;
                }
            }
        }
        ctx.set_device(0, y)
    }
}

/// Adds the latents of a chunk to the state, and expands those that are not expanded yet.
fn expand(
    ctx: &mut Ctx<'_>,
    chunk: &ChunkRows,
    (c, r): (&DeviceValue, &DeviceValue),
    width: usize,
    y: &DeviceValue,
) -> Result<(), Error> {
    let (queue, weight) = (ctx.queue()?, ctx.device_matrix("weight")?);
    let wrong = || Error::Other("the state does not hold latents of this shape".to_owned());
    let Memory::Latent(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong()) };
    if memory.latent.width() != c.width()
        || memory.shared.width() != r.width()
        || memory.latent.end() != chunk.start
    {
        return Err(wrong());
    }
    memory.latent.append_value(c, chunk.rows.start, chunk.rows.len())?;
    memory.shared.append_value(r, chunk.rows.start, chunk.rows.len())?;
    memory.rewind(y.dtype, width, chunk.start);
    // What the state keeps is expanded, not what came in: they differ if it is narrower.
    let missing = memory.latent.device_tail(memory.expanded.end())?;
    let made = DeviceValue::of(queue, y.dtype, &[missing.rows(), width])?;
    linear::product(ctx, &*rows_for(ctx, "weight", &missing)?, weight, None, &made)?;
    match ctx.memory_mut(chunk.slot)? {
        Memory::Latent(memory) => memory.expanded.append_value(&made, 0, made.rows()),
        _ => Err(wrong()),
    }
}

impl DeviceLatent {
    /// Computes some rows of one chunk.
    fn attend(
        &self,
        ctx: &Ctx<'_>,
        part: &LatentPart<'_>,
        seen: &[Range<usize>],
        sizes: HeadSizes,
        (q, y): (&DeviceValue, &DeviceValue),
    ) -> Result<(), Error> {
        let queue = ctx.queue()?;
        let HeadSizes { heads, nope, shared, value } = sizes;
        let rows = part.rows.len();
        let Memory::Latent(memory) = ctx.memory(part.slot)? else {
            return Err(ctx.error("its state is of another kind"));
        };
        let mut seen = SeenPositions::new(queue, seen)?;
        let mut picked = DeviceBuffer::none(queue);
        if let Some(chosen) = part.chosen {
            (seen.base, seen.span) = (0, chosen.width());
            picked = queue.allocate(4 * rows * chosen.width())?;
            let arguments = [
                (&*chosen.buffer).into(),
                chosen.dtype.into(),
                index(ctx, part.rows.start)?.into(),
                index(ctx, rows)?.into(),
                index(ctx, chosen.width())?.into(),
                index(ctx, part.start)?.into(),
                (&picked).into(),
                (&seen.ranges).into(),
            ];
            queue.launch_each("picked_keys", rows, &arguments)?;
        }
        let queries = rows * heads;
        let scores = queue.allocate(4 * queries * seen.span)?;
        let [ranges, base, span] = seen.arguments();
        let (expanded, _) = memory.expanded.cache()?;
        let (rest, _) = memory.shared.cache()?;
        let number = |size| index(ctx, size).map(KernelArgument::from);
        let arguments = [
            (&*q.buffer).into(),
            q.dtype.into(),
            number(part.rows.start)?,
            number(rows)?,
            number(heads)?,
            number(nope)?,
            number(shared)?,
            number(value)?,
            expanded.list[0],
            expanded.list[1],
            rest.list[0],
            rest.list[1],
            ranges,
            (&picked).into(),
            base,
            span,
            self.0.scale.into(),
            y.dtype.into(),
            (&scores).into(),
        ];
        queue.launch_each("latent_scores", queries * seen.span, &arguments)?;
        let none = KernelArgument::from(None::<&DeviceBuffer>);
        let arguments = [
            (&scores).into(),
            number(heads)?,
            ranges,
            base,
            span,
            0.0.into(),
            none,
            false.into(),
            false.into(),
            y.dtype.into(),
            none,
            none,
            number(heads)?,
            0.into(),
        ];
        queue.launch("attend_weights", queries, &arguments)?;
        let arguments = [
            (&scores).into(),
            number(rows)?,
            number(heads)?,
            number(nope)?,
            number(value)?,
            expanded.list[0],
            expanded.list[1],
            ranges,
            (&picked).into(),
            base,
            span,
            (&*y.buffer).into(),
            y.dtype.into(),
            number(part.rows.start)?,
        ];
        queue.launch_each("latent_values", queries * value, &arguments)
    }
}
