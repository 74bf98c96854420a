//! Rotations by products of complex numbers, and gates by the logarithm of a sum.

use crate::graph::{Graph, Kind, Term};
use crate::number::Number;

use super::{Joined, both};

/// Joins the steps of such rotations and gates.
pub(super) fn join(graph: &mut Graph, term: &Term) -> Option<Joined> {
    match term.op.as_str() {
        "mul" => complex_product(graph, term).or_else(|| gate_of_sinks(graph, term)),
        "merge_axes" => real_pairs(graph, term),
        _ => None,
    }
}

/// Pairs of numbers, as complex ones, times a rotation.
fn complex_product(graph: &mut Graph, term: &Term) -> Option<Joined> {
    for (rows, rotation) in both(term) {
        let rotation = graph.term(graph.weightless(rotation)).clone();
        if rotation.op != "rope_rotation" {
            continue;
        }
        let rows = graph.is(rows, "complex")?;
        let pairs = graph.is(rows.inputs[0], "split_axis")?;
        let mut joined = Term {
            op: "complex_rope".to_owned(),
            inputs: pairs.inputs.clone(),
            attributes: Vec::new(),
            ..term.clone()
        };
        joined.set("table", rotation.attribute("table")?.clone());
        return Some(Joined::Term(joined));
    }
    None
}

/// Such a product as real numbers again.
fn real_pairs(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let real = graph.is(term.inputs[0], "real")?;
    let rope = graph.is(real.inputs[0], "complex_rope")?;
    let source = graph.uncast(rope.inputs[0]);
    let mut joined = Term {
        op: "rope".to_owned(),
        inputs: vec![source],
        attributes: rope.attributes.clone(),
        kind: Kind::Float,
        ..term.clone()
    };
    joined.set("layout", Number::Word("interleaved".to_owned()));
    joined.set("width", Number::Int(term.width().size as i64));
    joined.set("compute", Number::Word("f32".to_owned()));
    Some(Joined::Term(joined))
}

/// A result of attention times the sigmoid of how far a sink lies under the scores.
fn gate_of_sinks(graph: &mut Graph, term: &Term) -> Option<Joined> {
    for (rows, gate) in both(term) {
        let Some(attend) = graph.is(rows, "attend") else { continue };
        let gate = graph.term(graph.bare(gate));
        if gate.op != "sigmoid" {
            continue;
        }
        let gap = graph.is(graph.bare(gate.inputs[0]), "sub")?;
        graph.is(graph.bare(gap.inputs[0]), "lse")?;
        graph.weight(gap.inputs[1])?;
        let mut joined = attend.clone();
        joined.inputs.push(graph.weight_root(gap.inputs[1]));
        joined.set("sinks", Number::Int(joined.inputs.len() as i64 - 2));
        joined.set("sink_form", Number::Word("gate".to_owned()));
        return Some(Joined::Term(joined));
    }
    None
}
