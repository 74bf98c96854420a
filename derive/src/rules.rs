//! Rules that join small steps to ops.
//!
//! A rule looks at a term that is about to be made and at what it reads. Rules work from the leaves up,
//! so each sees ops that earlier rules joined.

use crate::graph::{Graph, Id, Kind, Term};
use crate::number::Number;

mod attention;
pub(crate) use attention::{mask_kind, with_heads};
mod dense;
mod gates;
mod norms;
mod pairs;
mod rotary;
mod router;
mod shapes;
mod streams;
mod table;
mod temperature;

/// Result of a rule.
#[derive(Debug)]
pub enum Joined {
    /// A term that exists.
    Known(Id),
    /// Another term in its place.
    Term(Term),
    /// No rule knows it.
    None,
}

/// Returns what the first rule that knows a term makes of it.
pub fn join(graph: &mut Graph, term: &Term) -> Joined {
    let rules: &[fn(&mut Graph, &Term) -> Option<Joined>] = &[
        casts,
        shapes::join,
        numbers,
        norms::join,
        rotary::join,
        attention::join,
        router::join,
        gates::join,
        table::join,
        temperature::join,
        pairs::join,
        dense::join,
        streams::join,
        activations,
    ];
    rules.iter().find_map(|rule| rule(graph, term)).unwrap_or(Joined::None)
}

/// Casts that change nothing.
fn casts(graph: &mut Graph, term: &Term) -> Option<Joined> {
    if term.op != "cast" {
        return None;
    }
    let source = graph.term(term.inputs[0]);
    if source.kind == term.kind {
        return Some(Joined::Known(term.inputs[0]));
    }
    if source.op == "cast" {
        let origin = graph.term(source.inputs[0]);
        if origin.kind == term.kind && source.kind == Kind::Float {
            return Some(Joined::Known(source.inputs[0]));
        }
    }
    let counts = source.op == "positions"
        || (source.op == "offset" && graph.term(source.inputs[0]).op == "positions");
    if counts {
        return Some(Joined::Known(term.inputs[0]));
    }
    if source.op == "mask" || source.op == "constant" {
        let mut moved = source.clone();
        moved.kind = term.kind;
        return Some(Joined::Term(moved));
    }
    None
}

/// Arithmetic with numbers that changes nothing, and sums of offsets.
fn numbers(graph: &mut Graph, term: &Term) -> Option<Joined> {
    if term.op == "offset" {
        let inner = graph.term(term.inputs[0]);
        if inner.op == "offset" && graph.term(inner.inputs[0]).op == "positions" {
            let sum = Number::apply(
                "+",
                vec![inner.attribute("s")?.clone(), term.attribute("s")?.clone()],
            );
            let mut joined = Term { inputs: inner.inputs.clone(), ..term.clone() };
            joined.set("s", sum);
            return Some(Joined::Term(joined));
        }
    }
    let neutral = match (term.op.as_str(), term.attribute("s")?) {
        ("scale" | "divide", Number::Int(1)) | ("offset", Number::Int(0)) => true,
        ("scale" | "divide", Number::Real(value)) => *value == 1.0,
        ("offset", Number::Real(value)) => *value == 0.0,
        _ => false,
    };
    neutral.then(|| Joined::Known(term.inputs[0]))
}

/// Activations that a class writes out.
fn activations(graph: &mut Graph, term: &Term) -> Option<Joined> {
    // x * sigmoid(x)
    if term.op == "mul" {
        for (one, other) in [(0, 1), (1, 0)] {
            let gate = graph.term(term.inputs[other]);
            if gate.op == "sigmoid"
                && gate.inputs[0] == term.inputs[one]
                && term.kind == Kind::Float
            {
                let joined =
                    Term { op: "silu".to_owned(), inputs: vec![term.inputs[one]], ..term.clone() };
                return Some(Joined::Term(joined));
            }
        }
    }
    if term.op == "add"
        && let Some(blend) = blended(graph, term)
    {
        return Some(Joined::Term(blend));
    }
    // exp(x - log(sum(exp(x)))) in f32.
    if term.op == "exp"
        && term.kind == Kind::Float
        && let Some(gap) = graph.is(term.inputs[0], "sub")
        && let Some(sum) = graph.is(gap.inputs[1], "lse_row")
        && sum.inputs[0] == gap.inputs[0]
    {
        let inputs = vec![gap.inputs[0]];
        return Some(Joined::Term(Term { op: "softmax".to_owned(), inputs, ..term.clone() }));
    }
    // For a large x, log(1 + exp(x)) is x.
    if term.op == "where" && term.inputs.len() == 3 {
        let test = graph.term(term.inputs[0]);
        let sum = graph.term(term.inputs[2]);
        if test.op == "gt" && test.inputs[0] == term.inputs[1] && sum.op == "log" {
            let joined = Term {
                op: "softplus".to_owned(),
                inputs: vec![term.inputs[1]],
                attributes: Vec::new(),
                ..term.clone()
            };
            return Some(Joined::Term(joined));
        }
    }
    // square(relu(x)) is an op where both round; so are two steps.
    if term.op == "square" && graph.term(term.inputs[0]).op == "relu" {
        let joined = Term {
            op: "relu2".to_owned(),
            inputs: graph.term(term.inputs[0]).inputs.clone(),
            ..term.clone()
        };
        return Some(Joined::Term(joined));
    }
    None
}

/// `x * P + y * (1 - P)` of a weight P.
fn blended(graph: &Graph, term: &Term) -> Option<Term> {
    let [one, other] = term.inputs[..] else { return None };
    let one = graph.is(one, "mul")?;
    let other = graph.is(other, "mul")?;
    if [one, other].iter().any(|product| product.kind != term.kind) {
        return None;
    }
    for (first, second) in [(one, other), (other, one)] {
        for (rows, weight) in both(first) {
            let Some(path) = graph.weight(weight) else { continue };
            for (before, factor) in both(second) {
                let Some(factor) = one_minus(graph, factor) else { continue };
                if graph.weight(factor) == Some(path) && graph.term(rows).shape.len() == 1 {
                    let inputs = vec![rows, before, graph.weight_root(weight)];
                    return Some(Term { op: "weight_blend".to_owned(), inputs, ..term.clone() });
                }
            }
        }
    }
    None
}

/// The term x of `1 - x`.
fn one_minus(graph: &Graph, id: Id) -> Option<Id> {
    let sum = graph.is(graph.weight_root(id), "offset")?;
    let one =
        matches!(sum.attribute("s")?, Number::Int(1)) || sum.attribute("s")? == &Number::Real(1.0);
    let negative = graph.is(graph.weight_root(sum.inputs[0]), "neg")?;
    one.then_some(negative.inputs[0])
}

/// The two operands of a commutative term, in both orders.
pub(crate) fn both(term: &Term) -> Vec<(Id, Id)> {
    match term.inputs[..] {
        [one, other] => vec![(one, other), (other, one)],
        _ => Vec::new(),
    }
}
