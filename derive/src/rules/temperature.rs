//! Factors that depend on positions alone.

use crate::graph::{Graph, Id, Term};
use crate::number::Number;

use super::{Joined, both};

/// A factor that grows with the position.
struct Growth {
    scale: Number,
    every: Number,
    shift: Number,
    form: Option<&'static str>,
}

/// Joins `x * (1 + scale * log(1 + floor((position + shift) / every)))`, `x * (1 + scale * log(max((position + shift) / every, 1)))`, and `x * (1 + (position + shift) / every) ** scale`.
pub(super) fn join(graph: &mut Graph, term: &Term) -> Option<Joined> {
    if term.op != "mul" {
        return None;
    }
    for (rows, factor) in both(term) {
        let Some(growth) = logarithm(graph, factor).or_else(|| power(graph, factor)) else {
            continue;
        };
        let mut joined = Term {
            op: "temperature".to_owned(),
            inputs: vec![graph.uncast(rows)],
            attributes: Vec::new(),
            ..term.clone()
        };
        joined.set("scale", growth.scale);
        joined.set("every", growth.every);
        joined.set("shift", growth.shift);
        if let Some(form) = growth.form {
            joined.set("form", Number::Word(form.to_owned()));
        }
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

fn is_one(number: &Number) -> bool {
    matches!(number, Number::Int(1)) || *number == Number::Real(1.0)
}

/// Returns the term below a sum with 1.
fn above_one(graph: &Graph, id: Id) -> Option<Id> {
    let (sum, inner) = step(graph, id, "offset")?;
    sum.attribute("s").is_some_and(is_one).then_some(inner)
}

/// Returns the divisor and the shift of `(position + shift) / every`.
fn share(graph: &Graph, id: Id) -> Option<(Number, Number)> {
    let (division, position) = step(graph, id, "divide")?;
    let place = graph.term(graph.bare(position));
    let shift = match place.op.as_str() {
        "positions" => Number::Real(0.0),
        "offset" if graph.term(graph.bare(place.inputs[0])).op == "positions" => {
            place.attribute("s")?.clone()
        }
        _ => return None,
    };
    Some((division.attribute("s")?.clone(), shift))
}

fn logarithm(graph: &Graph, factor: Id) -> Option<Growth> {
    let (product, logarithm) = step(graph, above_one(graph, factor)?, "scale")?;
    let (_, sum) = step(graph, logarithm, "log")?;
    let scale = product.attribute("s")?.clone();
    if let Some((bound, quotient)) = step(graph, sum, "clamp") {
        // No position counts less than 1.
        let one = bound.attribute("lo").is_some_and(is_one) && bound.attribute("hi").is_none();
        let (every, shift) = share(graph, quotient)?;
        return one.then_some(Growth { scale, every, shift, form: Some("log_ratio") });
    }
    let (_, quotient) = step(graph, above_one(graph, sum)?, "floor")?;
    let (every, shift) = share(graph, quotient)?;
    Some(Growth { scale, every, shift, form: None })
}

/// A power, as the exponential of a multiple of a logarithm.
fn power(graph: &Graph, factor: Id) -> Option<Growth> {
    let (_, product) = step(graph, factor, "exp")?;
    let (product, logarithm) = step(graph, product, "scale")?;
    let (_, sum) = step(graph, logarithm, "log")?;
    let (every, shift) = share(graph, above_one(graph, sum)?)?;
    Some(Growth { scale: product.attribute("s")?.clone(), every, shift, form: Some("power") })
}
