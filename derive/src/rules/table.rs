//! Rotary tables that a class computes in its forward.

use super::{Joined, both};
use crate::graph::{Graph, Id, Kind, Term};
use crate::number::Number;

/// Joins the steps from even numbers to sines and cosines of angles.
pub(super) fn join(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let first = *term.inputs.first()?;
    match term.op.as_str() {
        "divide" => step(graph, term, first, "evens", "exponents")
            .or_else(|| step(graph, term, first, "negative_evens", "negative_exponents")),
        "neg" => step(graph, term, first, "exponents", "negative_exponents")
            .or_else(|| step(graph, term, first, "evens", "negative_evens")),
        "rpow" => powers(graph, term, first),
        "div" if graph.counts_positions(first) => {
            step(graph, term, term.inputs[1], "powers", "angles")
        }
        "inverse" | "reciprocal" => step(graph, term, first, "powers", "frequencies"),
        "mul" => both(term)
            .into_iter()
            .find_map(|(positions, frequencies)| angles(graph, term, positions, frequencies)),
        "concat" if term.inputs.len() == 2 && term.inputs[0] == term.inputs[1] => {
            step(graph, term, first, "angles", "angles")
        }
        "repeat_each" => step(graph, term, first, "angles", "angles"),
        "cos" => function(graph, term, first, "rope_cos"),
        "sin" => function(graph, term, first, "rope_sin"),
        _ => None,
    }
}

/// A step that follows another, with its numbers.
fn step(graph: &Graph, term: &Term, source: Id, from: &str, to: &str) -> Option<Joined> {
    let source = graph.is(graph.bare(source), from)?;
    let mut joined = Term { op: to.to_owned(), inputs: Vec::new(), ..term.clone() };
    joined.attributes.clone_from(&source.attributes);
    if term.op == "divide" && term.attribute("s") != source.attribute("dim") {
        return None;
    }
    Some(Joined::Term(joined))
}

fn powers(graph: &Graph, term: &Term, source: Id) -> Option<Joined> {
    let exponents = graph.term(graph.bare(source));
    let op = match exponents.op.as_str() {
        "exponents" => "powers",
        "negative_exponents" => "frequencies",
        _ => return None,
    };
    let mut joined = Term { op: op.to_owned(), inputs: Vec::new(), ..term.clone() };
    joined.attributes.clone_from(&exponents.attributes);
    joined.set("theta", term.attribute("s")?.clone());
    Some(Joined::Term(joined))
}

fn angles(graph: &Graph, term: &Term, positions: Id, frequencies: Id) -> Option<Joined> {
    if !graph.counts_positions(positions) {
        return None;
    }
    step(graph, term, frequencies, "frequencies", "angles")
}

fn function(graph: &Graph, term: &Term, source: Id, op: &str) -> Option<Joined> {
    let angles = graph.is(graph.bare(source), "angles")?;
    let mut joined =
        Term { op: op.to_owned(), inputs: Vec::new(), kind: Kind::Float, ..term.clone() };
    joined.attributes.clone_from(&angles.attributes);
    let theta = angles.attribute("theta").map(Number::to_string).unwrap_or_default();
    let dim = angles.attribute("dim").map(Number::to_string).unwrap_or_default();
    joined.set("table", Number::Word(format!("own:{theta} {dim}")));
    Some(Joined::Term(joined))
}
