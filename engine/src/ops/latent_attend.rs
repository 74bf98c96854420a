//! `latent_attend`: attention whose keys and values are expanded from a latent.
//!
//! The expansion is rounded as the reference's own is, where it multiplies every cached latent
//! again in every step (`expand_kv` of transformers). A row's expansion depends on
//! nothing but the row, so it is made once and kept beside the state.

use std::cell::RefCell;

use rayon::prelude::*;

use super::{Args, Ctx, Kernel, Kernels};
use crate::Error;
use crate::kernels::attention::{AttentionParams, Keys, Query, ScoreRounding};
use crate::kernels::matmul::matmul;
use crate::kernels::tokens::round_rows;
use crate::states::Memory;
use crate::states::latent::Latent;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("latent_attend", LatentAttend::prepare);
}

/// Rows of a chunk that one task handles.
const ROWS: usize = 64;

thread_local! {
    static KEYS: RefCell<Keys> = RefCell::default();
}

/// Sizes of the parts of a head.
#[derive(Debug, Clone, Copy)]
struct HeadSizes {
    heads: usize,
    /// Of the key, expanded from the latent.
    nope: usize,
    value: usize,
}

/// One head and some rows of one chunk.
struct LatentTask<'a> {
    memory: &'a Latent,
    head: usize,
    rows: std::ops::Range<usize>,
    /// Position of the first row.
    start: usize,
}

/// The factor on scores, and the size of a value.
pub(super) struct LatentAttend {
    scale: f32,
    value: usize,
}

impl LatentAttend {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        Ok(Self { scale: args.number("scale")?, value: args.count("v_dim")? })
    }
}

impl Kernel for LatentAttend {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let (q, c, r) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
        let weight = ctx.matrix("weight")?;
        let value = self.value;
        let &[_, heads, size] = q.shape() else {
            return Err(ctx.error("a query has two axes, heads and head size"));
        };
        let (rank, shared) = (c.width(), r.width());
        let nope = size.saturating_sub(shared);
        let width = heads * (nope + value);
        if shared > size || weight.inputs != rank || weight.outputs != width || width == 0 {
            return Err(ctx.error(format!(
            "a weight [{}, {}] does not expand a latent of {rank} to {heads} heads of {nope} and {value}",
            weight.outputs, weight.inputs
        )));
        }
        let sizes = HeadSizes { heads, nope, value };
        let round = ctx.output_dtype(0);
        let rule = AttentionParams {
            key_dim: size,
            value_dim: value,
            scale: self.scale,
            softcap: None,
            round,
            softmax_rounds: false,
            scores: ScoreRounding::Rounded,
            gated: false,
        };
        let selected = if ctx.node().inputs.len() > 3 { Some(ctx.input(3)?) } else { None };
        let (c, r) = (c.view(), r.view());
        ctx.observe_cached(0, &c);
        ctx.observe_cached(1, &r);
        let (how, activation) = (ctx.rounding("weight"), ctx.activation());
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
            let mut made = vec![0.0; rows * width];
            matmul(&missing, rows, &weight, None, round, &mut made);
            memory.expanded.append(&made);
        }
        let mut tasks = Vec::new();
        for chunk in ctx.chunks() {
            let Memory::Latent(memory) = ctx.memory(chunk.slot)? else {
                return Err(ctx.error("its state is of another kind"));
            };
            for from in chunk.rows.clone().step_by(ROWS) {
                let rows = from..chunk.rows.end.min(from + ROWS);
                let start = chunk.start + from - chunk.rows.start;
                tasks.extend((0..heads).map(|head| LatentTask {
                    memory,
                    head,
                    rows: rows.clone(),
                    start,
                }));
            }
        }
        let view = q.view();
        let q: &[f32] = &view;
        let picks = selected.as_ref().map(|s| (s.view(), s.width()));
        let picks: Option<SelectedKeys<'_>> =
            picks.as_ref().map(|(view, width)| SelectedKeys { of: view, width: *width });
        let made: Vec<Vec<f32>> = tasks
            .par_iter()
            .map(|task| {
                KEYS.with_borrow_mut(|keys| match picks {
                    // Where all positions are selected, there is nothing to leave out.
                    Some(picks) if task.start + task.rows.len() > picks.width => {
                        attend_selected(keys, task, &rule, sizes, q, picks)
                    }
                    _ => attend_head(keys, task, &rule, sizes, q),
                })
            })
            .collect();
        let out = heads * value;
        let mut y = vec![0.0; view.len() / (heads * size).max(1) * out];
        for (task, part) in tasks.iter().zip(&made) {
            for (row, part) in task.rows.clone().zip(part.chunks_exact(value)) {
                y[row * out + task.head * value..][..value].copy_from_slice(part);
            }
        }
        drop(tasks);
        ctx.set(0, y)
    }
}

/// Positions that each row sees, ascending; those below 0 are none.
#[derive(Debug, Clone, Copy)]
struct SelectedKeys<'a> {
    of: &'a [f32],
    width: usize,
}

/// Computes `[rows, value]` of one head, where each row sees positions of its own.
fn attend_selected(
    keys: &mut Keys,
    task: &LatentTask<'_>,
    rule: &AttentionParams,
    sizes: HeadSizes,
    q: &[f32],
    picks: SelectedKeys<'_>,
) -> Vec<f32> {
    let HeadSizes { heads, nope, value } = sizes;
    let (mut key, mut values) = (vec![0.0; rule.key_dim], vec![0.0; value]);
    let column = task.head * (nope + value);
    let mut y = vec![0.0; task.rows.len() * value];
    for ((n, row), y) in task.rows.clone().enumerate().zip(y.chunks_exact_mut(value)) {
        let last = task.start + n;
        let seen = picks.of[row * picks.width..][..picks.width].iter();
        let seen: Vec<usize> =
            seen.filter(|p| **p >= 0.0).map(|p| *p as usize).filter(|p| *p <= last).collect();
        if seen.is_empty() {
            continue;
        }
        keys.clear(rule, seen.len());
        for (at, &position) in seen.iter().enumerate() {
            task.memory.expanded.read(position, column, &mut key[..nope]);
            task.memory.shared.read(position, 0, &mut key[nope..]);
            task.memory.expanded.read(position, column + nope, &mut values);
            keys.set(rule, at, &key, &values);
        }
        let at = (row * heads + task.head) * rule.key_dim;
        let query =
            Query { q: &q[at..at + rule.key_dim], from: 0, to: seen.len(), ..Query::default() };
        keys.attend(rule, &[query], y);
    }
    y
}

/// Computes `[rows, value]` of one head.
fn attend_head(
    keys: &mut Keys,
    task: &LatentTask<'_>,
    rule: &AttentionParams,
    sizes: HeadSizes,
    q: &[f32],
) -> Vec<f32> {
    let HeadSizes { heads, nope, value } = sizes;
    let count = task.start + task.rows.len();
    keys.clear(rule, count);
    let (mut key, mut values) = (vec![0.0; rule.key_dim], vec![0.0; value]);
    let column = task.head * (nope + value);
    for n in 0..count {
        task.memory.expanded.read(n, column, &mut key[..nope]);
        task.memory.shared.read(n, 0, &mut key[nope..]);
        task.memory.expanded.read(n, column + nope, &mut values);
        keys.set(rule, n, &key, &values);
    }
    let queries: Vec<Query<'_>> = task
        .rows
        .clone()
        .enumerate()
        .map(|(n, row)| {
            let at = (row * heads + task.head) * rule.key_dim;
            let to = task.start + n + 1;
            Query { q: &q[at..at + rule.key_dim], from: 0, to, ..Query::default() }
        })
        .collect();
    let mut y = vec![0.0; queries.len() * value];
    keys.attend(rule, &queries, &mut y);
    y
}
