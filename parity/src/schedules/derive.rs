//! Derives schedules for a model from the states that it declares.

use std::collections::BTreeSet;

use registry::graph::StateKind;
use registry::model::Model;

use super::{Act, Schedule};
use crate::dump::Prompt;

/// Number of positions that the truncate schedule rewinds, for which sessions are opened.
pub const ROLLBACK: usize = 3;

/// Maximum length of a sequence in schedules: just past two blocks of 64, the block size of kernels.
const LONGEST: usize = 2 * BLOCK + 6;

/// Number of rows that kernels process at once.
const BLOCK: usize = 64;

/// Sequence length of schedules that need no blocks.
const SHORT: usize = 32;

/// Returns the numbers of positions at which a state of the model changes its behaviour: kernel widths and
/// windows.
fn thresholds(model: &Model) -> BTreeSet<usize> {
    let mut reaches = BTreeSet::new();
    for state in &model.graph.states {
        match state.kind {
            StateKind::Attention | StateKind::Latent | StateKind::Index => {
                reaches.extend(state.window);
            }
            StateKind::Pooled => {
                reaches.extend(state.window);
                // Two blocks: the second may be pooled with the first.
                reaches.extend(state.block.map(|block| 2 * block));
            }
            StateKind::Conv => {
                reaches.extend(state.parts.iter().filter_map(|p| p.shape.get(1)).map(|w| w + 1));
            }
            // All positions behave alike.
            StateKind::Recurrent => {}
        }
    }
    reaches
}

/// Returns the longest sequence for which the schedule must not matter. Some rotary tables are chosen by
/// the length of the current forward pass, and cached keys are not rotated again. A sequence fed in pieces
/// then differs from one prefill, in the reference too.
fn steady(model: &Model) -> usize {
    let long = model.ropes.iter().filter_map(|r| r.long.as_ref()).map(|r| r.original_context);
    let dynamic = model.ropes.iter().filter_map(|r| r.dynamic.as_ref()).map(|r| r.context);
    long.chain(dynamic).min().unwrap_or(usize::MAX).max(1)
}

/// Returns the length of the sequences to feed and the schedules over them. `prompt` is the length of the
/// longest available prompt.
pub fn derive(model: &Model, prompt: usize) -> (usize, Vec<Schedule>) {
    let reaches = thresholds(model);
    let edge = reaches.iter().copied().filter(|r| r + 3 <= LONGEST).max().unwrap_or(0);
    let context = model.context.unwrap_or(usize::MAX).saturating_sub(ROLLBACK).max(1);
    let limit = context.min(steady(model));
    let length = prompt.min(LONGEST).max(edge + 3).max(8).min(limit);
    // Faults of slots, forks and drafts show early.
    let short = prompt.min(SHORT).max(edge + 3).max(8).min(length);
    let mut all = Vec::new();
    let mut add = |name: String, why, acts| all.push(Schedule { name, why, acts });

    add(
        "prefill again".to_owned(),
        "what earlier sequences leave behind, or results that cannot be reproduced",
        vec![Act::Open(0, 0), Act::Feed(vec![(0, length)])],
    );
    // Around widths and windows, and around blocks of kernels.
    let mut sizes = BTreeSet::from([1, BLOCK - 1, BLOCK, BLOCK + 1]);
    for reach in &reaches {
        for size in reach.saturating_sub(2)..=reach + 1 {
            sizes.insert(size);
        }
    }
    for size in sizes.into_iter().filter(|s| *s >= 1 && *s < length) {
        let (name, why) = match size {
            1 => ("token by token".to_owned(), "state carried over a step"),
            n => (
                format!("chunks of {n}"),
                "state carried over a chunk near a kernel's width, a window or a block",
            ),
        };
        let to = if size == 1 || size + 1 >= BLOCK { length } else { short };
        add(name, why, [vec![Act::Open(0, 0)], feed(0, 0, to, size)].concat());
    }
    let odd = ((length / 2) | 1).min(length - 1);
    if odd == 0 {
        return (length, all);
    }
    add(
        "warm continuation".to_owned(),
        "many tokens on a state that is not empty",
        vec![Act::Open(0, 0), Act::Feed(vec![(0, odd)]), Act::Feed(vec![(0, length - odd)])],
    );
    let odd = ((short / 2) | 1).min(short - 1);
    add("ragged batch".to_owned(), "slots of different length in one step", ragged(short, false));
    add("permuted batch".to_owned(), "order of slots in a step, idle slots", ragged(short, true));
    add(
        "slot reuse".to_owned(),
        "what a released slot leaves to the next",
        vec![
            Act::Open(0, 1),
            Act::Feed(vec![(0, short)]),
            Act::Release(0),
            Act::Open(1, 0),
            Act::Feed(vec![(1, 1)]),
            Act::Feed(vec![(1, short - 1)]),
        ],
    );
    let mut fork =
        vec![Act::Open(0, 0), Act::Feed(vec![(0, odd)]), Act::Fork(0, 1), Act::Fork(0, 2)];
    fork.extend([Act::Stray(1, 2), Act::Feed(vec![(0, short - odd)])]);
    fork.extend(feed(2, odd, short, 1));
    add("fork".to_owned(), "two slots that share a past of odd length", fork);
    let mut retry = vec![Act::Open(0, 0), Act::Feed(vec![(0, odd)])];
    for at in odd..short {
        // A rejected draft before every token, of 0 to `ROLLBACK` tokens in turn.
        let drafts = (at - odd) % (ROLLBACK + 1);
        if drafts > 0 {
            retry.extend([Act::Stray(0, drafts), Act::Rewind(0)]);
        }
        retry.push(Act::Feed(vec![(0, 1)]));
    }
    add("truncate and retry".to_owned(), "a rejected speculative draft", retry);
    let mut reload = vec![Act::Open(0, 0), Act::Feed(vec![(0, odd)]), Act::Reload(0)];
    reload.extend(feed(0, odd, short, 2));
    add("save and restore".to_owned(), "a slot that went through bytes", reload);
    (length, all)
}

/// Feeds the tokens of a slot between two positions in chunks.
fn feed(slot: usize, from: usize, to: usize, size: usize) -> Vec<Act> {
    (from..to).step_by(size).map(|at| Act::Feed(vec![(slot, size.min(to - at))])).collect()
}

/// Opens a slot and feeds its first tokens.
fn begin(slot: usize, sequence: usize, count: usize) -> Vec<Act> {
    vec![Act::Open(slot, sequence), Act::Feed(vec![(slot, count)])]
}

/// Returns what sets the schedules of a prompt apart from those of tokens alone.
pub fn kind(prompt: &Prompt) -> &'static str {
    match prompt {
        Prompt { prefix: 2.., .. } => "prefix",
        Prompt { documents, .. } if documents.len() > 1 => "documents",
        _ => "rows",
    }
}

/// Returns schedules for a prompt with a prefix, with rows in the place of embeddings, or with several documents; none if the prompt is too long.
/// The first chunk of a sequence holds the whole prefix and all spans.
pub fn derive_masked(model: &Model, prompt: &Prompt) -> Vec<Schedule> {
    let length = prompt.tokens.len();
    let head = prompt.spans.last().map_or(prompt.prefix.max(1), |(_, end)| *end);
    let context = model.context.unwrap_or(usize::MAX).saturating_sub(ROLLBACK);
    if head >= length || length > context.min(steady(model)) {
        return Vec::new();
    }
    let kind = kind(prompt);
    let mut all = Vec::new();
    let mut add = |name: &str, why, acts| {
        all.push(Schedule { name: format!("{kind}: {name}"), why, acts });
    };
    let mut sizes = BTreeSet::from([1, 2, 3]);
    sizes.extend(thresholds(model).into_iter().flat_map(|reach| reach.saturating_sub(1)..=reach));
    for size in sizes.into_iter().filter(|size| *size >= 1 && *size + head < length) {
        let name = format!("chunks of {size} after {head}");
        let acts = [begin(0, 0, head), feed(0, head, length, size)].concat();
        add(&name, "a mask carried over a step", acts);
    }
    let more = (head + 1).min(length - 1);
    let mut batch = vec![Act::Open(0, 0), Act::Open(1, 1), Act::Open(2, 2)];
    batch.push(Act::Feed(vec![(0, more), (1, head), (2, length)]));
    batch.push(Act::Feed(vec![(1, length - head), (0, length - more)]));
    add("ragged batch", "slots with masks of different reach in one step", batch);
    let mut reuse = begin(0, 1, length);
    reuse.push(Act::Release(0));
    reuse.extend([begin(1, 0, more), feed(1, more, length, 2)].concat());
    add("slot reuse", "the mask that a released slot leaves to the next", reuse);
    let mut fork = [begin(0, 0, more), vec![Act::Fork(0, 1), Act::Stray(1, 2)]].concat();
    fork.extend(
        [vec![Act::Fork(0, 2)], feed(0, more, length, 1), feed(2, more, length, 3)].concat(),
    );
    add("fork", "two slots that share a past with a mask", fork);
    let mut retry = begin(0, 0, more);
    for at in more..length {
        let drafts = (at - more) % (ROLLBACK + 1);
        if drafts > 0 {
            retry.extend([Act::Stray(0, drafts), Act::Rewind(0)]);
        }
        retry.push(Act::Feed(vec![(0, 1)]));
    }
    add("truncate and retry", "a rejected draft after a mask", retry);
    for at in [more, length - 1] {
        let mut reload = [begin(0, 0, at), vec![Act::Reload(0)]].concat();
        reload.extend(feed(0, at, length, 2));
        add(&format!("save and restore after {at}"), "a mask that went through bytes", reload);
    }
    all
}

/// Feeds three sequences at different positions. First come one long, one short and one medium chunk, then
/// one token each, with one of them sometimes idle.
fn ragged(length: usize, permuted: bool) -> Vec<Act> {
    let mut acts = vec![Act::Open(0, 0), Act::Open(1, 1), Act::Open(2, 2)];
    let mut seen = [(length * 2 / 3).max(1), 1, (length / 3).max(1)];
    let first: Vec<(usize, usize)> = seen.iter().copied().enumerate().collect();
    acts.push(Act::Feed(if permuted { permute(0, first) } else { first }));
    for step in 1.. {
        let parts: Vec<(usize, usize)> = (0..3)
            .filter(|slot| seen[*slot] < length && (!permuted || (step + slot) % 3 != 0))
            .map(|slot| (slot, if slot == 1 { 3.min(length - seen[slot]) } else { 1 }))
            .collect();
        for (slot, count) in &parts {
            seen[*slot] += count;
        }
        if !parts.is_empty() {
            acts.push(Act::Feed(if permuted { permute(step, parts) } else { parts }));
        }
        if seen.iter().all(|s| *s >= length) {
            break;
        }
    }
    acts
}

/// Returns the chunks of a step in another order, which depends on the step.
fn permute(step: usize, mut parts: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    let by = step % parts.len().max(1);
    parts.rotate_left(by);
    if step.is_multiple_of(2) {
        parts.reverse();
    }
    parts
}
