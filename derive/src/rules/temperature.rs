//! Factors that depend on positions alone.

use crate::graph::{Graph, Id, Term};
use crate::number::Number;

use super::{Joined, both};

/// Joins `x * (1 + scale * log(1 + floor((position + shift) / every)))`.
pub(super) fn join(graph: &mut Graph, term: &Term) -> Option<Joined> {
    if term.op != "mul" {
        return None;
    }
    for (rows, factor) in both(term) {
        let Some((scale, every, shift)) = growth(graph, factor) else { continue };
        let mut joined = Term {
            op: "temperature".to_owned(),
            inputs: vec![graph.uncast(rows)],
            attributes: Vec::new(),
            ..term.clone()
        };
        joined.set("scale", scale);
        joined.set("every", every);
        joined.set("shift", shift);
        if graph.term(graph.weightless(factor)).kind == crate::graph::Kind::Float {
            joined.set("factor", Number::Word("f32".to_owned()));
        }
        return Some(Joined::Term(joined));
    }
    // A mask of ones changes nothing.
    both(term)
        .into_iter()
        .find(|(_, ones)| graph.term(graph.uncast(*ones)).word("with") == Some("ones"))
        .map(|(rows, _)| Joined::Known(rows))
}

fn step<'g>(graph: &'g Graph, id: Id, op: &str) -> Option<(&'g Term, Id)> {
    let term = graph.is(graph.bare(id), op)?;
    Some((term, term.inputs[0]))
}

fn growth(graph: &Graph, factor: Id) -> Option<(Number, Number, Number)> {
    let one = |term: &Term| {
        matches!(term.attribute("s"), Some(Number::Int(1)))
            || term.attribute("s") == Some(&Number::Real(1.0))
    };
    let (outer, scaled) = step(graph, factor, "offset")?;
    let (product, logarithm) = step(graph, scaled, "scale")?;
    let (_, sum) = step(graph, logarithm, "log")?;
    let (inner, floored) = step(graph, sum, "offset")?;
    let (_, quotient) = step(graph, floored, "floor")?;
    let (division, position) = step(graph, quotient, "divide")?;
    if !one(outer) || !one(inner) {
        return None;
    }
    let place = graph.term(graph.bare(position));
    let shift = match place.op.as_str() {
        "positions" => Number::Real(0.0),
        "offset" if graph.term(graph.bare(place.inputs[0])).op == "positions" => {
            place.attribute("s")?.clone()
        }
        _ => return None,
    };
    Some((product.attribute("s")?.clone(), division.attribute("s")?.clone(), shift))
}
