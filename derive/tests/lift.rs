//! Steps that rules join to ops, sizes that cancel, and axes that are followed.

use onboard_derive::graph::{Dim, Graph, Id, Kind};
use onboard_derive::layout::groups;
use onboard_derive::number::{Number, written};
use serde_json::json;

fn number(json: &serde_json::Value) -> Number {
    Number::parse(json)
}

fn text(number: &Number) -> String {
    written(number, &|key| key.replace("num_attention_", ""))
}

#[test]
fn sizes_cancel_as_whole_numbers_do() {
    let hidden = json!(["config", "hidden"]);
    let heads = json!(["config", "num_attention_heads"]);
    let size = json!(["//", hidden, heads]);
    assert_eq!(text(&number(&json!(["//", ["*", heads, size], size]))), "heads");
    assert_eq!(text(&number(&json!(["-", ["+", hidden, size], hidden]))), "hidden // heads");
    assert_eq!(text(&number(&json!(["//", hidden, size]))), "heads");
    assert_eq!(
        text(&number(&json!(["*", ["value", 2], ["+", heads, ["value", 1]]]))),
        "2 * (heads + 1)"
    );
}

#[test]
fn a_fraction_is_not_taken_for_a_whole_number() {
    let share = json!(["*", ["config", "head_dim"], ["config", "partial_rotary_factor"]]);
    assert_eq!(text(&number(&json!(["int", share]))), "int(head_dim * partial_rotary_factor)");
}

#[test]
fn tests_of_layers_are_evaluated() {
    let config = json!({ "period": 3, "kinds": ["near", "far", "near"], "i": 1 });
    let by_period =
        number(&json!(["==", ["%", ["config", "i"], ["config", "period"]], ["value", 1]]));
    assert_eq!(by_period.evaluate(&config), Some(1.0));
    let by_kind =
        number(&json!(["==", ["item", ["config", "kinds"], ["config", "i"]], ["value", "far"]]));
    assert_eq!(by_kind.evaluate(&config), Some(1.0));
}

#[test]
fn axes_of_equal_products_form_groups() {
    let split = groups(&[2, 5, 32], &[2, 5, 4, 8]).unwrap();
    assert_eq!(split.last(), Some(&(vec![2], vec![2, 3])));
    let merged = groups(&[2, 5, 4, 8], &[10, 32]).unwrap();
    assert_eq!(merged, [(vec![0, 1], vec![0]), (vec![2, 3], vec![1])]);
    assert_eq!(groups(&[2, 3], &[4]), None);
}

fn term(
    graph: &mut Graph,
    op: &str,
    inputs: &[Id],
    attributes: &[(&str, Number)],
    width: usize,
    kind: Kind,
) -> Id {
    let mut term = graph.step(op, inputs, vec![Dim::plain(width)], kind);
    for (name, value) in attributes {
        term.set(name, value.clone());
    }
    graph.add(term)
}

fn weight(graph: &mut Graph, path: &str) -> Id {
    term(graph, "weight", &[], &[("path", Number::Word(path.to_owned()))], 8, Kind::Activation)
}

/// The steps of a norm by root mean squares, with its weight applied before or after the rounding.
fn norm(rounded_first: bool) -> (Graph, Id) {
    let mut graph = Graph::default();
    let graph_ref = &mut graph;
    let x = term(graph_ref, "rows", &[], &[], 8, Kind::Activation);
    let wide = term(graph_ref, "cast", &[x], &[], 8, Kind::Float);
    let square = term(graph_ref, "square", &[wide], &[], 8, Kind::Float);
    let mean = term(graph_ref, "mean", &[square], &[], 1, Kind::Float);
    let sum = term(
        graph_ref,
        "offset",
        &[mean],
        &[("s", Number::Config("eps".to_owned()))],
        1,
        Kind::Float,
    );
    let root = term(graph_ref, "rsqrt", &[sum], &[], 1, Kind::Float);
    let unit = term(graph_ref, "mul", &[wide, root], &[], 8, Kind::Float);
    let scale = weight(graph_ref, "norm.weight");
    let last = if rounded_first {
        let rounded = term(graph_ref, "cast", &[unit], &[], 8, Kind::Activation);
        term(graph_ref, "mul", &[scale, rounded], &[], 8, Kind::Activation)
    } else {
        let product = term(graph_ref, "mul", &[scale, unit], &[], 8, Kind::Float);
        term(graph_ref, "cast", &[product], &[], 8, Kind::Activation)
    };
    (graph, last)
}

#[test]
fn a_norm_keeps_the_place_of_its_rounding() {
    for (rounded_first, cast) in [(true, "before"), (false, "after")] {
        let (graph, last) = norm(rounded_first);
        let joined = graph.term(last);
        assert_eq!((joined.op.as_str(), joined.word("cast")), ("rms_norm", Some(cast)));
        assert_eq!(joined.attribute("eps"), Some(&Number::Config("eps".to_owned())));
    }
}

#[test]
fn a_mean_of_something_else_is_no_norm() {
    let mut graph = Graph::default();
    let x = term(&mut graph, "rows", &[], &[], 8, Kind::Float);
    let other = term(&mut graph, "others", &[], &[], 8, Kind::Float);
    let square = term(&mut graph, "square", &[other], &[], 8, Kind::Float);
    let mean = term(&mut graph, "mean", &[square], &[], 1, Kind::Float);
    let sum = term(&mut graph, "offset", &[mean], &[("s", Number::Real(1e-6))], 1, Kind::Float);
    let root = term(&mut graph, "rsqrt", &[sum], &[], 1, Kind::Float);
    let product = term(&mut graph, "mul", &[x, root], &[], 8, Kind::Float);
    assert_eq!(graph.term(product).op, "mul");
}

/// `x * cos + turn(x) * sin`, where the turn takes its halves from x or from something else.
fn rotation(turned: &str) -> (Graph, Id) {
    let mut graph = Graph::default();
    let graph_ref = &mut graph;
    let x = term(graph_ref, "rows", &[], &[], 8, Kind::Activation);
    let other = term(graph_ref, "others", &[], &[], 8, Kind::Activation);
    let source = if turned == "rows" { x } else { other };
    let table = [("table", Number::Word("rotary".to_owned()))];
    let cosines = term(graph_ref, "rope_cos", &[], &table, 8, Kind::Activation);
    let sines = term(graph_ref, "rope_sin", &[], &table, 8, Kind::Activation);
    let part = |from: i64| [("start", Number::Int(from)), ("end", Number::Int(from + 4))];
    let first = term(graph_ref, "slice", &[source], &part(0), 4, Kind::Activation);
    let second = term(graph_ref, "slice", &[source], &part(4), 4, Kind::Activation);
    let negative = term(graph_ref, "neg", &[second], &[], 4, Kind::Activation);
    let turn = term(graph_ref, "concat", &[negative, first], &[], 8, Kind::Activation);
    let straight = term(graph_ref, "mul", &[x, cosines], &[], 8, Kind::Activation);
    let crossed = term(graph_ref, "mul", &[turn, sines], &[], 8, Kind::Activation);
    let last = term(graph_ref, "add", &[straight, crossed], &[], 8, Kind::Activation);
    (graph, last)
}

#[test]
fn a_rotation_turns_the_rows_that_it_keeps() {
    let (graph, last) = rotation("rows");
    assert_eq!(
        (graph.term(last).op.as_str(), graph.term(last).word("layout")),
        ("rope", Some("half"))
    );
    let (graph, last) = rotation("others");
    assert_eq!(graph.term(last).op, "add");
}

#[test]
fn casts_that_round_are_kept() {
    let mut graph = Graph::default();
    let x = term(&mut graph, "rows", &[], &[], 8, Kind::Activation);
    let wide = term(&mut graph, "cast", &[x], &[], 8, Kind::Float);
    assert_eq!(term(&mut graph, "cast", &[wide], &[], 8, Kind::Activation), x);
    let sum = term(&mut graph, "offset", &[wide], &[("s", Number::Real(1.0))], 8, Kind::Float);
    let rounded = term(&mut graph, "cast", &[sum], &[], 8, Kind::Activation);
    assert_eq!(graph.uncast(rounded), rounded);
    assert_eq!(graph.uncast(wide), x);
}
