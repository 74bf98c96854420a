//! `attend` and `attend_to` on a device.

use std::ops::Range;

use crate::Error;
use crate::device::{DeviceBuffer, DeviceQueue, KernelArgument};
use crate::kernels::attention::ScoreRounding;
use crate::ops::attend::Attend;
use crate::ops::device::index;
use crate::ops::{Args, ChunkRows, Ctx, Kernel, Kernels};
use crate::states::Memory;
use crate::states::attention::Attention;
use crate::value::DeviceValue;

/// Scores that are held at once; more rows of a chunk go in turn.
pub(super) const SCORES: usize = 1 << 26;

/// The positions that some rows see.
pub(super) struct SeenPositions {
    /// Two numbers for each row: the first position, and one past the last.
    pub(super) ranges: DeviceBuffer,
    /// The first position that any row sees.
    pub(super) base: u32,
    /// Positions from there to the last that any row sees.
    pub(super) span: usize,
}

impl SeenPositions {
    pub(super) fn new(queue: &DeviceQueue, seen: &[Range<usize>]) -> Result<Self, Error> {
        let numbers: Vec<u32> =
            seen.iter().flat_map(|range| [range.start as u32, range.end as u32]).collect();
        let base = seen.iter().map(|range| range.start).min().unwrap_or(0);
        let end = seen.iter().map(|range| range.end).max().unwrap_or(0);
        let ranges = queue.upload(bytemuck::cast_slice(&numbers))?;
        Ok(Self { ranges, base: base as u32, span: end.saturating_sub(base) })
    }

    /// Returns the arguments of kernels.
    pub(super) fn arguments(&self) -> [KernelArgument; 3] {
        [(&self.ranges).into(), self.base.into(), (self.span as u32).into()]
    }
}

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("attend", |args| DeviceAttend::prepare(args, true));
    kernels.prepared("attend_to", |args| DeviceAttend::prepare(args, false));
}

struct DeviceAttend {
    rule: Attend,
    /// True if keys and values are added to the state first.
    keeps: bool,
}

impl DeviceAttend {
    fn prepare(args: &Args<'_>, keeps: bool) -> Result<Self, Error> {
        Ok(Self { rule: Attend::prepare(args)?, keeps })
    }
}

/// Sizes that all launches share.
struct AttendSizes {
    heads: usize,
    kv_heads: usize,
    key_dim: usize,
    /// Numbers of a value as it is cached.
    stored: usize,
    value_dim: usize,
}

/// Adds the step's keys and values to the state.
fn keep(ctx: &mut Ctx<'_>) -> Result<(), Error> {
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
            history.append_value(&x, chunk.rows.start, chunk.rows.len())?;
        }
    }
    Ok(())
}

impl Kernel for DeviceAttend {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        if self.keeps {
            keep(ctx)?;
        }
        let rule = &self.rule;
        let queue = ctx.queue()?;
        let q = ctx.device_input(0)?;
        let &[_, heads, key_dim] = q.shape.as_slice() else {
            return Err(ctx.error("a query has two axes, heads and head size"));
        };
        let state = ctx.state().ok_or_else(|| ctx.error("it has no state"))?;
        let [keys, values] = state.parts.as_slice() else {
            return Err(ctx.error("its state has keys and values"));
        };
        let (&[kv_heads, size], &[v_heads, stored]) =
            (keys.shape.as_slice(), values.shape.as_slice())
        else {
            return Err(ctx.error("its state holds heads"));
        };
        if kv_heads == 0
            || heads % kv_heads != 0
            || v_heads != kv_heads
            || size != key_dim
            || (rule.paired && !kv_heads.is_multiple_of(2))
        {
            return Err(ctx.error(format!(
                "{heads} query heads of {key_dim}, {kv_heads} key heads of {size} and {v_heads} value heads do not fit"
            )));
        }
        if state
            .window
            .is_some_and(|kept| rule.reach.window.is_none_or(|window| window.size > kept))
        {
            return Err(ctx.error("it would see more than its state keeps"));
        }
        let sinks = ctx.device_vector("sinks");
        if sinks.is_some_and(|s| s.bytes() != 4 * heads)
            || rule.slopes.as_ref().is_some_and(|s| s.len() != heads)
            || rule.reach.window.is_some_and(|w| w.size == 0)
        {
            return Err(
                ctx.error("it has a sink and a slope per head, if any, and a window of at least 1")
            );
        }
        let slopes = rule.slopes.as_ref().map(|s| queue.upload(bytemuck::cast_slice(s)));
        let slopes = slopes.transpose()?;
        let value_dim = if rule.paired { 2 * stored } else { stored };
        let sizes = AttendSizes { heads, kv_heads, key_dim, stored, value_dim };
        let y = ctx.device_output(0, q.rows())?;
        if y.width() != heads * value_dim {
            return Err(ctx.error(format!("{heads} heads of {value_dim} are no {:?}", y.shape)));
        }
        for ChunkRows { slot, rows, start, mask, .. } in ctx.chunks() {
            let end = start + rows.len();
            let seen: Vec<Range<usize>> =
                (*start..end).map(|position| rule.reach.seen(mask, position)).collect();
            let oldest = seen.iter().map(|range| range.start).min().unwrap_or(end);
            let batch = (SCORES / (heads * (end - oldest)).max(1)).max(1);
            for (n, seen) in seen.chunks(batch).enumerate() {
                let first = rows.start + n * batch;
                let part = AttendPart { slot: *slot, first, end, seen };
                self.attend(ctx, &part, &sizes, (&q, &y), (sinks, slopes.as_ref()))?;
            }
        }
        ctx.set_device(0, y)
    }
}

/// Rows of one chunk.
struct AttendPart<'a> {
    slot: usize,
    /// The first row.
    first: usize,
    /// Positions of the slot, those of the chunk included.
    end: usize,
    /// The positions that each row sees.
    seen: &'a [Range<usize>],
}

impl DeviceAttend {
    /// Computes what keys are worth by their values; none if the attention has no such weights.
    fn salience(
        &self,
        ctx: &Ctx<'_>,
        memory: &Attention,
        seen: &SeenPositions,
        sizes: &AttendSizes,
        y: &DeviceValue,
    ) -> Result<Option<DeviceBuffer>, Error> {
        let Some(a) = ctx.device_vector("A") else { return Ok(None) };
        let (queue, weight, bias) =
            (ctx.queue()?, ctx.device_matrix("weight")?, ctx.device_vector("bias"));
        let &AttendSizes { kv_heads, stored, .. } = sizes;
        if self.rule.keep.is_none() {
            return Err(ctx.error("it does not say how many keys count"));
        }
        if a.bytes() != 4 * kv_heads
            || weight.outputs != kv_heads
            || weight.inputs != kv_heads * stored
            || bias.is_some_and(|bias| bias.bytes() != 4 * kv_heads)
        {
            return Err(ctx.error("what keys are worth does not follow from values of this shape"));
        }
        let worth = queue.allocate(4 * kv_heads * seen.span)?;
        let (cache, first) = memory.values.cache()?;
        let mut arguments = cache.list.to_vec();
        arguments.extend([first, seen.base, seen.span as u32].map(KernelArgument::from));
        arguments.extend::<[KernelArgument; 8]>([
            (&weight.buffer).into(),
            weight.form.into(),
            weight.factor.into(),
            bias.into(),
            a.into(),
            index(ctx, weight.inputs)?.into(),
            y.dtype.into(),
            (&worth).into(),
        ]);
        queue.launch("key_salience", kv_heads * seen.span, &arguments)?;
        Ok(Some(worth))
    }

    /// Computes some rows of one chunk.
    fn attend(
        &self,
        ctx: &Ctx<'_>,
        part: &AttendPart<'_>,
        sizes: &AttendSizes,
        (q, y): (&DeviceValue, &DeviceValue),
        (sinks, slopes): (Option<&DeviceBuffer>, Option<&DeviceBuffer>),
    ) -> Result<(), Error> {
        let (queue, rule) = (ctx.queue()?, &self.rule);
        let &AttendSizes { heads, kv_heads, key_dim, stored, value_dim } = sizes;
        let Memory::Attention(memory) = ctx.memory(part.slot)? else {
            return Err(ctx.error("its state is of another kind"));
        };
        if memory.keys.end() != part.end
            || memory.values.end() != part.end
            || memory.keys.width() != kv_heads * key_dim
            || memory.values.width() != kv_heads * stored
        {
            return Err(ctx.error("its state does not hold what the step's rows see"));
        }
        let rows = part.seen.len();
        let seen = SeenPositions::new(queue, part.seen)?;
        let span = seen.span;
        let worth = self.salience(ctx, memory, &seen, sizes, y)?;
        let queries = rows * heads;
        let scores = queue.allocate(queries * span * 4)?;
        let gates = (rule.gated && sinks.is_some()).then(|| queue.allocate(queries * 4));
        let gates = gates.transpose()?;
        let place = seen.arguments();
        let (head_count, kv_count) = (index(ctx, heads)?, index(ctx, kv_heads)?);
        let first_row = index(ctx, part.first)?;
        let count = index(ctx, rows)?;
        let rounding = match rule.scores {
            ScoreRounding::Rounded => 0_u32,
            ScoreRounding::Once => 1,
            ScoreRounding::None => 2,
        };
        let (cache, first) = memory.keys.cache()?;
        let mut arguments: Vec<KernelArgument> = vec![
            (&*q.buffer).into(),
            q.dtype.into(),
            first_row.into(),
            count.into(),
            head_count.into(),
            kv_count.into(),
            index(ctx, key_dim)?.into(),
        ];
        arguments.extend(cache.list);
        arguments.push(first.into());
        arguments.extend(place);
        arguments.extend::<[KernelArgument; 5]>([
            slopes.into(),
            rule.scale.into(),
            rounding.into(),
            y.dtype.into(),
            (&scores).into(),
        ]);
        queue.launch_each("attend_scores", queries * span, &arguments)?;
        let mut arguments: Vec<KernelArgument> = vec![(&scores).into(), head_count.into()];
        arguments.extend(place);
        arguments.extend::<[KernelArgument; 6]>([
            rule.softcap.unwrap_or(0.0).into(),
            sinks.into(),
            rule.gated.into(),
            rule.softmax_rounds.into(),
            y.dtype.into(),
            gates.as_ref().into(),
        ]);
        let most = rule.keep.unwrap_or(usize::MAX).min(span);
        arguments.extend::<[KernelArgument; 3]>([
            worth.as_ref().into(),
            kv_count.into(),
            index(ctx, most)?.into(),
        ]);
        queue.launch("attend_weights", queries, &arguments)?;
        let (cache, first) = memory.values.cache()?;
        let mut arguments: Vec<KernelArgument> = vec![
            (&scores).into(),
            count.into(),
            head_count.into(),
            kv_count.into(),
            index(ctx, value_dim)?.into(),
            index(ctx, stored)?.into(),
        ];
        arguments.extend(cache.list);
        arguments.push(first.into());
        arguments.extend(place);
        arguments.extend::<[KernelArgument; 4]>([
            gates.as_ref().into(),
            (&*y.buffer).into(),
            y.dtype.into(),
            first_row.into(),
        ]);
        queue.launch_each("attend_values", queries * value_dim, &arguments)
    }
}
