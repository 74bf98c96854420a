//! `attend`: causal attention over what the slot remembers, this step's rows included.

use std::cell::RefCell;

use rayon::prelude::*;

use super::{ChunkRows, Ctx};
use crate::Error;
use crate::kernels::attention::{Keys, Query, Rule};
use crate::states::Memory;
use crate::states::attention::Attention;

/// Rows of a chunk that one task handles; a chunk of fewer is one task per head.
const ROWS: usize = 64;

thread_local! {
    /// Reused from call to call: fresh memory of this size costs a page fault every 4 KiB.
    static KEYS: RefCell<Keys> = RefCell::default();
}

/// One key/value head and some rows of one chunk.
struct Task<'a> {
    memory: &'a Attention,
    head: usize,
    rows: std::ops::Range<usize>,
    /// Position of the first row.
    start: usize,
}

/// Which positions a query sees.
#[derive(Debug, Clone, Copy)]
struct Window {
    size: usize,
    /// Whether positions are in chunks of that size, and a query sees its own chunk.
    chunked: bool,
}

impl Window {
    /// The first position that a query at `position` sees.
    fn oldest(self, position: usize) -> usize {
        if self.chunked {
            position / self.size * self.size
        } else {
            (position + 1).saturating_sub(self.size)
        }
    }
}

pub(super) fn run(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let (q, k, v) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let ([_, heads, key_dim], [_, kv_heads, _], [_, v_heads, value_dim]) =
        (q.shape(), k.shape(), v.shape())
    else {
        return Err(ctx.error("query, key and value have two axes each, heads and head size"));
    };
    let (heads, kv_heads, key_dim, value_dim) = (*heads, *kv_heads, *key_dim, *value_dim);
    if kv_heads == 0
        || heads % kv_heads != 0
        || *v_heads != kv_heads
        || k.width() != kv_heads * key_dim
    {
        return Err(ctx.error(format!(
            "{heads} query heads, {kv_heads} key heads and {v_heads} value heads do not fit"
        )));
    }
    let rule = Rule {
        key_dim,
        value_dim,
        scale: ctx.number("scale")? as f32,
        softcap: ctx.number_or_null("softcap")?.map(|c| c as f32),
        round: ctx.output_dtype(0),
        softmax_rounds: ctx.text("softmax", "f32") == "activation",
    };
    let window = match ctx.attr("window") {
        Some(_) => Some(ctx.count("window")?),
        None => None,
    };
    let window = window.map(|size| Window { size, chunked: ctx.flag("chunked") });
    let sinks = ctx.vector("sinks");
    if sinks.is_some_and(|s| s.len() != heads) || window.is_some_and(|w| w.size == 0) {
        return Err(ctx.error("it has a sink per head, if any, and a window of at least 1"));
    }
    for (x, part) in [(&k, 0), (&v, 1)] {
        let view = x.view();
        for chunk in ctx.chunks() {
            let rows = &view[chunk.rows.start * x.width()..chunk.rows.end * x.width()];
            let wrong = ctx.error("its state does not hold keys and values of this shape");
            let Memory::Attention(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
            let history = if part == 0 { &mut memory.keys } else { &mut memory.values };
            if history.width() != x.width() || history.end() != chunk.start {
                return Err(wrong);
            }
            history.append(rows);
        }
    }
    let mut tasks = Vec::new();
    for ChunkRows { slot, rows, start } in ctx.chunks() {
        let Memory::Attention(memory) = ctx.memory(*slot)? else {
            return Err(ctx.error("its state is of another kind"));
        };
        for from in rows.clone().step_by(ROWS) {
            let part = from..rows.end.min(from + ROWS);
            let start = start + from - rows.start;
            tasks.extend((0..kv_heads).map(|head| Task {
                memory,
                head,
                rows: part.clone(),
                start,
            }));
        }
    }
    let group = heads / kv_heads;
    let (view, width) = (q.view(), q.width());
    let q: &[f32] = &view;
    let made: Vec<Vec<f32>> = tasks
        .par_iter()
        .map(|task| {
            KEYS.with_borrow_mut(|keys| one(keys, task, &rule, q, width, group, window, sinks))
        })
        .collect();
    let out = heads * value_dim;
    let mut y = vec![0.0; view.len() / width.max(1) * out];
    for (task, part) in tasks.iter().zip(&made) {
        // [rows, group, value_dim] of one key head goes to its place in [rows, heads, value_dim].
        for (row, part) in task.rows.clone().zip(part.chunks_exact(group * value_dim)) {
            let at = row * out + task.head * group * value_dim;
            y[at..at + part.len()].copy_from_slice(part);
        }
    }
    drop(tasks);
    ctx.set(0, y)
}

#[expect(clippy::too_many_arguments, reason = "the body of a parallel loop")]
fn one(
    keys: &mut Keys,
    task: &Task<'_>,
    rule: &Rule,
    q: &[f32],
    width: usize,
    group: usize,
    window: Option<Window>,
    sinks: Option<&[f32]>,
) -> Vec<f32> {
    let oldest = |position: usize| window.map_or(0, |w| w.oldest(position));
    let first = oldest(task.start);
    let count = task.start + task.rows.len() - first;
    keys.clear(rule, count);
    let (mut key, mut value) = (vec![0.0; rule.key_dim], vec![0.0; rule.value_dim]);
    for n in 0..count {
        task.memory.keys.read(first + n, task.head * rule.key_dim, &mut key);
        task.memory.values.read(first + n, task.head * rule.value_dim, &mut value);
        keys.set(rule, n, &key, &value);
    }
    let queries: Vec<Query<'_>> = task
        .rows
        .clone()
        .enumerate()
        .flat_map(|(n, row)| {
            let position = task.start + n;
            let (from, to) = (oldest(position) - first, position + 1 - first);
            (0..group).map(move |g| {
                let head = task.head * group + g;
                let at = row * width + head * rule.key_dim;
                let sink = sinks.map(|s| s[head]);
                Query { q: &q[at..at + rule.key_dim], from, to, sink }
            })
        })
        .collect();
    let mut y = vec![0.0; queries.len() * rule.value_dim];
    keys.attend(rule, &queries, &mut y);
    y
}

#[cfg(test)]
mod tests {
    use super::Window;

    #[test]
    fn windows_slide_and_chunks_stand() {
        for (position, slides, stands) in [(0, 0, 0), (3, 0, 0), (4, 1, 4), (7, 4, 4), (8, 5, 8)] {
            assert_eq!(Window { size: 4, chunked: false }.oldest(position), slides);
            assert_eq!(Window { size: 4, chunked: true }.oldest(position), stands);
        }
    }
}
