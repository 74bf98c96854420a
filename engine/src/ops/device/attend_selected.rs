//! `attend` to selected positions on a device. The heads of a group, which see the same positions, are a row of their own.

use crate::Error;
use crate::device::{DeviceBuffer, KernelArgument, KernelParts};
use crate::ops::Ctx;
use crate::ops::attend::{Attend, AttendSizes};
use crate::ops::device::index;
use crate::ops::device::scores::{COLUMNS, SCORE_HEADS, SCORES, score_groups, score_tiles};
use crate::ops::device::seen::{PlainWeights, rounding_argument};
use crate::ops::row_scores::Selection;
use crate::states::Memory;
use crate::states::attention::Attention;
use crate::value::DeviceValue;

/// Inputs, output and sizes that all parts of a step share.
pub(super) struct SelectedCall<'a, 'c> {
    rule: &'a Attend,
    ctx: &'a Ctx<'c>,
    q: &'a DeviceValue,
    y: &'a DeviceValue,
    /// Numbers of blocks, `[rows, groups, count]`.
    chosen: DeviceValue,
    selection: Selection,
}

/// Some rows of one chunk.
struct SelectedPart {
    slot: usize,
    /// The first row of the step.
    first: usize,
    rows: usize,
    /// Position of the first row.
    start: usize,
    /// The most positions that a row sees.
    span: usize,
}

/// A part with its memory.
struct PlacedSelection<'a> {
    part: &'a SelectedPart,
    memory: &'a Attention,
    picked: KernelArgument,
    seen: KernelArgument,
    scores: KernelArgument,
}

impl<'a, 'c> SelectedCall<'a, 'c> {
    pub(super) fn new(
        rule: &'a Attend,
        ctx: &'a Ctx<'c>,
        (q, y): (&'a DeviceValue, &'a DeviceValue),
        (chosen, selection): (usize, Selection),
    ) -> Result<Self, Error> {
        Ok(Self { rule, ctx, q, y, chosen: ctx.device_input(chosen)?, selection })
    }

    /// Computes the output of all rows.
    pub(super) fn attend(&self) -> Result<(), Error> {
        let mut parts = Vec::new();
        for chunk in self.ctx.chunks() {
            let end = chunk.start + chunk.rows.len();
            let span = self.selection.count.saturating_mul(self.selection.block).min(end);
            let batch = (SCORES / (self.rule.sizes.heads * span).max(1)).max(1);
            for from in (0..chunk.rows.len()).step_by(batch) {
                let rows = batch.min(chunk.rows.len() - from);
                let first = chunk.rows.start + from;
                let start = chunk.start + from;
                parts.push(SelectedPart { slot: chunk.slot, first, rows, start, span });
            }
        }
        for group in score_groups(&parts, |part| part.rows * self.rule.sizes.heads * part.span) {
            self.attend_group(group)?;
        }
        Ok(())
    }

    /// Computes the parts of a group.
    fn attend_group(&self, group: &[SelectedPart]) -> Result<(), Error> {
        let queue = self.ctx.queue()?;
        let AttendSizes { heads, kv_heads, value_dim, .. } = self.rule.sizes;
        let rows: usize = group.iter().map(|part| part.rows * self.selection.groups).sum();
        let key_count: usize =
            group.iter().map(|part| part.rows * self.selection.groups * part.span).sum();
        let score_count: usize = group.iter().map(|part| part.rows * heads * part.span).sum();
        let picked = queue.allocate(4 * key_count)?;
        let seen = queue.allocate(8 * rows)?;
        let scores = queue.allocate(4 * score_count)?;
        let parts = self.placed(group, [&picked, &seen, &scores])?;
        let [mut pick, mut score, mut weigh, mut sum] =
            ["selected_keys", "selected_scores", "attend_weights", "selected_values"]
                .map(KernelParts::new);
        let batches = kv_heads * (heads / kv_heads).div_ceil(SCORE_HEADS);
        for part in &parts {
            let &SelectedPart { rows, span, .. } = part.part;
            pick.push_each(rows * self.selection.groups, self.pick_arguments(part)?);
            score.push(rows * batches * score_tiles(span), self.score_arguments(part)?);
            weigh.push(rows * heads, self.weight_arguments(part)?);
            sum.push(rows * heads * value_dim.div_ceil(COLUMNS), self.value_arguments(part)?);
        }
        queue.launch_parts(&[pick, score, weigh, sum])
    }

    /// Gives each part of a group its memory.
    fn placed<'p>(
        &'p self,
        group: &'p [SelectedPart],
        [picked, seen, scores]: [&DeviceBuffer; 3],
    ) -> Result<Vec<PlacedSelection<'p>>, Error> {
        let mut placed = Vec::new();
        let mut rows = 0;
        let mut keys = 0;
        let mut numbers = 0;
        for part in group {
            placed.push(PlacedSelection {
                part,
                memory: self.memory(part)?,
                picked: picked.argument(4 * keys)?,
                seen: seen.argument(8 * rows)?,
                scores: scores.argument(4 * numbers)?,
            });
            rows += part.rows * self.selection.groups;
            keys += part.rows * self.selection.groups * part.span;
            numbers += part.rows * self.rule.sizes.heads * part.span;
        }
        Ok(placed)
    }

    /// Returns the keys and values of a part, which have to be what its rows see.
    fn memory(&self, part: &SelectedPart) -> Result<&Attention, Error> {
        let AttendSizes { kv_heads, key_dim, value_dim, .. } = self.rule.sizes;
        let Memory::Attention(memory) = self.ctx.memory(part.slot)? else {
            return Err(self.ctx.error("its state is of another kind"));
        };
        let end = part.start + part.rows;
        if memory.keys.end() < end
            || memory.values.end() < end
            || memory.keys.width() != kv_heads * key_dim
            || memory.values.width() != kv_heads * value_dim
        {
            return Err(self.ctx.error("its state does not hold what the step's rows see"));
        }
        Ok(memory)
    }

    fn number(&self, size: usize) -> Result<KernelArgument, Error> {
        index(self.ctx, size).map(KernelArgument::from)
    }

    fn pick_arguments(&self, part: &PlacedSelection<'_>) -> Result<Vec<KernelArgument>, Error> {
        Ok(vec![
            (&*self.chosen.buffer).into(),
            self.chosen.dtype.into(),
            self.number(part.part.first)?,
            self.number(part.part.rows)?,
            self.number(self.selection.groups)?,
            self.number(self.selection.count)?,
            self.number(self.selection.block)?,
            self.number(part.part.start)?,
            self.number(part.part.span)?,
            part.picked,
            part.seen,
        ])
    }

    fn score_arguments(&self, part: &PlacedSelection<'_>) -> Result<Vec<KernelArgument>, Error> {
        let (cache, first) = part.memory.keys.cache()?;
        let mut arguments = vec![
            (&*self.q.buffer).into(),
            self.q.dtype.into(),
            self.number(part.part.first)?,
            self.number(self.selection.groups)?,
            self.number(self.rule.sizes.heads / self.selection.groups)?,
            self.number(self.rule.sizes.kv_heads / self.selection.groups)?,
            self.number(self.rule.sizes.key_dim)?,
        ];
        arguments.extend(cache.list);
        arguments.extend::<[KernelArgument; 8]>([
            first.into(),
            part.seen,
            part.picked,
            self.number(part.part.span)?,
            self.rule.scale.into(),
            rounding_argument(self.rule.scores),
            self.y.dtype.into(),
            part.scores,
        ]);
        Ok(arguments)
    }

    fn weight_arguments(&self, part: &PlacedSelection<'_>) -> Result<Vec<KernelArgument>, Error> {
        let weights = PlainWeights {
            scores: part.scores,
            heads: self.number(self.rule.sizes.heads / self.selection.groups)?,
            seen: [part.seen, 0.into(), self.number(part.part.span)?],
            softcap: self.rule.softcap,
            sinks: None,
            softmax: self.rule.softmax,
            dtype: self.y.dtype,
        };
        Ok(weights.arguments())
    }

    fn value_arguments(&self, part: &PlacedSelection<'_>) -> Result<Vec<KernelArgument>, Error> {
        let (cache, first) = part.memory.values.cache()?;
        let mut arguments = vec![
            part.scores,
            self.number(self.selection.groups)?,
            self.number(self.rule.sizes.heads / self.selection.groups)?,
            self.number(self.rule.sizes.kv_heads / self.selection.groups)?,
            self.number(self.rule.sizes.value_dim)?,
        ];
        arguments.extend(cache.list);
        arguments.extend::<[KernelArgument; 7]>([
            first.into(),
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
