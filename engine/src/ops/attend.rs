//! `attend`: attention over the KV cache of the slot, this step's rows included.
//! `attend_to` reads the KV cache of an earlier layer, and adds nothing.

use std::ops::Range;

use rayon::prelude::*;

use super::row_scores::{RelativeScores, RowScoreInputs, RowScores, SelectedBlocks};
use super::{Args, ChunkRows, Ctx, Kernel, Kernels};
use registry::dtype::Dtype;

use crate::Error;
use crate::kernels::attention::{
    self, AttendBlock, AttentionParams, CachedHead, Query, ScoreRounding, SoftmaxForm,
};
use crate::kernels::math;
use crate::kernels::matmul::MatrixView;
use crate::kernels::round::round1;
use crate::masks::SequenceMask;
use crate::states::Memory;
use crate::states::attention::Attention;
use crate::states::history::History;
use crate::value::GraphValue;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("attend", CachedAttend::prepare);
    kernels.prepared("attend_to", Attend::prepare);
}

/// One key/value head and some rows of one chunk.
struct AttendTask<'a> {
    memory: &'a Attention,
    mask: &'a SequenceMask,
    head: usize,
    rows: Range<usize>,
    /// Position of the first row.
    start: usize,
}

/// The positions that a query sees.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttendWindow {
    pub(super) size: usize,
    /// True if positions are in chunks of that size, and a query sees its own chunk.
    pub(super) chunked: bool,
}

impl AttendWindow {
    /// Returns the first position that a query at `position` sees.
    pub(super) fn oldest(self, position: usize) -> usize {
        if self.chunked {
            position / self.size * self.size
        } else {
            (position + 1).saturating_sub(self.size)
        }
    }
}

/// The keys that the queries of an attention see.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttendReach {
    pub(super) window: Option<AttendWindow>,
    /// The tokens that see each other.
    pub(super) both_ways: BothWays,
}

/// Tokens that see each other, besides those before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BothWays {
    /// None.
    No,
    /// Those of the prefix, whatever the window.
    Prefix,
    /// Those of each span, as far back as the window reaches.
    Spans,
    /// Those of each span, which sees nothing else.
    Within,
}

impl AttendReach {
    /// Returns the positions that a query at `position` sees.
    pub(super) fn seen(self, mask: &SequenceMask, position: usize) -> Range<usize> {
        if self.both_ways == BothWays::Prefix && position < mask.prefix() {
            return 0..mask.prefix();
        }
        let span = mask.span_of(position);
        if self.both_ways == BothWays::Within {
            let (start, end) = span.unwrap_or((position, position + 1));
            return start..end;
        }
        let span = span.filter(|_| self.both_ways == BothWays::Spans);
        // Windows and chunks are counted within the document.
        let document = mask.document_of(position);
        let oldest = self.window.map_or(0, |window| window.oldest(position - document));
        document + oldest..span.map_or(position + 1, |(_, end)| end)
    }

    /// True if a state with this window keeps all that a query sees.
    pub(super) fn fits(self, kept_positions: Option<usize>) -> bool {
        kept_positions.is_none_or(|kept| self.window.is_some_and(|window| window.size <= kept))
    }
}

/// The inputs and parameters that all tasks share.
struct AttendInputs<'a> {
    rule: AttentionParams,
    q: &'a [f32],
    width: usize,
    /// Query heads per key head.
    group: usize,
    kv_heads: usize,
    /// Numbers of a value as it is stored.
    stored: usize,
    reach: AttendReach,
    sinks: Option<&'a [f32]>,
    slopes: Option<&'a [f32]>,
    salience: Option<Salience<'a>>,
    of_rows: RowScores<'a>,
}

/// The salience of keys by their values: `exp(a * softplus(weight * values))` of each head.
struct Salience<'a> {
    /// `[kv_heads, kv_heads * value_dim]`, rows of which are as long as a stored value.
    weight: MatrixView<'a>,
    bias: Option<&'a [f32]>,
    a: &'a [f32],
    /// The largest number of keys that count.
    keep: usize,
}

/// Sizes of the heads of an attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttendSizes {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) key_dim: usize,
    /// Numbers of a value as it is stored.
    pub(super) stored: usize,
    pub(super) value_dim: usize,
}

impl AttendSizes {
    /// Returns the sizes of a node, whose inputs have to fit its state. `paired`: a value is stored in two halves.
    fn of(args: &Args<'_>, paired: bool) -> Result<Self, Error> {
        let &[heads, key_dim] = args.input(0)? else {
            return Err(args.error("a query has two axes, heads and head size"));
        };
        let [keys, values] = args.state()?.parts.as_slice() else {
            return Err(args.error("its state has keys and values"));
        };
        let (&[kv_heads, size], &[v_heads, stored]) =
            (keys.shape.as_slice(), values.shape.as_slice())
        else {
            return Err(args.error("its state holds heads"));
        };
        if kv_heads == 0
            || heads % kv_heads != 0
            || v_heads != kv_heads
            || size != key_dim
            || (paired && !kv_heads.is_multiple_of(2))
        {
            return Err(args.error(format!(
                "{heads} query heads of {key_dim}, {kv_heads} key heads of {size} and {v_heads} value \
                 heads do not fit"
            )));
        }
        let value_dim = if paired { 2 * stored } else { stored };
        args.expect_output(heads * value_dim)?;
        Ok(Self { heads, kv_heads, key_dim, stored, value_dim })
    }

    /// Returns the number of query heads of a key head.
    pub(super) fn group(self) -> usize {
        self.heads / self.kv_heads
    }
}

/// The arguments of an attention.
pub(super) struct Attend {
    pub(super) sizes: AttendSizes,
    pub(super) reach: AttendReach,
    pub(super) slopes: Option<Vec<f32>>,
    pub(super) paired: bool,
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
    pub(super) softmax: SoftmaxForm,
    pub(super) scores: ScoreRounding,
    pub(super) gated: bool,
    /// The largest number of keys that count, if keys have a salience.
    pub(super) keep: Option<usize>,
}

impl Attend {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let chunked = args.flag("chunked")?;
        let window = args.count_or_null("window")?;
        let paired = args.one_of("values", &[("own", false), ("paired", true)])?;
        let attend = Self {
            sizes: AttendSizes::of(args, paired)?,
            reach: AttendReach {
                window: window.map(|size| AttendWindow { size, chunked }),
                both_ways: args.one_of(
                    "mask",
                    &[
                        ("causal", BothWays::No),
                        ("prefix", BothWays::Prefix),
                        ("spans", BothWays::Spans),
                        ("within", BothWays::Within),
                    ],
                )?,
            },
            slopes: args.numbers_or_null("alibi")?,
            paired,
            scale: args.number("scale")?,
            softcap: args.number_or_null("softcap")?,
            softmax: args.one_of(
                "softmax",
                &[
                    ("f32", SoftmaxForm::F32),
                    ("activation", SoftmaxForm::Activation),
                    ("unrounded", SoftmaxForm::Unrounded),
                ],
            )?,
            scores: args.one_of(
                "scores",
                &[
                    ("rounded", ScoreRounding::Rounded),
                    ("once", ScoreRounding::Once),
                    ("f32", ScoreRounding::None),
                ],
            )?,
            gated: args.one_of("sink_form", &[("column", false), ("gate", true)])?,
            keep: args.count_or_null("keep")?,
        };
        attend.check(args)?;
        Ok(attend)
    }

    /// Checks that a window, sinks, slopes and the salience of keys fit the heads.
    fn check(&self, args: &Args<'_>) -> Result<(), Error> {
        let AttendSizes { heads, kv_heads, stored, .. } = self.sizes;
        if !args.may_have("sinks", heads)
            || self.slopes.as_ref().is_some_and(|slopes| slopes.len() != heads)
            || self.reach.window.is_some_and(|window| window.size == 0)
        {
            return Err(args
                .error("it has a sink and a slope per head, if any, and a window of at least 1"));
        }
        if !self.reach.fits(args.state()?.window) {
            return Err(args.error("it would see more than its state keeps"));
        }
        if args.weight("A").is_none() {
            return Ok(());
        }
        if self.keep.is_none() {
            return Err(args.error("it does not say how many keys count"));
        }
        if !args.may_have("A", kv_heads)
            || !args.may_have("bias", kv_heads)
            || args.weight("weight") != Some(&[kv_heads, kv_heads * stored])
        {
            return Err(args.error("what keys are worth does not follow from values of this shape"));
        }
        Ok(())
    }
}

impl Kernel for Attend {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let q = ctx.input(0)?;
        attend(self, ctx, &q, RowScores::default())
    }
}

/// An attention whose keys and values are added to its state first.
struct CachedAttend {
    attend: Attend,
    inputs: RowScoreInputs,
}

impl CachedAttend {
    fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let attend = Attend::prepare(args)?;
        let AttendSizes { heads, kv_heads, .. } = attend.sizes;
        let inputs = RowScoreInputs::prepare(args, heads, kv_heads)?;
        Ok(Self { attend, inputs })
    }
}

impl Kernel for CachedAttend {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        keep(ctx)?;
        let RowScoreInputs { selected, relative, sinks } = self.inputs;
        let q = ctx.input(0)?;
        let chosen = selected.map(|(n, _)| ctx.input(n)).transpose()?;
        let distances = relative.map(|(n, _)| ctx.input(n)).transpose()?;
        let row_sinks = sinks.map(|n| ctx.input(n)).transpose()?;
        let blocks = chosen.as_ref().map(GraphValue::view);
        let numbers = distances.as_ref().map(GraphValue::view);
        let sinks = row_sinks.as_ref().map(GraphValue::view);
        let of_rows = RowScores {
            selected: blocks
                .as_deref()
                .zip(selected)
                .map(|(of, (_, selection))| SelectedBlocks { of, selection }),
            relative: numbers
                .as_deref()
                .zip(relative)
                .map(|(of, (_, count))| RelativeScores { of, count }),
            sinks: sinks.as_deref(),
        };
        attend(&self.attend, ctx, &q, of_rows)
    }
}

/// Adds the step's keys and values to the state.
fn keep(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let k = ctx.input(1)?;
    let v = ctx.input(2)?;
    for (x, part) in [(&k, 0), (&v, 1)] {
        let view = x.view();
        for chunk in ctx.chunks() {
            let rows = &view[chunk.rows.start * x.width()..chunk.rows.end * x.width()];
            ctx.observe_cached(part, rows);
            let wrong = ctx.error("its state does not hold keys and values of this shape");
            let Memory::Attention(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
            let history = if part == 0 { &mut memory.keys } else { &mut memory.values };
            if history.width() != x.width() || history.end() != chunk.start {
                return Err(wrong);
            }
            history.append(rows);
        }
    }
    Ok(())
}

/// Returns a task for each key head and each block of rows of the step; `alone`: each row is a block.
fn tasks<'a>(
    ctx: &'a Ctx<'_>,
    sizes: AttendSizes,
    alone: bool,
) -> Result<Vec<AttendTask<'a>>, Error> {
    let AttendSizes { kv_heads, key_dim, stored, .. } = sizes;
    let mut tasks = Vec::new();
    for ChunkRows { slot, rows, start, mask, .. } in ctx.chunks() {
        let Memory::Attention(memory) = ctx.memory(*slot)? else {
            return Err(ctx.error("its state is of another kind"));
        };
        let end = start + rows.len();
        if memory.keys.end() != end
            || memory.values.end() != end
            || memory.keys.width() != kv_heads * key_dim
            || memory.values.width() != kv_heads * stored
        {
            return Err(ctx.error("its state does not hold what the step's rows see"));
        }
        let size =
            if alone { 1 } else { attention::rows_of_block(rows.len(), kv_heads, sizes.group()) };
        for from in rows.clone().step_by(size) {
            let part = from..rows.end.min(from + size);
            let start = start + from - rows.start;
            tasks.extend((0..kv_heads).map(|head| AttendTask {
                memory,
                mask,
                head,
                rows: part.clone(),
                start,
            }));
        }
    }
    Ok(tasks)
}

/// Attends to the keys and values of the state, to all of them or to the selected positions.
fn attend(
    args: &Attend,
    ctx: &mut Ctx<'_>,
    q: &GraphValue,
    of_rows: RowScores<'_>,
) -> Result<(), Error> {
    let sizes = args.sizes;
    let AttendSizes { heads, kv_heads, key_dim, stored, value_dim } = sizes;
    let rule = AttentionParams {
        key_dim,
        value_dim,
        scale: args.scale,
        softcap: args.softcap,
        round: ctx.output_dtype(0),
        softmax: args.softmax,
        scores: args.scores,
        gated: args.gated,
    };
    let matrix;
    let salience = match ctx.vector("A") {
        Some(a) => {
            matrix = ctx.matrix("weight")?;
            Some(Salience {
                weight: matrix.view(),
                bias: ctx.vector("bias"),
                a,
                keep: args.keep.unwrap_or(usize::MAX),
            })
        }
        None => None,
    };
    let tasks = tasks(ctx, sizes, of_rows.selected.is_some())?;
    let view = q.view();
    let plan = AttendInputs {
        rule,
        q: &view,
        width: q.width(),
        group: sizes.group(),
        kv_heads,
        stored,
        reach: args.reach,
        sinks: ctx.vector("sinks"),
        slopes: args.slopes.as_deref(),
        salience,
        of_rows,
    };
    let worth: Vec<Vec<f32>> = tasks.iter().map(|task| plan.salience_of(task)).collect();
    let positions: Vec<Option<Vec<usize>>> =
        tasks.iter().map(|task| plan.positions_of(task)).collect();
    let blocks: Vec<AttendBlock<'_>> = tasks
        .iter()
        .zip(&worth)
        .zip(&positions)
        .map(|((task, worth), positions)| plan.block(task, worth, positions.as_deref()))
        .collect();
    let outputs = attention::attend(&plan.rule, &blocks);
    let y = joined(&tasks, &outputs, [q.rows(), heads * value_dim, sizes.group() * value_dim]);
    drop((blocks, tasks));
    ctx.set(0, y)
}

/// Joins the outputs of tasks to rows of `out` numbers, of which each task has `part_width`.
fn joined(
    tasks: &[AttendTask<'_>],
    outputs: &[Vec<f32>],
    [rows, out, part_width]: [usize; 3],
) -> Vec<f32> {
    let mut y = vec![0.0; rows * out];
    for (task, part) in tasks.iter().zip(outputs) {
        // [rows, group, value_dim] of one key head goes to its place in [rows, heads, value_dim].
        for (row, part) in task.rows.clone().zip(part.chunks_exact(part_width)) {
            let at = row * out + task.head * part_width;
            y[at..at + part.len()].copy_from_slice(part);
        }
    }
    y
}

/// Returns the columns that store the halves of a key head's value. Paired, the heads of each half of the
/// values serve all keys: head j has values j and j + half, counted within the half.
fn columns(plan: &AttendInputs<'_>, head: usize) -> (usize, Option<usize>) {
    if plan.rule.value_dim == plan.stored {
        return (head * plan.stored, None);
    }
    let half = plan.kv_heads / 2;
    let first = head % half;
    (first * plan.stored, Some((half + first) * plan.stored))
}

/// Computes the salience of one key for the queries of a head, with each step rounded.
fn key_salience(
    salience: &Salience<'_>,
    dtype: Dtype,
    values: &History,
    position: usize,
    head: usize,
) -> f32 {
    let mut value = vec![0.0; values.width()];
    let mut row = vec![0.0; values.width()];
    values.read(position, 0, &mut value);
    salience.weight.widen_row(head, &mut row);
    row.iter_mut().zip(&value).for_each(|(w, x)| *w *= x);
    let y = round1(dtype, math::sum(&row) + salience.bias.map_or(0.0, |b| b[head]));
    let exponent = round1(dtype, salience.a[head] * round1(dtype, math::softplus(y)));
    round1(dtype, math::exp(exponent))
}

impl AttendInputs<'_> {
    /// Computes the salience of the keys that a task sees; empty if keys have none.
    fn salience_of(&self, task: &AttendTask<'_>) -> Vec<f32> {
        let Some(salience) = &self.salience else { return Vec::new() };
        let round = self.rule.round;
        let values = &task.memory.values;
        (self.reach.seen(task.mask, task.start).start..task.start + task.rows.len())
            .into_par_iter()
            .map(|position| key_salience(salience, round, values, position, task.head))
            .collect()
    }

    /// Returns the positions that the one row of a task sees; none if it sees all.
    fn positions_of(&self, task: &AttendTask<'_>) -> Option<Vec<usize>> {
        let selected = self.of_rows.selected?;
        let seen = self.reach.seen(task.mask, task.start);
        Some(selected.positions(task.rows.start, task.head, self.kv_heads, &seen))
    }

    /// Returns the queries of a task, and the columns of the keys and values that they see.
    fn block<'b>(
        &'b self,
        task: &AttendTask<'b>,
        worth: &'b [f32],
        selected: Option<&'b [usize]>,
    ) -> AttendBlock<'b> {
        let key_dim = self.rule.key_dim;
        let first = self.reach.seen(task.mask, task.start).start;
        let (column, other) = columns(self, task.head);
        let Attention { keys, values } = task.memory;
        let head = CachedHead {
            keys: [keys.columns(task.head * key_dim, key_dim), keys.columns(0, 0)],
            values: [
                values.columns(column, self.stored),
                values.columns(other.unwrap_or(0), other.map_or(0, |_| self.stored)),
            ],
            selected,
        };
        // A row that sees nothing gives zeros.
        let nothing = selected.is_some_and(<[usize]>::is_empty);
        let rows = task.rows.clone().enumerate().filter(|_| !nothing);
        let queries = rows.flat_map(|(n, row)| {
            let position = task.start + n;
            let Range { start: from, end: to } = match selected {
                Some(selected) => 0..selected.len(),
                None => self.reach.seen(task.mask, position),
            };
            (0..self.group).map(move |g| {
                let head = task.head * self.group + g;
                let at = row * self.width + head * key_dim;
                let query = row * (self.width / key_dim) + head;
                let RowScores { relative, sinks, .. } = self.of_rows;
                Query {
                    q: &self.q[at..at + key_dim],
                    from,
                    to,
                    sink: sinks.map(|s| s[query]).or_else(|| self.sinks.map(|s| s[head])),
                    slope: self.slopes.map(|s| s[head]),
                    relative: relative.map(|r| &r.of[query * r.count..][..r.count]),
                    salience: self
                        .salience
                        .as_ref()
                        .map(|s| (&worth[from - first..to - first], s.keep)),
                }
            })
        });
        AttendBlock { head, queries: queries.collect() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{AttendReach, AttendWindow, BothWays};
    use crate::masks::{ChunkMask, SequenceMask};

    /// Decides on one query and one key, as the mask functions of transformers do.
    fn sees(reach: AttendReach, mask: ChunkMask<'_>, query: usize, key: usize) -> bool {
        let ChunkMask { prefix, documents, spans } = mask;
        let start = documents.iter().copied().filter(|start| *start <= query).max().unwrap_or(0);
        if reach.both_ways == BothWays::Prefix && query < prefix && key < prefix {
            return true;
        }
        let together = reach.both_ways == BothWays::Spans
            && spans
                .iter()
                .any(|(from, to)| (*from..*to).contains(&query) && (*from..*to).contains(&key));
        if document_of(documents, query) != document_of(documents, key)
            || (key > query && !together)
        {
            return false;
        }
        let query = query - start;
        let key = key - start;
        reach.window.is_none_or(|window| {
            if window.chunked {
                query / window.size == key / window.size
            } else {
                key + window.size > query
            }
        })
    }

    fn document_of(documents: &[usize], at: usize) -> usize {
        documents.iter().filter(|start| **start <= at).count()
    }

    /// Compares what each of twenty queries sees with what its pairs say.
    fn sees_by_pairs(reach: AttendReach, chunk: ChunkMask<'_>) -> Result<(), TestCaseError> {
        let mut mask = SequenceMask::default();
        mask.add(0, 0, 20, &chunk).unwrap();
        for query in 0..20 {
            let seen: Vec<usize> = reach.seen(&mask, query).collect();
            let want: Vec<usize> = (0..20).filter(|key| sees(reach, chunk, query, *key)).collect();
            prop_assert_eq!(seen, want, "query {}", query);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn a_query_sees_what_its_pairs_say(
            window in prop::option::of((1..9_usize, any::<bool>())),
            prefix in any::<bool>(),
            reaches in 0..20_usize,
            starts in prop::collection::btree_set(0..20_usize, 0..5),
        ) {
            let reach = AttendReach {
                window: window.map(|(size, chunked)| AttendWindow { size, chunked }),
                both_ways: if prefix { BothWays::Prefix } else { BothWays::No },
            };
            let reaches = if starts.is_empty() { reaches } else { 0 };
            let documents: Vec<usize> = starts.into_iter().collect();
            let chunk = ChunkMask { prefix: reaches, documents: &documents, spans: &[] };
            sees_by_pairs(reach, chunk)?;
        }

        #[test]
        fn tokens_of_a_span_see_each_other_within_the_window(
            window in prop::option::of(1..9_usize),
            borders in prop::collection::btree_set(0..=20_usize, 0..7),
        ) {
            let reach = AttendReach {
                window: window.map(|size| AttendWindow { size, chunked: false }),
                both_ways: BothWays::Spans,
            };
            let borders: Vec<usize> = borders.into_iter().collect();
            let spans: Vec<(usize, usize)> =
                borders.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
            let chunk = ChunkMask { spans: &spans, ..ChunkMask::default() };
            sees_by_pairs(reach, chunk)?;
        }
    }

    #[test]
    fn windows_slide_and_chunks_stand() {
        for (position, slides, stands) in [(0, 0, 0), (3, 0, 0), (4, 1, 4), (7, 4, 4), (8, 5, 8)] {
            assert_eq!(AttendWindow { size: 4, chunked: false }.oldest(position), slides);
            assert_eq!(AttendWindow { size: 4, chunked: true }.oldest(position), stands);
        }
    }
}
