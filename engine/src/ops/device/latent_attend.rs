//! `latent_attend` on a device.

use std::ops::Range;

use registry::dtype::Dtype;

use crate::Error;
use crate::device::{DeviceBuffer, KernelArgument, KernelParts};
use crate::kernels::attention::{BLOCK_QUERIES, ScoreRounding, SoftmaxForm};
use crate::ops::device::long_rows::{HeadVectors, LongRows};
use crate::ops::device::round_inputs::rows_for;
use crate::ops::device::scores::{COLUMNS, SCORES, score_groups, score_tiles};
use crate::ops::device::seen::{PlainWeights, SeenPositions, extent, no_relative};
use crate::ops::device::{index, linear, long_rows};
use crate::ops::latent_attend::{HeadSizes, LatentAttend};
use crate::ops::{Args, ChunkRows, Ctx, Kernel, Kernels};
use crate::states::Memory;
use crate::states::latent::Latent;
use crate::states::store::device::RowWrites;
use crate::value::DeviceValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels
        .prepared("latent_attend", |args: &Args<'_>| LatentAttend::prepare(args).map(DeviceLatent));
}

struct DeviceLatent(LatentAttend);

impl Kernel for DeviceLatent {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let q = ctx.device_input(0)?;
        let c = ctx.device_input(1)?;
        let r = ctx.device_input(2)?;
        let sizes = self.0.sizes;
        let heads = sizes.heads;
        let y = ctx.device_output(0, q.rows())?;
        let chosen = self.0.selects.then(|| ctx.device_input(3)).transpose()?;
        if ctx.is_watched() {
            ctx.observe_cached(0, &c.download()?);
            ctx.observe_cached(1, &r.download()?);
        }
        let sinks = ctx.device_vector("sinks");
        expand(ctx, (&c, &r), sizes.width(), &y)?;
        let mut parts = Vec::new();
        for ChunkRows { slot, rows, start, mask, .. } in ctx.chunks() {
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
                let seen: Vec<Range<usize>> =
                    part.clone().map(|row| self.0.reach.seen(mask, start + row)).collect();
                let span = chosen.map_or(extent(&seen).1, DeviceValue::width);
                let batch = (SCORES / (heads * span).max(1)).max(1);
                for (n, seen) in seen.chunks(batch).enumerate() {
                    let from = part.start + n * batch;
                    parts.push(LatentPart {
                        slot: *slot,
                        first: rows.start + from,
                        start: start + from,
                        seen: seen.to_vec(),
                        chosen,
                    });
                }
            }
        }
        let call = LatentCall { scale: self.0.scale, ctx, q: &q, y: &y, sizes, sinks };
        let (long, parts): (Vec<_>, Vec<_>) =
            parts.into_iter().partition(|part| call.is_long(part));
        for part in &long {
            call.attend_long(part)?;
        }
        for group in score_groups(&parts, |part| heads * part.seen.len() * part.span()) {
            call.attend(group)?;
        }
        ctx.set_device(0, y)
    }
}

/// Some rows of one chunk.
struct LatentPart<'a> {
    slot: usize,
    /// The first row of the step.
    first: usize,
    /// Position of the first row.
    start: usize,
    /// The positions that each row sees.
    seen: Vec<Range<usize>>,
    /// The choice of positions, if the rows do not see all of them.
    chosen: Option<&'a DeviceValue>,
}

impl LatentPart<'_> {
    /// Scores of each row and head.
    fn span(&self) -> usize {
        self.chosen.map_or(extent(&self.seen).1, DeviceValue::width)
    }

    /// Returns the number of scores of a head.
    fn numbers(&self) -> usize {
        self.seen.len() * self.span()
    }
}

/// Adds the latents of all chunks to their states, and expands those that are not expanded yet.
fn expand(
    ctx: &mut Ctx<'_>,
    (c, r): (&DeviceValue, &DeviceValue),
    width: usize,
    y: &DeviceValue,
) -> Result<(), Error> {
    let queue = ctx.queue()?;
    let weight = ctx.device_matrix("weight")?;
    let mut writes = RowWrites::default();
    let mut missing = Vec::new();
    for chunk in ctx.chunks() {
        let Memory::Latent(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong_shape()) };
        if memory.latent.width() != c.width()
            || memory.shared.width() != r.width()
            || memory.latent.end() != chunk.start
        {
            return Err(wrong_shape());
        }
        let rows = (chunk.rows.start, chunk.rows.len());
        memory.latent.append_value(c, rows, &mut writes)?;
        memory.shared.append_value(r, rows, &mut writes)?;
        memory.rewind(y.dtype, width, chunk.start);
        missing.push(memory.latent.end() - memory.expanded.end());
    }
    // What the state keeps is expanded, not what came in: they differ if it is narrower.
    let mut copies = RowWrites::default();
    let mut latents = None;
    let mut at = 0;
    for (chunk, rows) in ctx.chunks().iter().zip(&missing) {
        let Memory::Latent(memory) = ctx.memory(chunk.slot)? else { return Err(wrong_shape()) };
        if latents.is_none() {
            let shape = [missing.iter().sum(), c.width()];
            latents = Some(DeviceValue::of(queue, memory.latent.device_dtype()?, &shape)?);
        }
        let latents = latents.as_ref().ok_or_else(wrong_shape)?;
        memory.latent.copy_tail(memory.expanded.end(), latents, at, &mut copies)?;
        at += rows;
    }
    let latents = latents.ok_or_else(wrong_shape)?;
    queue.launch_parts(&[writes.into_launches(), copies.into_launches()].concat())?;
    let products = DeviceValue::of(queue, y.dtype, &[latents.rows(), width])?;
    linear::product(ctx, &*rows_for(ctx, "weight", &latents)?, weight, None, &products)?;
    let mut expanded = RowWrites::default();
    let mut at = 0;
    for (chunk, rows) in ctx.chunks().iter().zip(missing) {
        let Memory::Latent(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong_shape()) };
        memory.expanded.append_value(&products, (at, rows), &mut expanded)?;
        at += rows;
    }
    queue.launch_parts(&expanded.into_launches())
}

/// Returns the error for a state that does not hold the latents of the op.
fn wrong_shape() -> Error {
    Error::Other("the state does not hold latents of this shape".to_owned())
}

/// A part with its memory.
struct PlacedLatent<'a> {
    part: &'a LatentPart<'a>,
    memory: &'a Latent,
    seen: SeenPositions,
    picked: KernelArgument,
    scores: KernelArgument,
}

/// Inputs, output and sizes that all parts of a step share.
struct LatentCall<'a, 'c> {
    scale: f32,
    ctx: &'a Ctx<'c>,
    q: &'a DeviceValue,
    y: &'a DeviceValue,
    sizes: HeadSizes,
    sinks: Option<&'a DeviceBuffer>,
}

impl LatentCall<'_, '_> {
    fn number(&self, size: usize) -> Result<KernelArgument, Error> {
        index(self.ctx, size).map(KernelArgument::from)
    }

    /// Returns what the library can multiply: expanded keys and values, and shared keys, from the first position that is
    /// seen.
    fn plain(&self, part: &LatentPart<'_>) -> Option<[(&DeviceBuffer, usize, Dtype); 2]> {
        let Ok(Memory::Latent(memory)) = self.ctx.memory(part.slot) else { return None };
        let (base, _) = extent(&part.seen);
        Some([memory.expanded.plain_rows(base)?, memory.shared.plain_rows(base)?])
    }

    /// Returns the error for a state whose rows the library cannot multiply.
    fn not_plain(&self) -> Error {
        self.ctx.error("its state has no plain rows")
    }

    /// True if the library computes a part. Rows that see chosen positions have kernels alone.
    fn is_long(&self, part: &LatentPart<'_>) -> bool {
        let plain = self.plain(part).filter(|_| part.chosen.is_none());
        plain.is_some_and(|[(.., expanded), (.., shared)]| {
            let dtypes = [self.q.dtype, expanded, shared, self.y.dtype];
            long_rows::takes(self.ctx, part.seen.len(), &dtypes)
        })
    }

    /// Computes a part by the library.
    fn attend_long(&self, part: &LatentPart<'_>) -> Result<(), Error> {
        let HeadSizes { heads, nope, shared, value, .. } = self.sizes;
        let [(expanded, at, dtype), (shared_keys, shared_at, _)] =
            self.plain(part).ok_or_else(|| self.not_plain())?;
        let rows = LongRows::new(self.ctx, &part.seen, (heads, heads), dtype)?;
        let dim = nope + shared;
        let query = HeadVectors {
            size: nope,
            ..HeadVectors::of_rows(&self.q.buffer, part.first, heads, dim)
        };
        let key = HeadVectors {
            at,
            size: nope,
            ..HeadVectors::of_rows(expanded, 0, heads, nope + value)
        };
        rows.score(query, key, false)?;
        let shared_query = HeadVectors { at: query.at + nope, size: shared, ..query };
        let shared_key =
            HeadVectors { buffer: shared_keys, at: shared_at, row: shared, head: 0, size: shared };
        rows.score(shared_query, shared_key, true)?;
        rows.finish(None, no_relative(), self.scale, ScoreRounding::Rounded)?;
        let Memory::Latent(memory) = self.ctx.memory(part.slot)? else {
            return Err(self.not_plain());
        };
        let none = KernelArgument::from(None::<&DeviceBuffer>);
        let seen = rows.seen;
        let scores = (&rows.scores).into();
        let placed = PlacedLatent { part, memory, seen, picked: none, scores };
        let mut weights = KernelParts::new("attend_weights");
        weights.push(part.seen.len() * heads, self.weight_arguments(&placed)?);
        self.ctx.queue()?.launch_parts(&[weights])?;
        let values = HeadVectors { at: at + nope, size: value, ..key };
        rows.sum(values, HeadVectors::of_rows(&self.y.buffer, part.first, heads, value))
    }

    /// Computes the parts of a group.
    fn attend(&self, group: &[LatentPart<'_>]) -> Result<(), Error> {
        let queue = self.ctx.queue()?;
        let HeadSizes { heads, value, .. } = self.sizes;
        let ranges: Vec<&[Range<usize>]> = group.iter().map(|part| &part.seen[..]).collect();
        let (_ranges, seen) = SeenPositions::of_parts(queue, &ranges)?;
        let chosen = group.iter().filter(|part| part.chosen.is_some());
        let picked = queue.allocate(4 * chosen.map(LatentPart::numbers).sum::<usize>())?;
        let numbers: usize = group.iter().map(LatentPart::numbers).sum();
        let scores = queue.allocate(4 * heads * numbers)?;
        let parts = self.placed(group, &seen, (&picked, &scores))?;
        let [mut pick, mut score, mut weigh, mut sum] =
            ["picked_keys", "latent_scores", "attend_weights", "latent_values"]
                .map(KernelParts::new);
        for part in &parts {
            let rows = part.part.seen.len();
            if let Some(chosen) = part.part.chosen {
                pick.push_each(rows, self.pick_arguments(part, chosen)?);
            }
            score.push(rows * heads * score_tiles(part.seen.span), self.score_arguments(part)?);
            weigh.push(rows * heads, self.weight_arguments(part)?);
            sum.push(rows * heads * value.div_ceil(COLUMNS), self.value_arguments(part)?);
        }
        queue.launch_parts(&[pick, score, weigh, sum])
    }

    /// Gives each part of a group its memory.
    fn placed<'a>(
        &'a self,
        group: &'a [LatentPart<'_>],
        seen: &[SeenPositions],
        (picked, scores): (&DeviceBuffer, &DeviceBuffer),
    ) -> Result<Vec<PlacedLatent<'a>>, Error> {
        let mut picks = 0;
        let mut places = 0;
        let placed = group.iter().zip(seen).map(|(part, seen)| {
            let Memory::Latent(memory) = self.ctx.memory(part.slot)? else {
                return Err(self.ctx.error("its state is of another kind"));
            };
            let numbers = part.numbers();
            let mut seen = *seen;
            let mut place = KernelArgument::from(None::<&DeviceBuffer>);
            if part.chosen.is_some() {
                (seen.base, seen.span) = (0, part.span());
                place = picked.argument(4 * picks)?;
                picks += numbers;
            }
            let scores = scores.argument(4 * places)?;
            places += numbers * self.sizes.heads;
            Ok(PlacedLatent { part, memory, seen, picked: place, scores })
        });
        placed.collect()
    }

    fn pick_arguments(
        &self,
        part: &PlacedLatent<'_>,
        chosen: &DeviceValue,
    ) -> Result<Vec<KernelArgument>, Error> {
        Ok(vec![
            (&*chosen.buffer).into(),
            chosen.dtype.into(),
            self.number(part.part.first)?,
            self.number(part.part.seen.len())?,
            self.number(chosen.width())?,
            self.number(part.part.start)?,
            part.picked,
            part.seen.ranges,
        ])
    }

    fn score_arguments(&self, part: &PlacedLatent<'_>) -> Result<Vec<KernelArgument>, Error> {
        let HeadSizes { heads, nope, shared, value, .. } = self.sizes;
        let (expanded, first) = part.memory.expanded.cache()?;
        let (shared_keys, shared_first) = part.memory.shared.cache()?;
        let [ranges, base, span] = part.seen.arguments();
        Ok(vec![
            (&*self.q.buffer).into(),
            self.q.dtype.into(),
            self.number(part.part.first)?,
            self.number(heads)?,
            self.number(nope)?,
            self.number(shared)?,
            self.number(value)?,
            expanded.list[0],
            expanded.list[1],
            first.into(),
            shared_keys.list[0],
            shared_keys.list[1],
            shared_first.into(),
            ranges,
            part.picked,
            base,
            span,
            self.scale.into(),
            self.y.dtype.into(),
            part.scores,
        ])
    }

    fn weight_arguments(&self, part: &PlacedLatent<'_>) -> Result<Vec<KernelArgument>, Error> {
        let weights = PlainWeights {
            scores: part.scores,
            heads: self.number(self.sizes.heads)?,
            seen: part.seen.arguments(),
            softcap: None,
            sinks: self.sinks,
            softmax: SoftmaxForm::F32,
            dtype: self.y.dtype,
        };
        Ok(weights.arguments())
    }

    fn value_arguments(&self, part: &PlacedLatent<'_>) -> Result<Vec<KernelArgument>, Error> {
        let HeadSizes { heads, nope, value, .. } = self.sizes;
        let (expanded, first) = part.memory.expanded.cache()?;
        let [ranges, base, span] = part.seen.arguments();
        Ok(vec![
            part.scores,
            self.number(heads)?,
            self.number(nope)?,
            self.number(value)?,
            expanded.list[0],
            expanded.list[1],
            first.into(),
            ranges,
            part.picked,
            base,
            span,
            (&*self.y.buffer).into(),
            self.y.dtype.into(),
            self.number(part.part.first)?,
        ])
    }
}
