//! Steps of mixtures, states, streams and attention that rules and calls join to ops.

use onboard_derive::graph::{Dim, Graph, Id, Kind};
use onboard_derive::number::Number;
use onboard_derive::read::Reader;
use onboard_derive::record::Record;
use serde_json::{Value as Json, json};

/// Adds a step with attributes and sizes.
fn step(
    graph: &mut Graph,
    op: &str,
    inputs: &[Id],
    attributes: &[(&str, Number)],
    sizes: &[usize],
    kind: Kind,
) -> Id {
    let shape = sizes.iter().map(|&size| Dim::plain(size)).collect();
    let mut term = graph.step(op, inputs, shape, kind);
    for (name, value) in attributes {
        term.set(name, value.clone());
    }
    graph.add(term)
}

fn weight(graph: &mut Graph, path: &str) -> Id {
    let path = [("path", Number::Word(path.to_owned()))];
    step(graph, "weight", &[], &path, &[8], Kind::Activation)
}

fn number(value: f64) -> [(&'static str, Number); 1] {
    [("s", Number::Real(value))]
}

#[test]
fn a_blend_has_one_weight() {
    for (other, op) in [("mix", "weight_blend"), ("other", "add")] {
        let mut graph = Graph::default();
        let rows = step(&mut graph, "rows", &[], &[], &[8], Kind::Activation);
        let before = step(&mut graph, "before", &[], &[], &[8], Kind::Activation);
        let mix = weight(&mut graph, "mix");
        let second = weight(&mut graph, other);
        let negative = step(&mut graph, "neg", &[second], &[], &[8], Kind::Activation);
        let factor = step(&mut graph, "offset", &[negative], &number(1.0), &[8], Kind::Activation);
        let left = step(&mut graph, "mul", &[rows, mix], &[], &[8], Kind::Activation);
        let right = step(&mut graph, "mul", &[before, factor], &[], &[8], Kind::Activation);
        let sum = step(&mut graph, "add", &[left, right], &[], &[8], Kind::Activation);
        assert_eq!(graph.term(sum).op, op);
    }
}

#[test]
fn a_factor_by_the_logarithm_of_a_position_is_bounded_by_1() {
    for (bound, op) in [(1.0, "temperature"), (2.0, "mul")] {
        let mut graph = Graph::default();
        let rows = step(&mut graph, "rows", &[], &[], &[8], Kind::Float);
        let place = step(&mut graph, "positions", &[], &[], &[], Kind::Int);
        let share = step(&mut graph, "divide", &[place], &number(4.0), &[], Kind::Float);
        let bound = [("lo", Number::Real(bound))];
        let least = step(&mut graph, "clamp", &[share], &bound, &[], Kind::Float);
        let logarithm = step(&mut graph, "log", &[least], &[], &[], Kind::Float);
        let scaled = step(&mut graph, "scale", &[logarithm], &number(0.1), &[], Kind::Float);
        let factor = step(&mut graph, "offset", &[scaled], &number(1.0), &[], Kind::Float);
        let product = step(&mut graph, "mul", &[rows, factor], &[], &[8], Kind::Float);
        assert_eq!(graph.term(product).op, op);
        assert_eq!(graph.term(product).word("form"), (op == "temperature").then_some("log_ratio"));
    }
}

#[test]
fn a_softmax_takes_its_sum_from_the_same_row() {
    for (same, op) in [(true, "softmax"), (false, "exp")] {
        let mut graph = Graph::default();
        let rows = step(&mut graph, "rows", &[], &[], &[8], Kind::Float);
        let other = step(&mut graph, "other", &[], &[], &[8], Kind::Float);
        let source = if same { rows } else { other };
        let sum = step(&mut graph, "lse_row", &[source], &[], &[1], Kind::Float);
        let gap = step(&mut graph, "sub", &[rows, sum], &[], &[8], Kind::Float);
        let power = step(&mut graph, "exp", &[gap], &[], &[8], Kind::Float);
        assert_eq!(graph.term(power).op, op);
    }
}

/// A matrix divided by the sums of its columns, of its rows, and of its columns again.
fn balanced(last: f64) -> (Graph, Id) {
    let mut graph = Graph::default();
    let mut matrix = step(&mut graph, "matrix", &[], &[], &[3, 3], Kind::Float);
    for (op, eps) in [("sum_axis", 0.1), ("sum", 0.1), ("sum_axis", last)] {
        let columns = op == "sum_axis";
        let axis = [("axis", Number::Int(0))];
        let (attributes, sizes): (&[_], &[_]) =
            if columns { (&axis, &[3]) } else { (&[], &[3, 1]) };
        let sum = step(&mut graph, op, &[matrix], attributes, sizes, Kind::Float);
        let sum = step(&mut graph, "offset", &[sum], &number(eps), sizes, Kind::Float);
        matrix = step(&mut graph, "div", &[matrix, sum], &[], &[3, 3], Kind::Float);
    }
    (graph, matrix)
}

#[test]
fn rounds_of_a_balanced_matrix_are_counted() {
    let (graph, matrix) = balanced(0.1);
    assert_eq!(graph.term(matrix).op, "sinkhorn");
    assert_eq!(graph.term(matrix).attribute("iterations"), Some(&Number::Int(2)));
    let (graph, matrix) = balanced(0.2);
    assert_eq!(graph.term(matrix).attribute("iterations"), Some(&Number::Int(1)));
    let rows = graph.term(matrix).inputs[0];
    assert_eq!(graph.term(rows).op, "balanced_rows", "other rounds have another number");
}

#[test]
fn a_length_is_at_least_the_epsilon_of_its_dtype() {
    for (bound, op) in [(0.007_812_5, "p_norm"), (0.01, "clamp")] {
        let mut graph = Graph::default();
        let rows = step(&mut graph, "rows", &[], &[], &[4, 8], Kind::Activation);
        let power = [("p", Number::Int(2))];
        let length = step(&mut graph, "p_norm", &[rows], &power, &[4, 1], Kind::Activation);
        let bound = [("lo", Number::Real(bound))];
        let least = step(&mut graph, "clamp", &[length], &bound, &[4, 1], Kind::Activation);
        assert_eq!(graph.term(least).op, op);
    }
}

#[test]
fn the_last_choice_alone_stands_for_no_expert() {
    for (place, op) in [(5, "choose_or_none"), (4, "masked_fill")] {
        let mut graph = Graph::default();
        let scores = step(&mut graph, "scores_of_experts", &[], &[], &[6], Kind::Float);
        let count = [("k", Number::Int(1))];
        let chosen = step(&mut graph, "choose", &[scores], &count, &[1], Kind::Int);
        let place = [("s", Number::Int(place))];
        let test = step(&mut graph, "eq", &[chosen], &place, &[1], Kind::Bool);
        let zero = [("value", Number::Int(0))];
        let filled = step(&mut graph, "masked_fill", &[chosen, test], &zero, &[1], Kind::Int);
        assert_eq!(graph.term(filled).op, op);
    }
}

#[test]
fn numbers_by_distance_are_added_before_the_mask() {
    let mut graph = Graph::default();
    let query = step(&mut graph, "query", &[], &[], &[4, 8], Kind::Activation);
    let key = step(&mut graph, "key", &[], &[], &[4, 8], Kind::Activation);
    let numbers = step(&mut graph, "numbers", &[], &[], &[4, 7], Kind::Activation);
    let relative = step(&mut graph, "relative", &[numbers], &[], &[4], Kind::Activation);
    let scores = step(&mut graph, "scores", &[query, key], &[], &[4], Kind::Activation);
    let sum = step(&mut graph, "add", &[scores, relative], &[], &[4], Kind::Activation);
    assert_eq!(graph.term(sum).op, "scores");
    assert_eq!(graph.term(sum).inputs[2], numbers);
    let kind = [("kind", Number::Word("create_causal_mask".to_owned()))];
    let mask = step(&mut graph, "mask", &[], &kind, &[], Kind::Activation);
    let masked = step(&mut graph, "add", &[scores, mask], &[], &[4], Kind::Activation);
    let late = step(&mut graph, "add", &[masked, relative], &[], &[4], Kind::Activation);
    assert_eq!(graph.term(late).op, "add");
}

#[test]
fn sinks_are_weights_or_numbers_of_the_query() {
    for (op, size, name) in
        [("weight", 4, Some("sinks")), ("row", 4, Some("query_sinks")), ("row", 3, None)]
    {
        let mut graph = Graph::default();
        let query = step(&mut graph, "query", &[], &[], &[4, 8], Kind::Activation);
        let key = step(&mut graph, "key", &[], &[], &[4, 8], Kind::Activation);
        let path = [("path", Number::Word("sinks".to_owned()))];
        let column = step(&mut graph, op, &[], &path, &[size], Kind::Activation);
        let scores = step(&mut graph, "scores", &[query, key], &[], &[4], Kind::Activation);
        let wide = step(&mut graph, "with_sinks", &[scores, column], &[], &[4], Kind::Activation);
        let joined = graph.term(wide);
        assert_eq!(joined.op == "scores", name.is_some());
        assert!(name.is_none_or(|name| joined.attribute(name) == Some(&Number::Int(2))));
    }
}

/// The sum of the results of all experts, on rows times factors of which the others are 0, or the lowest number.
fn all_experts(fill: f64) -> (Graph, Id) {
    let mut graph = Graph::default();
    let kind = Kind::Activation;
    let scores = step(&mut graph, "router_scores", &[], &[], &[3], kind);
    let chosen = step(&mut graph, "choose", &[scores], &[("k", Number::Int(2))], &[2], Kind::Int);
    let picked = step(&mut graph, "pick", &[scores, chosen], &[], &[2], kind);
    let fill = [("fill", Number::Real(fill))];
    let base = step(&mut graph, "filled", &[], &fill, &[3], kind);
    let spread = step(&mut graph, "scatter", &[base, chosen, picked], &[], &[3], kind);
    let factors = step(&mut graph, "sigmoid", &[spread], &[], &[3], kind);
    let column = step(&mut graph, "with_ones", &[factors], &[], &[3, 1], kind);
    let rows = step(&mut graph, "rows", &[], &[], &[4], kind);
    let all = step(&mut graph, "expand", &[rows], &[("at", Number::Int(0))], &[3, 4], kind);
    let weighed = step(&mut graph, "mul", &[all, column], &[], &[3, 4], kind);
    let layout = [("layout", Number::Word("in_out".to_owned()))];
    let stack = weight(&mut graph, "experts.gate_up_proj");
    let fused = step(&mut graph, "heads_linear", &[weighed, stack], &layout, &[3, 10], kind);
    let part = |from: i64, to: i64| [("start", Number::Int(from)), ("end", Number::Int(to))];
    let gate = step(&mut graph, "slice", &[fused], &part(0, 5), &[3, 5], kind);
    let up = step(&mut graph, "slice", &[fused], &part(5, 10), &[3, 5], kind);
    let act = step(&mut graph, "silu", &[gate], &[], &[3, 5], kind);
    let inner = step(&mut graph, "mul", &[act, up], &[], &[3, 5], kind);
    let stack = weight(&mut graph, "experts.down_proj");
    let down = step(&mut graph, "heads_linear", &[inner, stack], &layout, &[3, 4], kind);
    let sum = step(&mut graph, "sum_axis", &[down], &[("axis", Number::Int(0))], &[4], kind);
    (graph, sum)
}

#[test]
fn experts_that_a_row_did_not_choose_get_a_factor_of_0() {
    let (graph, sum) = all_experts(f64::NEG_INFINITY);
    let experts = graph.term(sum);
    assert_eq!((experts.op.as_str(), experts.word("weigh")), ("experts", Some("input")));
    assert_eq!(graph.term(experts.inputs[2]).op, "sigmoid");
    let (graph, sum) = all_experts(0.0);
    assert_eq!(graph.term(sum).op, "sum_axis");
}

/// Attention to keys that go round over the heads, and to values that go round as often or not.
fn rounds(of_values: i64) -> (Graph, Id) {
    let mut graph = Graph::default();
    let query = step(&mut graph, "query", &[], &[], &[4, 8], Kind::Activation);
    let key = step(&mut graph, "key", &[], &[], &[2, 8], Kind::Activation);
    let value = step(&mut graph, "value", &[], &[], &[2, 8], Kind::Activation);
    let times = |n: i64| [("axis", Number::Int(0)), ("n", Number::Int(n))];
    let keys = step(&mut graph, "repeat_all", &[key], &times(2), &[4, 8], Kind::Activation);
    let values =
        step(&mut graph, "repeat_all", &[value], &times(of_values), &[4, 8], Kind::Activation);
    let soft = [("soft", Number::Word("f32".to_owned()))];
    let scores = step(&mut graph, "scores", &[query, keys], &soft, &[4], Kind::Activation);
    let attended = step(&mut graph, "attended", &[scores, values], &[], &[4, 8], Kind::Activation);
    (graph, attended)
}

#[test]
fn queries_of_keys_that_go_round_are_regrouped() {
    let (graph, attended) = rounds(2);
    let back = graph.term(attended);
    assert_eq!((back.op.as_str(), back.attribute("n")), ("regroup", Some(&Number::Int(2))));
    let attend = graph.term(back.inputs[0]);
    assert_eq!(attend.op, "attend");
    assert_eq!(graph.term(attend.inputs[0]).op, "regroup");
    assert_eq!(graph.term(attend.inputs[1]).op, "key");
    let (graph, attended) = rounds(1);
    assert_ne!(graph.term(attended).op, "regroup");
}

#[test]
fn keys_of_a_latent_need_no_rotated_part() {
    let mut graph = Graph::default();
    let latent = step(&mut graph, "latent", &[], &[], &[6], Kind::Activation);
    let layer = [("layer", Number::Int(0))];
    let cached = step(&mut graph, "cached", &[latent], &layer, &[6], Kind::Activation);
    let matrix = weight(&mut graph, "expand.weight");
    let expanded = step(&mut graph, "linear", &[cached, matrix], &[], &[20], Kind::Activation);
    let two = [("at", Number::Int(0)), ("count", Number::Int(2))];
    let heads = step(&mut graph, "split_axis", &[expanded], &two, &[2, 10], Kind::Activation);
    let part = |from: i64, to: i64| [("start", Number::Int(from)), ("end", Number::Int(to))];
    let key = step(&mut graph, "slice", &[heads], &part(0, 6), &[2, 6], Kind::Activation);
    let value = step(&mut graph, "slice", &[heads], &part(6, 10), &[2, 4], Kind::Activation);
    let query = step(&mut graph, "query", &[], &[], &[2, 6], Kind::Activation);
    let soft = [("soft", Number::Word("f32".to_owned()))];
    let scores = step(&mut graph, "scores", &[query, key], &soft, &[2], Kind::Activation);
    let attended = step(&mut graph, "attended", &[scores, value], &[], &[2, 4], Kind::Activation);
    let joined = graph.term(attended);
    assert_eq!(
        (joined.op.as_str(), joined.attribute("layer")),
        ("latent_attend", Some(&layer[0].1))
    );
    let wide = graph.term(joined.inputs[0]);
    assert_eq!((wide.op.as_str(), wide.width().size), ("concat", 7));
    let shared = graph.term(joined.inputs[2]);
    assert_eq!((shared.op.as_str(), shared.attribute("s")), ("scale", Some(&Number::Real(0.0))));
}

#[test]
fn layers_are_counted_where_their_number_is_divided() {
    let power = json!(["**", ["value", 2], ["//", ["value", 2], ["config", "every"]]]);
    let number = Number::parse(&power).counting_layers(2);
    assert_eq!(number.to_string(), "2 ** (i // every)");
    assert_eq!(Number::parse(&power).counting_layers(1).to_string(), "2 ** (2 // every)");
}

fn value(number: usize) -> Json {
    json!({ "v": number })
}

fn literal(value: &Json) -> Json {
    json!({ "e": ["value", value] })
}

/// A record of one run on 2 sequences of 5 tokens, whose value 0 has the tokens; whole numbers, weights and other values have a dtype each.
fn record(shapes: &[(&str, &[usize])], events: &Json) -> Record {
    let values: Vec<Json> = shapes
        .iter()
        .map(|(word, shape)| match *word {
            "int" => json!({ "shape": shape, "dtype": "int64" }),
            "rows" => json!({ "shape": shape, "dtype": "bfloat16" }),
            path => json!({ "shape": shape, "dtype": "bfloat16", "weight": path }),
        })
        .collect();
    let record = json!({
        "class": "Model", "model_type": "model", "file": "modeling", "tokens": 5,
        "config": {}, "defaults": {}, "reads": [], "decisions": [], "modules": {},
        "weights": {}, "buffers": {}, "built": [], "values": values,
        "runs": [{ "ids": 0, "events": events }],
    });
    serde_json::from_value(record).expect("all fields are there")
}

fn call(name: &str, args: &Json, out: &Json) -> Json {
    json!({ "call": name, "args": args, "out": out })
}

const TOKENS: (&str, &[usize]) = ("int", &[2, 5]);
const TABLE: (&str, &[usize]) = ("embed.weight", &[7, 4]);

/// Op of the padded rows of an embedding.
fn padded(front: i64, behind: i64) -> String {
    let zero = literal(&json!(0));
    let sizes = json!([zero, zero, literal(&json!(front)), literal(&json!(behind))]);
    let events = json!([
        call("embedding", &json!([value(0), value(1)]), &value(2)),
        call("pad", &json!([value(2), sizes]), &value(3)),
    ]);
    let rows: (&str, &[usize]) = ("rows", &[2, 5, 4]);
    let record = record(&[TOKENS, TABLE, rows, rows], &events);
    let reader = Reader::read(&record);
    reader.graph.term(reader.values[&3].id).op.clone()
}

#[test]
fn rows_one_token_later_are_those_before() {
    assert_eq!(padded(1, -1), "previous");
    assert_eq!(padded(2, -2), "hole_pad");
}

/// Values of the rows of 3 experts, which are sorted by the choices of each row; the last expert may take the matrix of another.
fn sorted_experts(last: i64) -> Record {
    let none = Json::Null;
    let slice = json!({ "slice": [none, none, none] });
    let mut events = vec![
        call("embedding", &json!([value(0), value(1)]), &value(2)),
        call("reshape", &json!([value(2)]), &value(3)),
        call("linear", &json!([value(3), value(4)]), &value(5)),
        call("topk", &json!([value(5), literal(&json!(2))]), &json!([value(6), value(7)])),
        call("flatten", &json!([value(7)]), &value(8)),
        call("sort", &json!([value(8)]), &json!([value(9), value(10)])),
        json!({
            "call": "div", "args": [value(10), literal(&json!(2))],
            "named": { "rounding_mode": literal(&json!("trunc")) }, "out": value(11),
        }),
        call("flatten", &json!([value(6)]), &value(12)),
        call("__getitem__", &json!([value(12), value(10)]), &value(13)),
        call("__getitem__", &json!([value(3), value(11)]), &value(14)),
        json!({
            "call": "split", "args": [value(14), [literal(&json!(7)), literal(&json!(7)), literal(&json!(6))]],
            "named": { "dim": literal(&json!(0)) }, "out": [value(15), value(16), value(17)],
        }),
    ];
    for (place, matrix) in [0, 1, last].into_iter().enumerate() {
        let part = value(19 + 2 * place);
        events.push(call("__getitem__", &json!([value(18), literal(&json!(matrix))]), &part));
        let rows = value(15 + place);
        events.push(call("linear", &json!([rows, part]), &value(20 + 2 * place)));
    }
    events.extend([
        call("cat", &json!([[value(20), value(22), value(24)], literal(&json!(0))]), &value(25)),
        call("__getitem__", &json!([value(13), [slice, literal(&Json::Null)]]), &value(26)),
        call("mul", &json!([value(25), value(26)]), &value(27)),
        call("zeros", &json!([literal(&json!(10)), literal(&json!(6))]), &value(28)),
        call(
            "index_add",
            &json!([value(28), literal(&json!(0)), value(11), value(27)]),
            &value(29),
        ),
    ]);
    let shapes: [(&str, &[usize]); 30] = [
        TOKENS,
        TABLE,
        ("rows", &[2, 5, 4]),
        ("rows", &[10, 4]),
        ("router.weight", &[3, 4]),
        ("rows", &[10, 3]),
        ("rows", &[10, 2]),
        ("int", &[10, 2]),
        ("int", &[20]),
        ("int", &[20]),
        ("int", &[20]),
        ("int", &[20]),
        ("rows", &[20]),
        ("rows", &[20]),
        ("rows", &[20, 4]),
        ("rows", &[7, 4]),
        ("rows", &[7, 4]),
        ("rows", &[6, 4]),
        ("experts.weight", &[3, 6, 4]),
        ("rows", &[6, 4]),
        ("rows", &[7, 6]),
        ("rows", &[6, 4]),
        ("rows", &[7, 6]),
        ("rows", &[6, 4]),
        ("rows", &[6, 6]),
        ("rows", &[20, 6]),
        ("rows", &[20, 1]),
        ("rows", &[20, 6]),
        ("rows", &[10, 6]),
        ("rows", &[10, 6]),
    ];
    record(&shapes, &Json::from(events))
}

#[test]
fn sorted_rows_go_through_the_matrices_of_their_experts() {
    let record = sorted_experts(2);
    let reader = Reader::read(&record);
    let sum = reader.graph.term(reader.values[&29].id);
    assert_eq!((sum.op.as_str(), sum.inputs.len(), sum.width().size), ("expert_linear", 4, 6));
    assert_eq!(reader.graph.term(sum.inputs[0]).op, "embed");
    assert_eq!(reader.graph.term(sum.inputs[1]).op, "choose");
    let record = sorted_experts(1);
    let reader = Reader::read(&record);
    assert_ne!(reader.graph.term(reader.values[&29].id).op, "expert_linear");
}
