//! Norms with a gate, and decays of gated recurrences.

use crate::graph::{Graph, Id, Kind, Term};
use crate::number::Number;

use super::{Joined, both};

/// Joins the steps of gated norms and decays.
pub(super) fn join(graph: &mut Graph, term: &Term) -> Option<Joined> {
    match term.op.as_str() {
        "mul" => gate_first(graph, term).or_else(|| decay(graph, term)),
        "scale" => bounded_decay(graph, term),
        "cast" => norm_first(graph, term).or_else(|| rounded(graph, term)),
        _ => None,
    }
}

/// A gate in f32 with its activation.
fn open_gate(graph: &Graph, id: Id) -> Option<(Id, &'static str)> {
    let term = graph.term(id);
    let name = match term.op.as_str() {
        "silu" => "silu",
        "sigmoid" => "sigmoid",
        _ => return None,
    };
    (term.kind == Kind::Float).then(|| (graph.uncast(term.inputs[0]), name))
}

/// `W * norm(x * silu(gate))`, by groups or over the whole row.
fn gate_first(graph: &mut Graph, term: &Term) -> Option<Joined> {
    for (weight, rows) in both(term) {
        if graph.weight(weight).is_none() {
            continue;
        }
        let outer = graph.term(graph.uncast(rows));
        let (norm, groups) = if outer.op == "merge_axes" {
            (graph.uncast(outer.inputs[0]), true)
        } else {
            (graph.uncast(rows), false)
        };
        let Some(norm) = graph.is(norm, "unit") else { continue };
        let split = graph.term(norm.inputs[0]);
        let (product, count) = if groups && split.op == "split_axis" {
            (split.inputs[0], split.shape[split.shape.len() - 2].number.clone())
        } else {
            (norm.inputs[0], Number::Int(1))
        };
        let eps = norm.attribute("eps")?.clone();
        let gated = graph.term(graph.uncast(product));
        let found = if gated.op == "mul" {
            both(gated)
                .into_iter()
                .find_map(|(x, gate)| open_gate(graph, gate).map(|(gate, name)| (x, gate, name)))
        } else {
            None
        };
        let Some((x, gate, name)) = found else { continue };
        let root = graph.weight_root(weight);
        let mut joined = Term {
            op: "gated_norm".to_owned(),
            inputs: vec![unlifted(graph, x), gate, root],
            attributes: Vec::new(),
            ..term.clone()
        };
        joined.set("eps", eps);
        if count != Number::Int(1) {
            joined.set("groups", count);
        }
        if name != "silu" {
            joined.set("activation", Number::Word(name.to_owned()));
        }
        joined.set(
            "cast",
            Number::Word(if term.kind == Kind::Float { "after" } else { "before" }.to_owned()),
        );
        return Some(Joined::Term(joined));
    }
    None
}

/// The row before a cast to f32, if one is around it.
fn unlifted(graph: &Graph, id: Id) -> Id {
    let term = graph.term(id);
    if term.op == "cast" && term.kind == Kind::Float { term.inputs[0] } else { id }
}

/// `norm(x) * W * silu(gate)`, rounded at the end.
fn norm_first(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let product = graph.is(term.inputs[0], "mul")?;
    if product.kind != Kind::Float || term.kind != Kind::Activation {
        return None;
    }
    for (rows, gate) in both(product) {
        let Some((gate, name)) = open_gate(graph, gate) else { continue };
        let Some(norm) = graph.is(graph.uncast(rows), "rms_norm") else { continue };
        let mut joined = Term {
            op: "gated_norm".to_owned(),
            inputs: vec![norm.inputs[0], gate, *norm.inputs.get(1)?],
            attributes: Vec::new(),
            ..term.clone()
        };
        joined.set("eps", norm.attribute("eps")?.clone());
        joined.set("order", Number::Word("norm_first".to_owned()));
        if name != "silu" {
            joined.set("activation", Number::Word(name.to_owned()));
        }
        if norm.kind == Kind::Float {
            joined.set("cast", Number::Word("after".to_owned()));
        }
        return Some(Joined::Term(joined));
    }
    None
}

/// One rounding behind a gated norm of a row of the activation dtype.
fn rounded(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let norm = graph.is(term.inputs[0], "gated_norm")?;
    if norm.kind != Kind::Float
        || term.kind != Kind::Activation
        || graph.term(norm.inputs[0]).kind != Kind::Activation
    {
        return None;
    }
    Some(Joined::Term(Term { kind: Kind::Activation, ..norm.clone() }))
}

/// The operands of a decay: rows, with the axes that they have behind the sum, the rate and the bias.
fn decayed(graph: &mut Graph, sum: Id, rate: Id) -> Option<Vec<Id>> {
    let outer = graph.term(sum).clone();
    let split = (outer.op == "split_axis").then(|| outer.clone());
    let sum = if split.is_some() {
        graph.is(outer.inputs[0], "add")?.clone()
    } else {
        graph.is(sum, "add")?.clone()
    };
    let (bias, rows) = both(&sum).into_iter().find(|(bias, _)| graph.weight(*bias).is_some())?;
    let mut rows = graph.uncast(rows);
    let bias = graph.weight_root(bias);
    let rate = graph.weight_root(rate);
    if let Some(split) = split {
        let kind = graph.term(rows).kind;
        rows = graph.add(Term { inputs: vec![rows], kind, ..split });
    }
    Some(vec![rows, rate, bias])
}

/// `floor * sigmoid(exp(A) * (x + dt))` in f32.
fn bounded_decay(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let gate = graph.is(term.inputs[0], "sigmoid")?.clone();
    if gate.kind != Kind::Float {
        return None;
    }
    let product = graph.is(gate.inputs[0], "mul")?.clone();
    for (rate, sum) in both(&product) {
        let Some(power) = graph.is(graph.weight_root(rate), "exp").cloned() else { continue };
        if graph.weight(power.inputs[0]).is_none() {
            continue;
        }
        let inputs = decayed(graph, sum, power.inputs[0])?;
        let mut joined =
            Term { op: "log_decay".to_owned(), inputs, attributes: Vec::new(), ..term.clone() };
        joined.set("floor", term.attribute("s")?.clone());
        return Some(Joined::Term(joined));
    }
    None
}

/// `-exp(A) * softplus(x + dt)` in f32.
fn decay(graph: &mut Graph, term: &Term) -> Option<Joined> {
    if term.kind != Kind::Float {
        return None;
    }
    for (rate, step) in both(term) {
        let Some(negative) = graph.is(graph.weight_root(rate), "neg").cloned() else { continue };
        let Some(power) = graph.is(graph.weight_root(negative.inputs[0]), "exp").cloned() else {
            continue;
        };
        if graph.weight(power.inputs[0]).is_none() {
            continue;
        }
        let Some(soft) = graph.is(step, "softplus").cloned() else { continue };
        let inputs = decayed(graph, soft.inputs[0], power.inputs[0])?;
        return Some(Joined::Term(Term {
            op: "log_decay".to_owned(),
            inputs,
            attributes: Vec::new(),
            ..term.clone()
        }));
    }
    None
}
