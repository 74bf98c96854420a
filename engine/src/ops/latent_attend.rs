//! `latent_attend`: attention whose keys and values are expanded from a latent.
//!
//! The expansion is rounded as the reference's own is, where it multiplies every cached latent
//! again in every step (`expand_kv` of transformers). A row's expansion depends on
//! nothing but the row, so it is made once and kept beside the state.

use std::collections::BTreeMap;
use std::ops::Range;

use super::attend::{AttendReach, AttendWindow, BothWays};
use super::{Args, Ctx, Kernel, Kernels};
use crate::Error;
use crate::kernels::attention::{
    self, AttendBlock, AttentionParams, BLOCK_QUERIES, CachedHead, Query, ScoreRounding,
    SoftmaxForm,
};
use crate::kernels::matmul::matmul;
use crate::kernels::tokens::round_rows;
use crate::masks::SequenceMask;
use crate::states::Memory;
use crate::states::latent::Latent;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("latent_attend", LatentAttend::prepare);
}

/// Sizes of the parts of a head.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadSizes {
    pub(super) heads: usize,
    /// Of the key, expanded from the latent.
    pub(super) nope: usize,
    /// The part of a key that all heads share.
    pub(super) shared: usize,
    pub(super) value: usize,
    /// Numbers of a latent.
    pub(super) rank: usize,
}

impl HeadSizes {
    /// Returns the sizes of a node, whose weight has to expand its latents.
    fn of(args: &Args<'_>) -> Result<Self, Error> {
        let &[heads, size] = args.input(0)? else {
            return Err(args.error("a query has two axes, heads and head size"));
        };
        let rank = args.input(1)?.iter().product();
        let shared = args.input(2)?.iter().product();
        let value = args.count("v_dim")?;
        let sizes = Self { heads, nope: size.saturating_sub(shared), shared, value, rank };
        let weight = args.weight("weight");
        if shared > size || weight != Some(&[sizes.width(), rank]) || sizes.width() == 0 {
            return Err(args.error(format!(
                "a weight {:?} does not expand a latent of {rank} to {heads} heads of {} and {value}",
                weight.unwrap_or_default(),
                sizes.nope
            )));
        }
        args.expect_output(heads * value)?;
        Ok(sizes)
    }

    /// Returns the numbers that a latent is expanded to.
    pub(super) fn width(&self) -> usize {
        self.heads * (self.nope + self.value)
    }
}

/// One head and some rows of one chunk.
struct LatentTask<'a> {
    memory: &'a Latent,
    mask: &'a SequenceMask,
    head: usize,
    rows: Range<usize>,
    /// Position of the first row.
    start: usize,
    /// The row that selects the keys, if only some positions are keys.
    keys: Option<usize>,
}

/// The factor on scores, the sizes of heads, and the positions that a query sees.
pub(super) struct LatentAttend {
    pub(super) scale: f32,
    pub(super) sizes: HeadSizes,
    pub(super) reach: AttendReach,
    /// True if each query sees selected positions, which are the last input.
    pub(super) selects: bool,
}

impl LatentAttend {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let window = args.count_or_null("window")?;
        if window == Some(0) {
            return Err(args.error("a window is at least 1 position"));
        }
        let window = window.map(|size| AttendWindow { size, chunked: false });
        let reach = AttendReach { window, both_ways: BothWays::No };
        if !reach.fits(args.state()?.window) {
            return Err(args.error("it would see more than its state keeps"));
        }
        let sizes = HeadSizes::of(args)?;
        if !args.may_have("sinks", sizes.heads) {
            return Err(args.error("there is one sink per head"));
        }
        let selects = args.node().inputs.len() > 3;
        Ok(Self { scale: args.number("scale")?, sizes, reach, selects })
    }
}

impl Kernel for LatentAttend {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let q = ctx.input(0)?;
        let c = ctx.input(1)?;
        let r = ctx.input(2)?;
        let matrix = ctx.matrix("weight")?;
        let weight = matrix.view();
        let sizes = self.sizes;
        let HeadSizes { heads, nope, shared, value, rank } = sizes;
        let sinks = ctx.vector("sinks");
        let width = sizes.width();
        let size = nope + shared;
        let round = ctx.output_dtype(0);
        let rule = AttentionParams {
            key_dim: size,
            value_dim: value,
            scale: self.scale,
            softcap: None,
            round,
            softmax: SoftmaxForm::F32,
            scores: ScoreRounding::Rounded,
            gated: false,
        };
        let selected = if self.selects { Some(ctx.input(3)?) } else { None };
        let c = c.view();
        let r = r.view();
        ctx.observe_cached(0, &c);
        ctx.observe_cached(1, &r);
        let how = ctx.rounding("weight");
        let activation = ctx.activation();
        for chunk in ctx.chunks() {
            let wrong = ctx.error("its state does not hold latents of this shape");
            let Memory::Latent(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
            if memory.latent.width() != rank
                || memory.shared.width() != shared
                || memory.latent.end() != chunk.start
            {
                return Err(wrong);
            }
            memory.latent.append(&c[chunk.rows.start * rank..chunk.rows.end * rank]);
            memory.shared.append(&r[chunk.rows.start * shared..chunk.rows.end * shared]);
            memory.rewind(round, width, chunk.start);
            // What the state keeps is expanded, not what came in: they differ if it is narrower.
            let mut missing = memory.latent.tail(memory.expanded.end());
            let rows = missing.len() / rank.max(1);
            if let Some(how) = how {
                round_rows(how, activation, rank, &mut missing);
            }
            let mut expanded = vec![0.0; rows * width];
            matmul(&missing, rows, &weight, None, round, &mut expanded);
            memory.expanded.append(&expanded);
        }
        let view = q.view();
        let q: &[f32] = &view;
        let picks = selected.as_ref().map(|s| (s.view(), s.width()));
        let picks: Option<SelectedKeys<'_>> =
            picks.as_ref().map(|(view, width)| SelectedKeys { of: view, width: *width });
        let tasks = tasks(ctx, heads, picks)?;
        let keys: BTreeMap<usize, Vec<usize>> = picks.map_or_else(BTreeMap::new, |picks| {
            let selecting = tasks.iter().filter_map(|task| Some((task.keys?, task.start)));
            selecting.map(|(row, position)| (row, picks.of_row(row, position))).collect()
        });
        let inputs = SharedInputs { rule: &rule, sizes, q, reach: self.reach, sinks };
        let blocks: Vec<AttendBlock<'_>> =
            tasks.iter().map(|task| inputs.block(task, &keys)).collect();
        let outputs = attention::attend(&rule, &blocks);
        let out = heads * value;
        let mut y = vec![0.0; view.len() / (heads * size).max(1) * out];
        for (task, part) in tasks.iter().zip(&outputs) {
            for (row, part) in task.rows.clone().zip(part.chunks_exact(value)) {
                y[row * out + task.head * value..][..value].copy_from_slice(part);
            }
        }
        drop((blocks, tasks));
        ctx.set(0, y)
    }
}

/// Returns a task for each head and each block of rows, or each row that sees positions of its own.
fn tasks<'a>(
    ctx: &'a Ctx<'_>,
    heads: usize,
    picks: Option<SelectedKeys<'_>>,
) -> Result<Vec<LatentTask<'a>>, Error> {
    let mut tasks = Vec::new();
    for chunk in ctx.chunks() {
        let Memory::Latent(memory) = ctx.memory(chunk.slot)? else {
            return Err(ctx.error("its state is of another kind"));
        };
        let mask = &chunk.mask;
        let size = match picks {
            Some(_) => BLOCK_QUERIES,
            None => attention::rows_of_block(chunk.rows.len(), heads, 1),
        };
        for from in chunk.rows.clone().step_by(size) {
            let rows = from..chunk.rows.end.min(from + size);
            let start = chunk.start + from - chunk.rows.start;
            match picks {
                // Each row sees positions of its own.
                Some(picks) if start + rows.len() > picks.width => {
                    for (n, row) in rows.enumerate() {
                        let of_row = row..row + 1;
                        let start = start + n;
                        let keys = Some(row);
                        tasks.extend(head_tasks(memory, mask, heads, of_row, start, keys));
                    }
                }
                // Where all positions are selected, there is nothing to leave out.
                _ => tasks.extend(head_tasks(memory, mask, heads, rows, start, None)),
            }
        }
    }
    Ok(tasks)
}

/// Returns a task for each head. `start` is the position of the first row, and `keys` the row that selects the keys.
fn head_tasks<'a>(
    memory: &'a Latent,
    mask: &'a SequenceMask,
    heads: usize,
    rows: Range<usize>,
    start: usize,
    keys: Option<usize>,
) -> impl Iterator<Item = LatentTask<'a>> {
    (0..heads).map(move |head| LatentTask { memory, mask, head, rows: rows.clone(), start, keys })
}

/// Positions that each row sees, ascending; those below 0 are none.
#[derive(Debug, Clone, Copy)]
struct SelectedKeys<'a> {
    of: &'a [f32],
    width: usize,
}

impl SelectedKeys<'_> {
    /// Returns the positions that a row at `position` sees.
    fn of_row(&self, row: usize, position: usize) -> Vec<usize> {
        let seen = self.of[row * self.width..][..self.width].iter();
        seen.filter(|p| **p >= 0.0).map(|p| *p as usize).filter(|p| *p <= position).collect()
    }
}

/// The inputs and parameters that all tasks share.
struct SharedInputs<'a> {
    rule: &'a AttentionParams,
    sizes: HeadSizes,
    q: &'a [f32],
    reach: AttendReach,
    sinks: Option<&'a [f32]>,
}

impl<'a> SharedInputs<'a> {
    /// Returns the queries of a task, and the columns of the keys and values that they see.
    fn block(
        &self,
        task: &LatentTask<'a>,
        selected: &'a BTreeMap<usize, Vec<usize>>,
    ) -> AttendBlock<'a> {
        let HeadSizes { heads, nope, value, .. } = self.sizes;
        let column = task.head * (nope + value);
        let Latent { expanded, shared, .. } = task.memory;
        let selected = task.keys.and_then(|row| selected.get(&row));
        let head = CachedHead {
            keys: [expanded.columns(column, nope), shared.columns(0, shared.width())],
            values: [expanded.columns(column + nope, value), expanded.columns(0, 0)],
            selected: selected.map(Vec::as_slice),
        };
        let size = self.rule.key_dim;
        let sink = self.sinks.map(|sinks| sinks[task.head]);
        let rows = task.rows.clone().enumerate();
        let queries = rows.filter_map(|(n, row)| {
            let at = (row * heads + task.head) * size;
            // Selected keys are those of models without packed documents.
            let seen = match selected {
                Some(selected) => 0..selected.len(),
                None => self.reach.seen(task.mask, task.start + n),
            };
            let query = Query { q: &self.q[at..at + size], sink, ..Query::default() };
            // A row that sees nothing gives zeros.
            (!seen.is_empty()).then_some(Query { from: seen.start, to: seen.end, ..query })
        });
        AttendBlock { head, queries: queries.collect() }
    }
}
