//! `attend_pooled` on a device.

use registry::dtype::Dtype;

use crate::Error;
use crate::device::{DeviceBuffer, KernelArgument, KernelParts};
use crate::kernels::attention::SoftmaxForm;
use crate::ops::attend_pooled::AttendPooled;
use crate::ops::device::index;
use crate::ops::device::scores::{COLUMNS, SCORE_HEADS, SCORES, score_groups, score_tiles};
use crate::ops::device::seen::PlainWeights;
use crate::ops::{Args, ChunkRows, Ctx, Kernel, Kernels};
use crate::states::Memory;
use crate::states::pooled::Pooled;
use crate::states::store::device::RowWrites;
use crate::value::DeviceValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("attend_pooled", |args: &Args<'_>| {
        AttendPooled::prepare(args).map(DeviceAttendPooled)
    });
}

struct DeviceAttendPooled(AttendPooled);

impl Kernel for DeviceAttendPooled {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let q = ctx.device_input(0)?;
        let k = ctx.device_input(1)?;
        let pooled = ctx.device_input(2)?;
        let chosen = self.0.selected.map(|(n, _)| ctx.device_input(n)).transpose()?;
        let y = ctx.device_output(0, q.rows())?;
        if ctx.is_watched() {
            ctx.observe_cached(0, &k.download()?);
        }
        let mut writes = RowWrites::default();
        for chunk in ctx.chunks() {
            keep(ctx, chunk, [&k, &pooled], &mut writes)?;
        }
        ctx.queue()?.launch_parts(&writes.into_launches())?;
        PooledCall { rule: &self.0, ctx, q: &q, y: &y, chosen: chosen.as_ref() }.attend()?;
        ctx.set_device(0, y)
    }
}

/// Adds the keys of a chunk to its state, and the pooled keys of the blocks that it completes.
fn keep(
    ctx: &mut Ctx<'_>,
    chunk: &ChunkRows,
    [keys, pooled]: [&DeviceValue; 2],
    writes: &mut RowWrites,
) -> Result<(), Error> {
    let wrong = ctx.error("its state does not hold the keys before this step");
    let Memory::Pooled(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
    if memory.keys.end() != chunk.start
        || memory.blocks.rows.end() != chunk.start / memory.blocks.size
    {
        return Err(wrong);
    }
    memory.keys.append_value(keys, (chunk.rows.start, chunk.rows.len()), writes)?;
    let ends: Vec<usize> = memory.blocks.ends(chunk.start, chunk.rows.len()).collect();
    memory.blocks.rows.reserve_rows(ends.len())?;
    for position in ends {
        let row = chunk.rows.start + position - chunk.start;
        memory.blocks.rows.append_value(pooled, (row, 1), writes)?;
    }
    Ok(())
}

/// Inputs, output and sizes that all parts of a step share.
struct PooledCall<'a, 'c> {
    rule: &'a AttendPooled,
    ctx: &'a Ctx<'c>,
    q: &'a DeviceValue,
    y: &'a DeviceValue,
    /// Numbers of blocks, `[rows, count]`; none if all are seen.
    chosen: Option<&'a DeviceValue>,
}

/// Some rows of one chunk.
struct PooledPart {
    slot: usize,
    /// The first row of the step.
    first: usize,
    rows: usize,
    /// Position of the first row.
    start: usize,
    /// The most keys that a row sees.
    span: usize,
}

/// A part with its memory.
struct PlacedPooled<'a> {
    part: &'a PooledPart,
    memory: &'a Pooled,
    picked: KernelArgument,
    seen: KernelArgument,
    scores: KernelArgument,
}

impl PooledCall<'_, '_> {
    /// Computes the output of all rows.
    fn attend(&self) -> Result<(), Error> {
        let heads = self.rule.heads;
        let mut parts = Vec::new();
        for chunk in self.ctx.chunks() {
            let span = self.rule.most_keys(chunk.start + chunk.rows.len());
            let batch = (SCORES / (heads * span).max(1)).max(1);
            for from in (0..chunk.rows.len()).step_by(batch) {
                let rows = batch.min(chunk.rows.len() - from);
                let first = chunk.rows.start + from;
                let start = chunk.start + from;
                let span = self.rule.most_keys(start + rows);
                parts.push(PooledPart { slot: chunk.slot, first, rows, start, span });
            }
        }
        for group in score_groups(&parts, |part| part.rows * heads * part.span) {
            self.attend_group(group)?;
        }
        Ok(())
    }

    /// Computes the parts of a group.
    fn attend_group(&self, group: &[PooledPart]) -> Result<(), Error> {
        let queue = self.ctx.queue()?;
        let &AttendPooled { heads, size, .. } = self.rule;
        let rows: usize = group.iter().map(|part| part.rows).sum();
        let keys: usize = group.iter().map(|part| part.rows * part.span).sum();
        let picked = queue.allocate(4 * keys)?;
        let seen = queue.allocate(8 * rows)?;
        let scores = queue.allocate(4 * keys * heads)?;
        let parts = self.placed(group, [&picked, &seen, &scores])?;
        let [mut pick, mut score, mut weigh, mut sum] =
            ["pooled_keys", "pooled_scores", "attend_weights", "pooled_values"]
                .map(KernelParts::new);
        for part in &parts {
            let &PooledPart { rows, span, .. } = part.part;
            pick.push_each(rows, self.pick_arguments(part)?);
            let batches = heads.div_ceil(SCORE_HEADS);
            score.push(rows * batches * score_tiles(span), self.score_arguments(part)?);
            weigh.push(rows * heads, self.weight_arguments(part)?);
            sum.push(rows * heads * size.div_ceil(COLUMNS), self.value_arguments(part)?);
        }
        queue.launch_parts(&[pick, score, weigh, sum])
    }

    /// Gives each part of a group its memory.
    fn placed<'p>(
        &'p self,
        group: &'p [PooledPart],
        [picked, seen, scores]: [&DeviceBuffer; 3],
    ) -> Result<Vec<PlacedPooled<'p>>, Error> {
        let mut placed = Vec::new();
        let mut rows = 0;
        let mut keys = 0;
        for part in group {
            let Memory::Pooled(memory) = self.ctx.memory(part.slot)? else {
                return Err(self.ctx.error("its state is of another kind"));
            };
            placed.push(PlacedPooled {
                part,
                memory,
                picked: picked.argument(4 * keys)?,
                seen: seen.argument(8 * rows)?,
                scores: scores.argument(4 * keys * self.rule.heads)?,
            });
            rows += part.rows;
            keys += part.rows * part.span;
        }
        Ok(placed)
    }

    fn number(&self, size: usize) -> Result<KernelArgument, Error> {
        index(self.ctx, size).map(KernelArgument::from)
    }

    fn pick_arguments(&self, part: &PlacedPooled<'_>) -> Result<Vec<KernelArgument>, Error> {
        Ok(vec![
            self.chosen.map(|chosen| &*chosen.buffer).into(),
            self.chosen.map_or(Dtype::F32, |chosen| chosen.dtype).into(),
            self.number(part.part.first)?,
            self.number(part.part.rows)?,
            self.number(self.rule.selected.map_or(0, |(_, count)| count))?,
            self.number(self.rule.window)?,
            self.number(self.rule.block)?,
            self.number(part.part.start)?,
            self.number(part.part.span)?,
            part.picked,
            part.seen,
        ])
    }

    /// Returns the keys of a part, those of positions with their dtype and the first position, and those of blocks.
    fn key_arguments(part: &PlacedPooled<'_>) -> Result<[KernelArgument; 4], Error> {
        let (keys, first) = part.memory.keys.cache()?;
        let (blocks, _) = part.memory.blocks.rows.cache()?;
        Ok([keys.list[0], keys.list[1], first.into(), blocks.list[0]])
    }

    fn score_arguments(&self, part: &PlacedPooled<'_>) -> Result<Vec<KernelArgument>, Error> {
        let mut arguments = vec![
            (&*self.q.buffer).into(),
            self.q.dtype.into(),
            self.number(part.part.first)?,
            self.number(self.rule.heads)?,
            self.number(self.rule.size)?,
        ];
        arguments.extend(Self::key_arguments(part)?);
        arguments.extend::<[KernelArgument; 6]>([
            part.seen,
            part.picked,
            self.number(part.part.span)?,
            self.rule.scale.into(),
            self.y.dtype.into(),
            part.scores,
        ]);
        Ok(arguments)
    }

    fn weight_arguments(&self, part: &PlacedPooled<'_>) -> Result<Vec<KernelArgument>, Error> {
        let weights = PlainWeights {
            scores: part.scores,
            heads: self.number(self.rule.heads)?,
            seen: [part.seen, 0.into(), self.number(part.part.span)?],
            softcap: None,
            sinks: self.ctx.device_vector("sinks"),
            softmax: SoftmaxForm::F32,
            dtype: self.y.dtype,
        };
        Ok(weights.arguments())
    }

    fn value_arguments(&self, part: &PlacedPooled<'_>) -> Result<Vec<KernelArgument>, Error> {
        let mut arguments =
            vec![part.scores, self.number(self.rule.heads)?, self.number(self.rule.size)?];
        arguments.extend(Self::key_arguments(part)?);
        arguments.extend::<[KernelArgument; 6]>([
            part.seen,
            part.picked,
            self.number(part.part.span)?,
            (&*self.y.buffer).into(),
            self.y.dtype.into(),
            self.number(part.part.first)?,
        ]);
        Ok(arguments)
    }
}
