//! Each op against values computed by hand or by the reference code.

use std::collections::BTreeMap;

use onboard_engine::{Session, SessionOptions};
use registry::dtype::Dtype;
use registry::graph::{StateKind, ValueId, WeightId};
use registry::scalar::Scalar;

use crate::build::{Build, feed, open, options};

/// The same on every grid that holds it.
pub(crate) fn run(b: Build, out: ValueId, dtype: Dtype, rows: usize) -> Vec<f32> {
    let mut session: Box<dyn Session> =
        open(b.model(out), &SessionOptions { rewrites: false, ..options(dtype) });
    let slot = session.open_slot();
    let ids: Vec<u32> = (0..rows as u32).collect();
    feed(&mut *session, slot, &ids).data
}

/// A graph whose value has the given rows.
pub(crate) fn rows(data: &[&[f32]]) -> (Build, ValueId) {
    let width = data[0].len();
    let mut b = Build::new(data.len());
    let table = b.weight(&[data.len(), width], &data.concat());
    let x = b.embed(table, width);
    (b, x)
}

pub(crate) fn attrs(list: &[(&str, Scalar)]) -> BTreeMap<String, Scalar> {
    list.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect()
}

fn text(s: &str) -> Scalar {
    Scalar::Str(s.to_owned())
}

const X: [f32; 4] = [-2.0, -0.5, 0.75, 3.0];

/// Ops of one value: rows in, rows out, in f32 and in bf16.
#[test]
fn pointwise_ops_in_both_precisions() {
    let none: &[(&str, Scalar)] = &[];
    // From torch 2.15, `torch.nn.functional` and the expressions of transformers' activations.
    for (op, list, f32s, bf16s) in [
        (
            "silu",
            none,
            [-0.238_405_84, -0.188_770_33, 0.509_384_6, 2.857_722_3],
            [-0.238_281_25, -0.188_476_56, 0.507_812_5, 2.859_375],
        ),
        (
            "gelu",
            none,
            [-0.045_500_28, -0.154_268_77, 0.580_029_5, 2.995_949_7],
            [-0.045_410_156, -0.154_296_88, 0.578_125, 3.0],
        ),
        (
            "gelu_new",
            none,
            [-0.045_402_29, -0.154_286, 0.579_960_6, 2.996_362_7],
            [-0.046_875, -0.154_296_88, 0.578_125, 3.0],
        ),
        (
            "gelu_fast",
            none,
            [-0.045_402_29, -0.154_286, 0.579_960_6, 2.996_362_7],
            [-0.046_875, -0.154_296_88, 0.578_125, 3.0],
        ),
        (
            "quick_gelu",
            none,
            [-0.064_341_374, -0.149_611_56, 0.586_39, 2.981_929],
            [-0.063_964_844, -0.149_414_06, 0.585_937_5, 2.968_75],
        ),
        ("relu", none, [0.0, 0.0, 0.75, 3.0], [0.0, 0.0, 0.75, 3.0]),
        ("relu2", none, [0.0, 0.0, 0.5625, 9.0], [0.0, 0.0, 0.5625, 9.0]),
        (
            "sigmoid",
            none,
            [0.119_202_92, 0.377_540_68, 0.679_178_7, 0.952_574_13],
            [0.119_140_625, 0.376_953_13, 0.679_687_5, 0.953_125],
        ),
        (
            "scale",
            &[("s", Scalar::Float(0.1))],
            [-0.2, -0.05, 0.075, 0.3],
            [-0.200_195_31, -0.050_048_828, 0.075_195_31, 0.300_781_25],
        ),
        (
            "offset",
            &[("s", Scalar::Float(0.1))],
            [-1.9, -0.4, 0.85, 3.1],
            [-1.898_437_5, -0.400_390_63, 0.851_562_5, 3.093_75],
        ),
        (
            "divide",
            &[("s", Scalar::Int(3))],
            [-0.666_666_7, -0.166_666_67, 0.25, 1.0],
            [-0.667_968_75, -0.166_992_19, 0.25, 1.0],
        ),
        ("inverse", &[("s", Scalar::Int(3))], [-1.5, -6.0, 4.0, 1.0], [-1.5, -6.0, 4.0, 1.0]),
        (
            "clamp",
            &[("lo", Scalar::Int(-1)), ("hi", Scalar::Float(0.5))],
            [-1.0, -0.5, 0.5, 0.5],
            [-1.0, -0.5, 0.5, 0.5],
        ),
        (
            "clamp",
            &[("lo", Scalar::Null), ("hi", Scalar::Int(1))],
            [-2.0, -0.5, 0.75, 1.0],
            [-2.0, -0.5, 0.75, 1.0],
        ),
        (
            "softcap",
            &[("c", Scalar::Int(2))],
            [-1.523_188_4, -0.489_837_33, 0.716_713_96, 1.810_296_5],
            [-1.523_437_5, -0.490_234_38, 0.714_843_75, 1.812_5],
        ),
    ] {
        for (dtype, want, within) in [(Dtype::F32, f32s, 1e-6), (Dtype::Bf16, bf16s, 0.0)] {
            let (mut b, x) = rows(&[&X]);
            let (node, y) = b.node(op, &[x], &[4]);
            node.attrs = attrs(list);
            for (got, want) in run(b, y, dtype, 1).into_iter().zip(want) {
                assert!(
                    (got - want).abs() <= within,
                    "{op} {list:?} in {dtype}: {got}, not {want}"
                );
            }
        }
    }
}

#[test]
fn norms() {
    let x: [f32; 4] = [1.0, -2.0, 3.0, 1.5];
    let w: [f32; 4] = [1.003_906_3, 0.5, -0.25, 2.0];
    let rms = ((1.0 + 4.0 + 9.0 + 2.25) / 4.0 + 1e-5f32).sqrt();
    let rw = w.map(bf16);
    let mean = 0.875;
    let std = (x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / 4.0 + 1e-5).sqrt();
    for (op, list, dtype, want) in [
        ("rms_norm", vec![], Dtype::F32, by_index(&|i| w[i] * (x[i] / rms))),
        (
            "rms_norm",
            vec![("cast", text("before"))],
            Dtype::Bf16,
            by_index(&|i| bf16(rw[i] * bf16(x[i] / rms))),
        ),
        (
            "rms_norm",
            vec![("cast", text("after"))],
            Dtype::Bf16,
            by_index(&|i| bf16(rw[i] * (x[i] / rms))),
        ),
        (
            "rms_norm",
            vec![("cast", text("after")), ("plus_one", Scalar::Bool(true))],
            Dtype::Bf16,
            by_index(&|i| bf16((1.0 + rw[i]) * (x[i] / rms))),
        ),
        ("layer_norm", vec![], Dtype::F32, by_index(&|i| w[i] * ((x[i] - mean) / std))),
        ("l2_norm", vec![], Dtype::F32, by_index(&|i| x[i] / rms)),
    ] {
        let (mut b, value) = rows(&[&x]);
        let weight = b.weight(&[4], &w);
        let (node, y) = b.node(op, &[value], &[4]);
        node.attrs = attrs(&list);
        node.attrs.insert("eps".into(), Scalar::Float(1e-5));
        if op != "l2_norm" {
            node.weights.insert("weight".into(), weight);
        }
        for (got, want) in run(b, y, dtype, 1).into_iter().zip(want) {
            assert!(
                (got - want).abs() <= 1e-6 * want.abs(),
                "{op} {list:?} in {dtype}: {got}, not {want}"
            );
        }
    }
}

fn by_index(f: &dyn Fn(usize) -> f32) -> [f32; 4] {
    [0, 1, 2, 3].map(f)
}

fn bf16(x: f32) -> f32 {
    half::bf16::from_f32(x).to_f32()
}

#[test]
fn norms_with_a_weight_per_head() {
    let want = [-1.0, 2.0, 3.0, -4.0];
    assert_eq!(layer_norm_of_heads(&[("weight", &[1.0, 2.0, 3.0, 4.0], &[2, 2])]), want);
    assert_eq!(
        layer_norm_of_heads(&[("weight.0", &[1.0, 2.0], &[2]), ("weight.1", &[3.0, 4.0], &[2])]),
        want
    );
    assert_eq!(
        layer_norm_of_heads(&[("weight", &[1.0, 2.0], &[2]), ("bias", &[0.5, 0.0], &[2])]),
        [-0.5, 2.0, 1.5, -2.0]
    );
}

fn layer_norm_of_heads(roles: &[(&str, &[f32], &[usize])]) -> Vec<f32> {
    let (mut b, x) = rows(&[&[1.0, 3.0, 5.0, 1.0]]);
    let ids: Vec<(String, WeightId)> =
        roles.iter().map(|(r, w, s)| ((*r).to_owned(), b.weight(s, w))).collect();
    let (_, x) = b.node("heads", &[x], &[2, 2]);
    let (node, y) = b.node("layer_norm", &[x], &[2, 2]);
    node.weights.extend(ids);
    node.attrs = attrs(&[("eps", Scalar::Float(0.0))]);
    run(b, y, Dtype::F32, 1)
}

#[test]
fn arithmetic_of_two_values_broadcasts_and_rounds_once() {
    for (op, want) in
        [("add", [1.25, 4.0]), ("sub", [0.75, 2.0]), ("mul", [0.25, 3.0]), ("div", [4.0, 3.0])]
    {
        let (mut b, x) = rows(&[&[1.0, 3.0, 0.25, 1.0]]);
        let (_, a) = b.node("split", &[x], &[2]);
        let second = b.value("b", &[2]);
        b.graph.nodes.last_mut().unwrap().outputs.push(second);
        let (_, y) = b.node(op, &[a, second], &[2]);
        assert_eq!(run(b, y, Dtype::Bf16, 1), want, "{op}");
    }
    // [2, 2] times a raw weight [2, 1], and a value of one number.
    let (mut b, x) = rows(&[&[1.0, 2.0, 3.0, 4.0]]);
    let scale = b.weight(&[2, 1], &[10.0, 100.0]);
    let (_, x) = b.node("heads", &[x], &[2, 2]);
    let (node, y) = b.node("weight_scale", &[x], &[2, 2]);
    node.weights.insert("scale".into(), scale);
    assert_eq!(run(b, y, Dtype::F32, 1), [10.0, 20.0, 300.0, 400.0]);
    let (mut b, x) = rows(&[&[1.0, 2.0], &[3.0, 4.0]]);
    let (node, one) = b.node("slice", &[x], &[1]);
    node.attrs = attrs(&[("from", Scalar::Int(1)), ("to", Scalar::Int(2))]);
    let (_, y) = b.node("mul", &[x, one], &[2]);
    assert_eq!(run(b, y, Dtype::F32, 2), [2.0, 4.0, 12.0, 16.0]);
}

#[test]
fn shapes_move_numbers_without_changing_them() {
    let (mut b, x) = rows(&[&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]]);
    let (_, x) = b.node("heads", &[x], &[2, 2]);
    let (_, first) = b.node("split", &[x], &[2, 1]);
    let second = b.value("second", &[2, 1]);
    b.graph.nodes.last_mut().unwrap().outputs.push(second);
    let (_, swapped) = b.node("concat", &[second, first], &[2, 2]);
    let (_, y) = b.node("merge", &[swapped], &[4]);
    assert_eq!(run(b, y, Dtype::F32, 2), [2.0, 1.0, 4.0, 3.0, 6.0, 5.0, 8.0, 7.0]);
}

/// The function applied to an intermediate number.
type Step = fn(f32) -> f32;

#[test]
fn rope_rotates_pairs_by_position() {
    let row: &[f32] = &[1.0, 2.0, 3.0, 4.0, 9.0, 9.0];
    for (layout, pairs) in [("half", [(0, 2), (1, 3)]), ("interleaved", [(0, 1), (2, 3)])] {
        for (compute, dtype) in [
            ("activation", Dtype::Bf16),
            ("qk_f32", Dtype::Bf16),
            ("f32", Dtype::Bf16),
            ("activation", Dtype::F32),
        ] {
            let (mut b, x) = rows(&[row, row, row]);
            let table = b.rope(&[1.0, 0.25]);
            let (_, x) = b.node("heads", &[x], &[1, 6]);
            let (node, y) = b.node("rope", &[x], &[1, 6]);
            node.rope = Some(table);
            node.attrs = attrs(&[("layout", text(layout)), ("compute", text(compute))]);
            let got = run(b, y, dtype, 3);
            let round: Step = if dtype == Dtype::F32 { |x| x } else { bf16 };
            let (table, inner): (Step, Step) = match (compute, dtype) {
                ("activation", Dtype::Bf16) => (bf16, bf16),
                ("qk_f32", _) => (bf16, |x| x),
                _ => (|x| x, |x| x),
            };
            for p in 0..3 {
                let mut want = row.to_vec();
                for (n, (i, j)) in pairs.into_iter().enumerate() {
                    let angle = p as f32 * [1.0, 0.25][n];
                    let c = table(angle.cos());
                    let s = table(angle.sin());
                    want[i] = round(inner(row[i] * c) + inner(-row[j] * s));
                    want[j] = round(inner(row[j] * c) + inner(row[i] * s));
                }
                assert_eq!(got[p * 6..(p + 1) * 6], want, "{layout} {compute} {dtype} at {p}");
            }
        }
    }
}

/// Frequencies 1 and 1/4, the second of which a tensor makes 1 for one of two nodes.
#[test]
fn a_tensor_stretches_the_frequencies_of_its_node_alone() {
    let rotated = |logs: Option<[f32; 2]>, other: bool| {
        let row: &[f32] = &[1.0, 2.0, 3.0, 4.0];
        let (mut b, x) = rows(&[row, row, row]);
        let frequencies = if logs.is_some() { [1.0, 0.25] } else { [1.0, 1.0] };
        let table = b.rope(&frequencies);
        let stretch = logs.map(|logs| b.weight(&[2], &logs));
        let (_, x) = b.node("heads", &[x], &[1, 4]);
        let list = attrs(&[("layout", text("half")), ("compute", text("f32"))]);
        let (node, plain) = b.node("rope", &[x], &[1, 4]);
        node.rope = Some(table);
        node.attrs = list.clone();
        let (node, y) = b.node("rope", &[x], &[1, 4]);
        node.rope = Some(table);
        node.attrs = list;
        node.weights = stretch.map(|weight| ("stretch".to_owned(), weight)).into_iter().collect();
        run(b, if other { plain } else { y }, Dtype::F32, 3)
    };
    let logs = Some([0.0, 4.0_f32.ln()]);
    let same = rotated(None, false);
    let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(near(&rotated(logs, false), &same));
    assert!(!near(&rotated(logs, true), &same));
}

#[test]
fn attention_sees_its_window_and_groups_heads() {
    // One key head for two query heads; equal scores, so an output is the mean of the values seen.
    for (window, want) in [
        (None, [1.0, 1.5, 2.0, 2.5]),
        (Some(2), [1.0, 1.5, 2.5, 3.5]),
        (Some(1), [1.0, 2.0, 3.0, 4.0]),
    ] {
        let (mut b, x) =
            rows(&[&[0.0, 0.0, 1.0], &[0.0, 0.0, 2.0], &[0.0, 0.0, 3.0], &[0.0, 0.0, 4.0]]);
        let (node, q) = b.node("slice", &[x], &[2]);
        node.attrs = attrs(&[("from", Scalar::Int(0))]);
        let (_, q) = b.node("heads", &[q], &[2, 1]);
        let (node, v) = b.node("slice", &[x], &[1]);
        node.attrs = attrs(&[("from", Scalar::Int(2))]);
        let (_, v) = b.node("heads", &[v], &[1, 1]);
        let state = b.state(StateKind::Attention, &[("k", &[1, 1]), ("v", &[1, 1])], window);
        let (node, y) = b.node("attend", &[q, v, v], &[2]);
        node.state = Some(state);
        node.attrs = attrs(&[("scale", Scalar::Float(1.0)), ("softcap", Scalar::Null)]);
        if let Some(w) = window {
            node.attrs.insert("window".into(), Scalar::Int(w as i64));
        }
        let got = run(b, y, Dtype::F32, 4);
        for (row, want) in got.chunks_exact(2).zip(want) {
            assert!(
                row.iter().all(|x| (x - want).abs() < 1e-6),
                "window {window:?}: {row:?}, not {want}"
            );
        }
    }
}

#[test]
fn a_sink_takes_its_share() {
    let (mut b, x) = rows(&[&[0.0, 6.0]]);
    let (_, x) = b.node("heads", &[x], &[2, 1]);
    let state = b.state(StateKind::Attention, &[("k", &[2, 1]), ("v", &[2, 1])], None);
    let sinks = b.weight(&[2], &[0.0, 2f32.ln() + 36.0]);
    let (node, y) = b.node("attend", &[x, x, x], &[2]);
    node.state = Some(state);
    node.weights.insert("sinks".into(), sinks);
    node.attrs = attrs(&[("scale", Scalar::Float(1.0))]);
    let got = run(b, y, Dtype::F32, 1);
    // The score 36 against a sink of 36 + ln 2 weighs a third.
    assert!(got[0] == 0.0 && (got[1] - 2.0).abs() < 1e-5, "{got:?}");
}

#[test]
fn convolution_reads_the_last_inputs_of_its_channel() {
    let (mut b, x) = rows(&[&[1.0, 10.0], &[2.0, 20.0], &[3.0, 30.0]]);
    let state = b.state(StateKind::Conv, &[("conv", &[2, 2])], None);
    let w = b.weight(&[2, 1, 3], &[1.0, 10.0, 100.0, 0.0, 0.0, 1.0]);
    let bias = b.weight(&[2], &[0.5, -40.0]);
    let (node, y) = b.node("causal_conv", &[x], &[2]);
    node.state = Some(state);
    node.weights.extend([("weight".into(), w), ("bias".into(), bias)]);
    node.attrs = attrs(&[("width", Scalar::Int(3)), ("activation", text("relu"))]);
    let mut session = open(b.model(y), &options(Dtype::F32));
    let slot = session.open_slot();
    assert_eq!(feed(&mut *session, slot, &[0]).data, [100.5, 0.0]);
    assert_eq!(
        session.states(slot).unwrap()[0].data,
        [0.0, 1.0, 0.0, 10.0],
        "zeros where nothing was yet"
    );
    assert_eq!(feed(&mut *session, slot, &[1, 2]).data, [210.5, 0.0, 321.5, 0.0]);
    assert_eq!(session.states(slot).unwrap()[0].data, [2.0, 3.0, 20.0, 30.0]);
}

#[test]
fn xielu_follows_its_two_branches() {
    let (mut b, x) = rows(&[&X]);
    let weights = [
        ("alpha_p", 0.3, &[1][..]),
        ("alpha_n", -0.2, &[1]),
        ("beta", 0.5, &[]),
        ("eps", -1e-6, &[]),
    ]
    .map(|(r, v, s)| (r.to_owned(), b.weight(s, &[v])));
    let (node, y) = b.node("xielu", &[x], &[4]);
    node.weights.extend(weights);
    let p = 0.3f32.exp().ln_1p();
    let n = 0.5 + (-0.2f32).exp().ln_1p();
    for (got, x) in run(b, y, Dtype::F32, 1).into_iter().zip(X) {
        let want =
            if x > 0.0 { p * x * x + 0.5 * x } else { (x.min(-1e-6).exp_m1() - x) * n + 0.5 * x };
        assert!((got - want).abs() < 1e-6, "{x}: {got}, not {want}");
    }
}

#[test]
fn embedding_scales_by_a_number_of_its_dtype() {
    let mut b = Build::new(1);
    let table = b.weight(&[1, 2], &[1.0, 3.0]);
    let x = b.embed(table, 2);
    b.graph.nodes[0].attrs = attrs(&[("scale", Scalar::Float(1.005))]);
    assert_eq!(run(b, x, Dtype::Bf16, 1), [1.007_812_5, 3.031_25]);
}

/// Scores 1, 3, 2 of three experts: the second and the third are chosen, and share a weight of 1.
#[test]
fn experts_that_are_chosen_are_added_up() {
    for form in ["glu", "plain"] {
        let (mut b, x) = rows(&[&[1.0, 3.0, 2.0]]);
        let chosen = node_with(&mut b, "choose", &[x], &[2], &[("k", Scalar::Int(2))]);
        let some = node_with(&mut b, "pick", &[x, chosen], &[2], &[]);
        let total = node_with(&mut b, "total", &[some], &[1], &[]);
        let weights = node_with(&mut b, "div", &[some, total], &[2], &[]);
        // Expert e multiplies the first number by e, the gate by 1, and gives it in every place.
        let parts: Vec<(String, WeightId)> = (0..3)
            .flat_map(|e| [("gate", 1.0, e), ("up", e as f32, e), ("down", 1.0, e)])
            .map(|(part, size, e)| {
                let shape: &[usize] = if part == "down" { &[3, 1] } else { &[1, 3] };
                let data: &[f32] = if part == "down" { &[1.0; 3] } else { &[size, 0.0, 0.0] };
                (format!("{part}.{e}"), b.weight(shape, data))
            })
            .collect();
        let (node, out) = b.node("experts", &[x, chosen, weights], &[3]);
        node.weights = parts.into_iter().collect();
        node.attrs = attrs(&[
            ("n", Scalar::Int(3)),
            ("ffn", Scalar::Int(1)),
            ("act", text("relu")),
            ("form", text(form)),
        ]);
        // 0.6 of expert 1 and 0.4 of expert 2, on x[0] = 1.
        let got = run(b, out, Dtype::F32, 1);
        assert!(got.iter().all(|y| (y - 1.4).abs() < 1e-6), "{form} {got:?}");
    }
}

fn node_with(
    b: &mut Build,
    op: &str,
    inputs: &[ValueId],
    shape: &[usize],
    list: &[(&str, Scalar)],
) -> ValueId {
    let (node, out) = b.node(op, inputs, shape);
    node.attrs = attrs(list);
    out
}
