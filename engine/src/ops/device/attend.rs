//! `attend` and `attend_to` on a device.

use std::ops::Range;

use registry::dtype::Dtype;

use crate::Error;
use crate::device::{DeviceBuffer, KernelArgument, KernelParts};
use crate::kernels::attention::SoftmaxForm;
use crate::ops::attend::{Attend, AttendSizes};
use crate::ops::device::attend_selected::SelectedCall;
use crate::ops::device::long_rows::{HeadVectors, LongRows};
use crate::ops::device::scores::{COLUMNS, SCORE_HEADS, SCORES, score_groups, score_tiles};
use crate::ops::device::seen::{
    SeenPositions, extent, no_relative, rounding_argument, softmax_word,
};
use crate::ops::device::{index, long_rows};
use crate::ops::row_scores::RowScoreInputs;
use crate::ops::{Args, ChunkRows, Ctx, Kernel, Kernels};
use crate::states::Memory;
use crate::states::attention::Attention;
use crate::states::store::device::RowWrites;
use crate::value::DeviceValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("attend", |args| DeviceAttend::prepare(args, true));
    kernels.prepared("attend_to", |args| DeviceAttend::prepare(args, false));
}

struct DeviceAttend {
    rule: Attend,
    /// True if keys and values are added to the state first.
    keeps: bool,
    inputs: RowScoreInputs,
}

impl DeviceAttend {
    fn prepare(args: &Args<'_>, keeps: bool) -> Result<Self, Error> {
        let rule = Attend::prepare(args)?;
        let AttendSizes { heads, kv_heads, .. } = rule.sizes;
        let inputs = if keeps {
            RowScoreInputs::prepare(args, heads, kv_heads)?
        } else {
            RowScoreInputs::default()
        };
        Ok(Self { rule, keeps, inputs })
    }
}

/// Returns the launches that add the step's keys and values to the state.
fn keep(ctx: &mut Ctx<'_>) -> Result<Vec<KernelParts>, Error> {
    let mut writes = RowWrites::default();
    for part in 0..2 {
        let x = ctx.device_input(part + 1)?;
        let watched = if ctx.is_watched() { x.download()? } else { Vec::new() };
        for chunk in ctx.chunks() {
            if ctx.is_watched() {
                let rows = &watched[chunk.rows.start * x.width()..chunk.rows.end * x.width()];
                ctx.observe_cached(part, rows);
            }
            let wrong = ctx.error("its state does not hold keys and values of this shape");
            let Memory::Attention(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
            let history = if part == 0 { &mut memory.keys } else { &mut memory.values };
            if history.width() != x.width() || history.end() != chunk.start {
                return Err(wrong);
            }
            history.append_value(&x, (chunk.rows.start, chunk.rows.len()), &mut writes)?;
        }
    }
    Ok(writes.into_launches())
}

impl Kernel for DeviceAttend {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let mut launches = if self.keeps { keep(ctx)? } else { Vec::new() };
        let rule = &self.rule;
        let queue = ctx.queue()?;
        let q = ctx.device_input(0)?;
        let slopes = rule.slopes.as_ref().map(|s| queue.upload(bytemuck::cast_slice(s)));
        let slopes = slopes.transpose()?;
        let y = ctx.device_output(0, q.rows())?;
        if let Some(selected) = self.inputs.selected {
            queue.launch_parts(&launches)?;
            SelectedCall::new(rule, ctx, (&q, &y), selected)?.attend()?;
            return ctx.set_device(0, y);
        }
        let slopes = slopes.as_ref();
        let of_rows = RowValues::read(ctx, self.inputs)?;
        let y = &y;
        let sinks = ctx.device_vector("sinks");
        let call = AttendCall { rule, ctx, q: &q, y, sinks, slopes, of_rows };
        let (long, parts): (Vec<_>, Vec<_>) =
            call.parts().into_iter().partition(|part| call.is_long(part));
        for part in &long {
            call.attend_long(part, &mut launches)?;
        }
        for group in score_groups(&parts, |part: &AttendPart| {
            part.seen.len() * rule.sizes.heads * extent(&part.seen).1
        }) {
            call.attend(group, &mut launches)?;
        }
        ctx.set_device(0, y.clone())
    }
}

/// Numbers of rows for their scores.
struct RowValues {
    /// Numbers by distance, `[rows, heads, distances]`.
    relative: Option<DeviceValue>,
    distances: usize,
    /// `[rows, heads]`.
    sinks: Option<DeviceValue>,
}

impl RowValues {
    fn read(ctx: &Ctx<'_>, inputs: RowScoreInputs) -> Result<Self, Error> {
        let relative = inputs.relative.map(|(n, _)| ctx.device_input(n)).transpose()?;
        let sinks = inputs.sinks.map(|n| ctx.device_input(n)).transpose()?;
        Ok(Self { relative, distances: inputs.relative.map_or(0, |(_, count)| count), sinks })
    }
}

/// Returns the address of a row of a value.
fn row_of(value: &DeviceValue, row: usize) -> Result<KernelArgument, Error> {
    value.buffer.argument(row * value.width() * value.dtype.size())
}

/// Some rows of one chunk.
struct AttendPart {
    slot: usize,
    /// The first row.
    first: usize,
    /// Positions of the slot, those of the chunk included.
    end: usize,
    /// The positions that each row sees.
    seen: Vec<Range<usize>>,
}

/// A part with its memory.
struct PlacedPart<'a> {
    part: &'a AttendPart,
    memory: &'a Attention,
    seen: SeenPositions,
    scores: KernelArgument,
    gates: KernelArgument,
    worth: KernelArgument,
}

impl PlacedPart<'_> {
    fn rows(&self) -> usize {
        self.part.seen.len()
    }
}

/// Inputs, output and sizes that all parts of a step share.
struct AttendCall<'a, 'c> {
    rule: &'a Attend,
    ctx: &'a Ctx<'c>,
    q: &'a DeviceValue,
    y: &'a DeviceValue,
    sinks: Option<&'a DeviceBuffer>,
    slopes: Option<&'a DeviceBuffer>,
    of_rows: RowValues,
}

/// Memory for the parts of a group.
struct PartBuffers {
    scores: DeviceBuffer,
    gates: Option<DeviceBuffer>,
    worth: Option<DeviceBuffer>,
}

impl AttendCall<'_, '_> {
    /// Returns the parts of all chunks, each with as many rows as have their scores held at once.
    fn parts(&self) -> Vec<AttendPart> {
        let mut parts = Vec::new();
        for ChunkRows { slot, rows, start, mask, .. } in self.ctx.chunks() {
            let end = start + rows.len();
            let seen: Vec<Range<usize>> =
                (*start..end).map(|position| self.rule.reach.seen(mask, position)).collect();
            let oldest = seen.iter().map(|range| range.start).min().unwrap_or(end);
            let batch = (SCORES / (self.rule.sizes.heads * (end - oldest)).max(1)).max(1);
            for (n, seen) in seen.chunks(batch).enumerate() {
                let first = rows.start + n * batch;
                let seen = seen.to_vec();
                parts.push(AttendPart { slot: *slot, first, end, seen });
            }
        }
        parts
    }

    /// Returns the keys and values of a part, which have to be what its rows see.
    fn memory(&self, part: &AttendPart) -> Result<&Attention, Error> {
        let ctx = self.ctx;
        let sizes = self.rule.sizes;
        let Memory::Attention(memory) = ctx.memory(part.slot)? else {
            return Err(ctx.error("its state is of another kind"));
        };
        if memory.keys.end() != part.end
            || memory.values.end() != part.end
            || memory.keys.width() != sizes.kv_heads * sizes.key_dim
            || memory.values.width() != sizes.kv_heads * sizes.stored
        {
            return Err(ctx.error("its state does not hold what the step's rows see"));
        }
        Ok(memory)
    }

    /// Returns keys and values that the library can multiply: plain ones, from the first position that is seen.
    fn plain(&self, part: &AttendPart) -> Option<[(&DeviceBuffer, usize, Dtype); 2]> {
        let memory = self.memory(part).ok()?;
        let (base, _) = extent(&part.seen);
        Some([memory.keys.plain_rows(base)?, memory.values.plain_rows(base)?])
    }

    /// True if the library computes a part. Keys that are worth something of their own, values in two halves and sinks
    /// that gate have kernels alone.
    fn is_long(&self, part: &AttendPart) -> bool {
        let gated = self.rule.gated && self.sinks.is_some();
        let unrounded = self.rule.softmax == SoftmaxForm::Unrounded;
        let weighted = self.ctx.device_vector("A").is_some();
        let by_kernels = weighted || self.rule.paired || gated || unrounded;
        self.plain(part).filter(|_| !by_kernels).is_some_and(|[(.., keys), (.., values)]| {
            let dtypes = [self.q.dtype, keys, values, self.y.dtype];
            long_rows::takes(self.ctx, part.seen.len(), &dtypes)
        })
    }

    /// Computes a part by the library after other launches.
    fn attend_long(&self, part: &AttendPart, launches: &mut Vec<KernelParts>) -> Result<(), Error> {
        let AttendSizes { heads, kv_heads, key_dim, stored, value_dim } = self.rule.sizes;
        let memory = self.memory(part)?;
        let queue = self.ctx.queue()?;
        let [(keys, of_keys, dtype), (values, of_values, _)] =
            self.plain(part).ok_or_else(|| self.ctx.error("its state has no plain rows"))?;
        queue.launch_parts(&std::mem::take(launches))?;
        let rows = LongRows::new(self.ctx, &part.seen, (heads, kv_heads), dtype)?;
        let queries = HeadVectors::of_rows(&self.q.buffer, part.first, heads, key_dim);
        let keys = HeadVectors { at: of_keys, ..HeadVectors::of_rows(keys, 0, kv_heads, key_dim) };
        rows.score(queries, keys, false)?;
        let relative = self.relative_arguments(part)?;
        rows.finish(self.slopes, relative, self.rule.scale, self.rule.scores)?;
        let none = KernelArgument::from(None::<&DeviceBuffer>);
        let seen = rows.seen;
        let scores = (&rows.scores).into();
        let placed = PlacedPart { part, memory, seen, scores, gates: none, worth: none };
        let mut weights = KernelParts::new("attend_weights");
        weights.push(part.seen.len() * heads, self.weight_arguments(&placed)?);
        queue.launch_parts(&[weights])?;
        let values =
            HeadVectors { at: of_values, ..HeadVectors::of_rows(values, 0, kv_heads, stored) };
        rows.sum(values, HeadVectors::of_rows(&self.y.buffer, part.first, heads, value_dim))
    }

    /// Computes the parts of a group after other launches.
    fn attend(&self, group: &[AttendPart], launches: &mut Vec<KernelParts>) -> Result<(), Error> {
        let queue = self.ctx.queue()?;
        let AttendSizes { heads, kv_heads, value_dim, .. } = self.rule.sizes;
        let ranges: Vec<&[Range<usize>]> = group.iter().map(|part| &part.seen[..]).collect();
        let (_ranges, seen) = SeenPositions::of_parts(queue, &ranges)?;
        let buffers = self.buffers(group, &seen)?;
        let parts = self.placed(group, &seen, &buffers)?;
        if buffers.worth.is_some() {
            launches.push(self.salience(&parts)?);
        }
        let [mut scores, mut weights, mut values] =
            ["attend_scores", "attend_weights", "attend_values"].map(KernelParts::new);
        let batches = kv_heads * (heads / kv_heads).div_ceil(SCORE_HEADS);
        for part in &parts {
            let queries = part.rows() * heads;
            let tiles = score_tiles(part.seen.span);
            scores.push(part.rows() * batches * tiles, self.score_arguments(part)?);
            weights.push(queries, self.weight_arguments(part)?);
            values.push(queries * value_dim.div_ceil(COLUMNS), self.value_arguments(part)?);
        }
        launches.extend([scores, weights, values]);
        queue.launch_parts(&std::mem::take(launches))
    }

    /// Allocates the memory of a group.
    fn buffers(&self, group: &[AttendPart], seen: &[SeenPositions]) -> Result<PartBuffers, Error> {
        let queue = self.ctx.queue()?;
        let sizes = self.rule.sizes;
        let queries: usize = group.iter().map(|part| part.seen.len() * sizes.heads).sum();
        let pairs = group.iter().zip(seen);
        let scores: usize =
            pairs.map(|(part, seen)| part.seen.len() * sizes.heads * seen.span).sum();
        let gated = self.rule.gated && self.sinks.is_some();
        let worth: usize = seen.iter().map(|seen| sizes.kv_heads * seen.span).sum();
        let weighted = self.ctx.device_vector("A").is_some();
        Ok(PartBuffers {
            scores: queue.allocate(4 * scores)?,
            gates: gated.then(|| queue.allocate(4 * queries)).transpose()?,
            worth: weighted.then(|| queue.allocate(4 * worth)).transpose()?,
        })
    }

    /// Gives each part of a group its memory.
    fn placed<'a>(
        &'a self,
        group: &'a [AttendPart],
        seen: &[SeenPositions],
        buffers: &PartBuffers,
    ) -> Result<Vec<PlacedPart<'a>>, Error> {
        let mut scores = 0;
        let mut queries = 0;
        let mut keys = 0;
        let placed = group.iter().zip(seen).map(|(part, seen)| {
            let placed = PlacedPart {
                part,
                memory: self.memory(part)?,
                seen: *seen,
                scores: buffers.scores.argument(4 * scores)?,
                gates: address_of(buffers.gates.as_ref(), queries)?,
                worth: address_of(buffers.worth.as_ref(), keys)?,
            };
            let part_queries = part.seen.len() * self.rule.sizes.heads;
            queries += part_queries;
            scores += part_queries * seen.span;
            keys += self.rule.sizes.kv_heads * seen.span;
            Ok(placed)
        });
        placed.collect()
    }

    /// Returns the launch that computes what keys are worth by their values.
    fn salience(&self, parts: &[PlacedPart<'_>]) -> Result<KernelParts, Error> {
        let ctx = self.ctx;
        let AttendSizes { kv_heads, .. } = self.rule.sizes;
        let a = ctx.device_vector("A");
        let bias = ctx.device_vector("bias");
        let weight = ctx.device_matrix("weight")?;
        let mut launch = KernelParts::new("key_salience");
        for part in parts {
            let (cache, first) = part.memory.values.cache()?;
            let mut arguments = cache.list.to_vec();
            let SeenPositions { base, span, .. } = part.seen;
            arguments.extend([first, base, span as u32].map(KernelArgument::from));
            arguments.extend::<[KernelArgument; 8]>([
                (&weight.buffer).into(),
                weight.form.into(),
                weight.factor.into(),
                bias.into(),
                a.into(),
                index(ctx, weight.inputs)?.into(),
                self.y.dtype.into(),
                part.worth,
            ]);
            launch.push(kv_heads * span, arguments);
        }
        Ok(launch)
    }

    fn score_arguments(&self, part: &PlacedPart<'_>) -> Result<Vec<KernelArgument>, Error> {
        let ctx = self.ctx;
        let rule = self.rule;
        let sizes = self.rule.sizes;
        let (cache, first) = part.memory.keys.cache()?;
        let mut arguments: Vec<KernelArgument> = vec![
            (&*self.q.buffer).into(),
            self.q.dtype.into(),
            index(ctx, part.part.first)?.into(),
            index(ctx, sizes.heads)?.into(),
            index(ctx, sizes.kv_heads)?.into(),
            index(ctx, sizes.key_dim)?.into(),
        ];
        arguments.extend(cache.list);
        arguments.push(first.into());
        arguments.extend(part.seen.arguments());
        arguments.push(self.slopes.into());
        arguments.extend(self.relative_arguments(part.part)?);
        arguments.extend::<[KernelArgument; 4]>([
            rule.scale.into(),
            rounding_argument(rule.scores),
            self.y.dtype.into(),
            part.scores,
        ]);
        Ok(arguments)
    }

    /// Returns the numbers by distance of the rows of a part.
    fn relative_arguments(&self, part: &AttendPart) -> Result<[KernelArgument; 3], Error> {
        let RowValues { relative, distances, .. } = &self.of_rows;
        let Some(relative) = relative else { return Ok(no_relative()) };
        let first = row_of(relative, part.first)?;
        Ok([first, relative.dtype.into(), index(self.ctx, *distances)?.into()])
    }

    /// Returns the sinks of the rows of a part.
    fn sink_arguments(&self, part: &AttendPart) -> Result<[KernelArgument; 3], Error> {
        let Some(sinks) = &self.of_rows.sinks else {
            return Ok([self.sinks.into(), Dtype::F32.into(), 0.into()]);
        };
        let first = row_of(sinks, part.first)?;
        Ok([first, sinks.dtype.into(), index(self.ctx, self.rule.sizes.heads)?.into()])
    }

    fn weight_arguments(&self, part: &PlacedPart<'_>) -> Result<Vec<KernelArgument>, Error> {
        let ctx = self.ctx;
        let rule = self.rule;
        let sizes = self.rule.sizes;
        let mut arguments = vec![part.scores, index(ctx, sizes.heads)?.into()];
        arguments.extend(part.seen.arguments());
        let limit = rule.keep.unwrap_or(usize::MAX).min(part.seen.span);
        arguments.push(rule.softcap.unwrap_or(0.0).into());
        arguments.extend(self.sink_arguments(part.part)?);
        arguments.extend::<[KernelArgument; 7]>([
            rule.gated.into(),
            softmax_word(rule.softmax).into(),
            self.y.dtype.into(),
            part.gates,
            part.worth,
            index(ctx, sizes.kv_heads)?.into(),
            index(ctx, limit)?.into(),
        ]);
        Ok(arguments)
    }

    fn value_arguments(&self, part: &PlacedPart<'_>) -> Result<Vec<KernelArgument>, Error> {
        let ctx = self.ctx;
        let sizes = self.rule.sizes;
        let (cache, first) = part.memory.values.cache()?;
        let mut arguments: Vec<KernelArgument> = vec![
            part.scores,
            index(ctx, sizes.heads)?.into(),
            index(ctx, sizes.kv_heads)?.into(),
            index(ctx, sizes.value_dim)?.into(),
            index(ctx, sizes.stored)?.into(),
        ];
        arguments.extend(cache.list);
        arguments.push(first.into());
        arguments.extend(part.seen.arguments());
        arguments.extend::<[KernelArgument; 4]>([
            part.gates,
            (&*self.y.buffer).into(),
            self.y.dtype.into(),
            index(ctx, part.part.first)?.into(),
        ]);
        Ok(arguments)
    }
}

/// Returns the address of a number in a buffer; null if there is no buffer.
fn address_of(buffer: Option<&DeviceBuffer>, number: usize) -> Result<KernelArgument, Error> {
    buffer.map_or(Ok(None::<&DeviceBuffer>.into()), |buffer| buffer.argument(4 * number))
}
