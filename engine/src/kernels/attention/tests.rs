use proptest::prelude::*;

use super::*;
use crate::kernels::math;
use crate::kernels::round::{round, round1};
use crate::states::history::History;
use crate::states::past::Past as _;

fn rule(round: Dtype) -> AttentionParams {
    AttentionParams {
        key_dim: 2,
        value_dim: 3,
        scale: 0.5,
        softcap: None,
        round,
        softmax: SoftmaxForm::F32,
        scores: ScoreRounding::Rounded,
        gated: false,
    }
}

/// Keys and values of three positions.
const KEYS: [f32; 6] = [1.0, 0.0, 0.0, 2.0, 9.0, 9.0];
const VALUES: [f32; 9] = [1.0, 2.0, 3.0, -1.0, 0.0, 4.0, f32::MAX, 0.0, 0.0];

/// Attends to the three positions from `first` on.
fn from_position(first: usize, rule: &AttentionParams, queries: &[Query<'_>]) -> Vec<f32> {
    let head = CachedHead {
        keys: columns(&KEYS, 2, first),
        values: columns(&VALUES, 3, first),
        selected: None,
    };
    attend(rule, &[AttendBlock { head, queries: queries.to_vec() }]).concat()
}

fn columns(numbers: &[f32], width: usize, first: usize) -> [CachedColumns<'_>; 2] {
    let rows = CachedRows { numbers: StoredNumbers::Wide(numbers), width, first };
    [width, 0].map(|len| CachedColumns { rows, column: 0, len })
}

/// Attends to the first three positions.
fn three(rule: &AttentionParams, queries: &[Query<'_>]) -> Vec<f32> {
    from_position(0, rule, queries)
}

#[test]
fn weighs_values_by_the_softmax_of_the_scores_it_sees() {
    let rule = rule(Dtype::F32);
    let y = three(&rule, &[query(&[2.0, 1.0], 0, 2, None), query(&[2.0, 1.0], 1, 2, None)]);
    // Both scores are 2 * 0.5 = 1.
    assert_eq!(y, [0.0, 1.0, 3.5, -1.0, 0.0, 4.0]);
    // With a sink of the same size each weighs a third.
    let y = three(&rule, &[query(&[2.0, 1.0], 0, 2, Some(1.0))]);
    approx::assert_relative_eq!(y[2], 7.0 / 3.0, max_relative = 1e-6);
}

fn query(q: &[f32], from: usize, to: usize, sink: Option<f32>) -> Query<'_> {
    Query { q, from, to, sink, ..Query::default() }
}

#[test]
fn sixteen_bit_steps_are_rounded_in_order() {
    let rule = AttentionParams { softcap: Some(2.0), ..rule(Dtype::Bf16) };
    let a = capped_score(1.3);
    let b = capped_score(0.7 * 2.0);
    let ea = math::exp(a - a.max(b));
    let eb = math::exp(b - a.max(b));
    let wa = bf16(ea / (ea + eb));
    let wb = bf16(eb / (ea + eb));
    let y = three(&rule, &[query(&[1.3, 0.7], 0, 2, None)]);
    assert_eq!(y, [bf16(wa - wb), bf16(wa * 2.0), bf16(wa * 3.0 + wb * 4.0)]);
}

fn capped_score(s: f32) -> f32 {
    bf16(bf16(bf16(bf16(bf16(s) * 0.5) / 2.0).tanh()) * 2.0)
}

fn bf16(x: f32) -> f32 {
    round1(Dtype::Bf16, x)
}

#[test]
fn a_slope_adds_to_the_score_of_each_position() {
    for (scores, a, b) in [
        (
            ScoreRounding::Rounded,
            bf16(bf16(1.3) * 0.5) + 0.3 * 7.0,
            bf16(bf16(1.4) * 0.5) + 0.3 * 8.0,
        ),
        (ScoreRounding::Once, bf16(1.3 * 0.5 + bf16(0.3 * 7.0)), bf16(1.4 * 0.5 + bf16(0.3 * 8.0))),
        (ScoreRounding::None, 1.3 * 0.5 + 0.3 * 7.0, 1.4 * 0.5 + 0.3 * 8.0),
    ] {
        let rule = AttentionParams { scores, ..rule(Dtype::Bf16) };
        let query = Query { slope: Some(0.3), ..query(&[1.3, 0.7], 7, 9, None) };
        let y = from_position(7, &rule, &[query]);
        let a = math::exp(a - b);
        let b = 1.0;
        assert_eq!(y[1], bf16(bf16(a / (a + b)) * 2.0), "{scores:?}");
    }
}

#[test]
fn numbers_by_distance_add_to_the_scores_of_near_positions() {
    let relative = Some(&[0.3, 0.7][..]);
    for (scores, a, b) in [
        (
            ScoreRounding::Rounded,
            bf16(bf16(bf16(1.3) * 0.5) + 0.7),
            bf16(bf16(bf16(1.4) * 0.5) + 0.3),
        ),
        (ScoreRounding::None, 1.3 * 0.5 + 0.7, 1.4 * 0.5 + 0.3),
    ] {
        let rule = AttentionParams { scores, ..rule(Dtype::Bf16) };
        let query = Query { relative, ..query(&[1.3, 0.7], 7, 9, None) };
        let y = from_position(7, &rule, &[query]);
        assert_eq!(y[1], bf16(bf16(1.0 / (1.0 + math::exp(b - a))) * 2.0), "{scores:?}");
    }
    // The last position that is seen has the first number, and those beyond the numbers have none.
    let rule = rule(Dtype::F32);
    let y = three(
        &rule,
        &[Query { relative: Some(&[2.0_f32.ln()]), ..query(&[2.0, 1.0], 0, 2, None) }],
    );
    approx::assert_relative_eq!(y[2], 11.0 / 3.0, max_relative = 1e-6);
}

#[test]
fn only_the_keys_worth_most_are_seen() {
    let rule = rule(Dtype::F32);
    let salience = Some((&[0.5f32, 0.2, 0.9][..], 1));
    let query = Query { salience, ..query(&[2.0, 1.0], 0, 2, None) };
    let y = three(&rule, &[query]);
    assert_eq!(y, [1.0, 2.0, 3.0]);
    let salience = Some((&[0.0f32, 2.0f32.ln(), 0.9][..], 2));
    let y = three(&rule, &[Query { salience, ..query }]);
    approx::assert_relative_eq!(y[2], 11.0 / 3.0, max_relative = 1e-6);
}

#[test]
fn a_gate_takes_what_the_sink_would_have_taken() {
    let inside = rule(Dtype::F32);
    let gated = AttentionParams { gated: true, ..inside };
    let query = query(&[2.0, 1.0], 0, 2, Some(0.4));
    let a = three(&inside, &[query]);
    let b = three(&gated, &[query]);
    approx::assert_relative_eq!(a[2], b[2], max_relative = 1e-6);
}

/// Numbers of both signs on the grid of `dtype`, the same for the same seed.
fn numbers(count: usize, seed: u64, dtype: Dtype) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut numbers: Vec<f32> = (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 22) as f32 - 2.0
        })
        .collect();
    round(dtype, &mut numbers);
    numbers
}

#[derive(Debug, Clone)]
struct Case {
    key: (usize, usize),
    value: (usize, usize),
    stored: Dtype,
    fp8: bool,
    run: Dtype,
    positions: usize,
    window: Option<usize>,
    /// Tokens at the start that see each other, and the distance between starts of documents.
    mask: (usize, Option<usize>),
    queries: usize,
    sink: Option<f32>,
    form: (ScoreRounding, SoftmaxForm, bool, Option<f32>),
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> {
    let scores = [ScoreRounding::Rounded, ScoreRounding::Once, ScoreRounding::None];
    let softmax = [SoftmaxForm::F32, SoftmaxForm::Activation, SoftmaxForm::Unrounded];
    let form = (
        prop::sample::select(scores.to_vec()),
        prop::sample::select(softmax.to_vec()),
        any::<bool>(),
        prop::option::of(Just(1.5_f32)),
    );
    let sizes = ((1..70_usize, 0..20_usize), (1..70_usize, 0..20_usize));
    let row = (prop_oneof![1..40_usize, 500..1300_usize], prop::option::of(1..700_usize));
    let mask = (prop_oneof![Just(0_usize), 1..60_usize], prop::option::of(1..50_usize));
    let run = (dtypes(), mask);
    // More than are computed together, now and then, whose keys and values are packed for all.
    let queries = prop_oneof![9 => 1..15_usize, 1 => BLOCK_QUERIES + 1..140];
    (sizes, dtypes(), prop::bool::weighted(0.1), run, row, queries, any::<u64>(), form).prop_map(
        |((key, value), stored, fp8, run, (positions, window), queries, seed, form)| {
            let (run, mask) = run;
            let sink = seed.is_multiple_of(3).then_some(0.7);
            let key = if seed.is_multiple_of(2) { (key.0.next_multiple_of(2), 0) } else { key };
            // Rows of whole vectors are read where they lie.
            let (key, value) = if seed.is_multiple_of(4) {
                ((key.0.next_multiple_of(LANES), 0), (value.0.next_multiple_of(LANES), 0))
            } else {
                (key, value)
            };
            Case {
                key,
                value,
                stored,
                fp8,
                run,
                positions,
                window,
                mask,
                queries,
                sink,
                form,
                seed,
            }
        },
    )
}

fn dtypes() -> impl Strategy<Value = Dtype> {
    prop::sample::select(&Dtype::ALL[..])
}

/// Caches of a case: keys and values, in two pieces each.
fn caches(case: &Case) -> [History; 4] {
    let widths = [case.key.0, case.key.1.max(1), case.value.0, case.value.1.max(1)];
    let mut seed = case.seed;
    widths.map(|width| {
        seed = seed.wrapping_add(1);
        // Columns of another head lie on both sides.
        let width = width + 5;
        // A prefix is seen whatever the window.
        let needed = case.window.filter(|_| case.mask.0 == 0).map(|window| window - 1);
        let mut history = if case.fp8 {
            History::fp8(width, 1, needed, case.queries)
        } else {
            History::new(case.stored, width, needed, case.queries)
        };
        for row in numbers(width * case.positions, seed, Dtype::F32).chunks_exact(width) {
            history.append(row);
            history.commit();
        }
        history
    })
}

fn block<'a>(case: &Case, caches: &'a [History; 4], q: &'a [f32]) -> AttendBlock<'a> {
    let [a, b, c, d] = caches;
    let head = CachedHead {
        keys: [a.columns(2, case.key.0), b.columns(2, case.key.1)],
        values: [c.columns(2, case.value.0), d.columns(2, case.value.1)],
        selected: None,
    };
    let dim = case.key.0 + case.key.1;
    let queries = q.chunks_exact(dim).enumerate().map(|(n, q)| {
        // Two heads to a position; the last ones come last.
        let last = case.queries.div_ceil(2) - 1;
        let to = case.positions.saturating_sub(last - n / 2).max(1);
        let document = case.mask.1.map_or(0, |every| (to - 1) / every * every);
        let from = case.window.map_or(0, |window| to.saturating_sub(window)).max(document);
        let prefix = case.mask.0.min(case.positions);
        let (from, to) = if to <= prefix { (0, prefix) } else { (from, to) };
        let slope = case.seed.is_multiple_of(5).then_some(0.01);
        let relative = case.seed.is_multiple_of(7).then(|| &q[..q.len().min(9)]);
        Query { q, from, to, sink: case.sink, slope, relative, salience: None }
    });
    AttendBlock { head, queries: queries.collect() }
}

proptest! {
    #[test]
    fn all_loops_give_the_bits_of_the_plain_form(case in case()) {
        let caches = caches(&case);
        let dim = case.key.0 + case.key.1;
        let (scores, softmax, gated, softcap) = case.form;
        let rule = AttentionParams {
            key_dim: dim,
            value_dim: case.value.0 + case.value.1,
            scale: 0.3,
            softcap,
            round: case.run,
            softmax,
            scores,
            gated,
        };
        let q = numbers(case.queries * dim, case.seed ^ 1, case.run);
        let full_block = block(&case, &caches, &q);
        let want = reference::attend(&rule, &full_block);
        for isa in Isa::available() {
            let spans = SpanBlock::new(isa, &rule, full_block.head, &full_block.queries);
            let both = [by_block(&spans), by_span(&[spans]).concat()];
            let apart: Vec<AttendBlock<'_>> = full_block
                .queries
                .iter()
                .map(|query| AttendBlock { head: full_block.head, queries: vec![*query] })
                .collect();
            let apart = attend_on(isa, &rule, &apart).concat();
            for (name, got) in ["block", "spans", "alone"].iter().zip(both.iter().chain([&apart])) {
                for (n, (got, want)) in got.iter().zip(&want).enumerate() {
                    prop_assert_eq!(got.to_bits(), want.to_bits(), "{:?} {} {}: {} {}", isa, name, n, got, want);
                }
            }
        }
    }
}

#[test]
fn selected_positions_are_read_where_they_lie() {
    let rule = rule(Dtype::F32);
    let head = CachedHead {
        keys: columns(&KEYS, 2, 0),
        values: columns(&VALUES, 3, 0),
        selected: Some(&[1]),
    };
    let queries = vec![Query { q: &[2.0, 1.0], to: 1, ..Query::default() }];
    let nothing = AttendBlock { head, queries: Vec::new() };
    let outputs = attend(&rule, &[AttendBlock { head, queries }, nothing]);
    assert_eq!(outputs, [vec![-1.0, 0.0, 4.0], vec![]]);
}
