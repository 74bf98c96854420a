//! Norms by root mean squares and by mean and variance.

use crate::graph::{Graph, Id, Kind, Term};
use crate::number::Number;

use super::{Joined, both};

/// Joins the steps of a norm.
pub(super) fn join(graph: &mut Graph, term: &Term) -> Option<Joined> {
    match term.op.as_str() {
        "mul" => root_mean_square(graph, term).or_else(|| weighted(graph, term)),
        "div" => divided(graph, term),
        "sub" => centred(graph, term),
        "clamp" => least_length(graph, term),
        "cast" => rounded(graph, term),
        "add" => shifted(graph, term),
        "layer_norm" if has_weight(term) => one_and_weight(graph, term),
        "rms_norm" if !has_weight(term) => {
            let mut joined =
                Term { op: "unit".to_owned(), inputs: vec![term.inputs[0]], ..term.clone() };
            joined.attributes.retain(|(key, _)| key == "eps");
            Some(Joined::Term(joined))
        }
        _ => None,
    }
}

/// A weight to which 1 is added before the norm takes it.
fn one_and_weight(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let sum = graph.is(graph.bare(term.inputs[1]), "offset")?;
    let one = matches!(sum.attribute("s"), Some(Number::Int(1)))
        || sum.attribute("s") == Some(&Number::Real(1.0));
    graph.weight(sum.inputs[0])?;
    let mut joined = term.clone();
    joined.inputs[1] = graph.weight_root(sum.inputs[0]);
    joined.set("plus_one", Number::Bool(true));
    one.then_some(Joined::Term(joined))
}

/// A length that is at least the epsilon of its dtype, which is that of bf16 in a record.
fn least_length(graph: &Graph, term: &Term) -> Option<Joined> {
    let length = graph.is(term.inputs[0], "p_norm")?;
    let epsilon = term.attribute("lo") == Some(&Number::Real(0.007_812_5));
    if !epsilon || term.attribute("hi").is_some() || term.kind != Kind::Activation {
        return None;
    }
    let mut joined = length.clone();
    joined.set("least", Number::Word("epsilon".to_owned()));
    Some(Joined::Term(joined))
}

fn has_weight(term: &Term) -> bool {
    term.inputs.len() > 1
}

/// `rsqrt(mean(x * x) + eps)`: x before its cast, and eps.
fn inverse_root(graph: &Graph, id: Id) -> Option<(Id, Number)> {
    let root = graph.is(graph.uncast(id), "rsqrt").map(|term| term.inputs[0]).or_else(|| {
        let term = graph.term(graph.uncast(id));
        let half = term.op == "pow" && term.attribute("s") == Some(&Number::Real(-0.5));
        half.then(|| term.inputs[0])
    })?;
    mean_square(graph, root)
}

/// `mean(x * x) + eps`.
fn mean_square(graph: &Graph, id: Id) -> Option<(Id, Number)> {
    let sum = graph.is(id, "offset")?;
    let eps = sum.attribute("s")?.clone();
    let mean = graph.is(sum.inputs[0], "mean")?;
    let square = graph.term(mean.inputs[0]);
    let source = match square.op.as_str() {
        "square" => square.inputs[0],
        "mul" if square.inputs[0] == square.inputs[1] => square.inputs[0],
        _ => return None,
    };
    Some((source, eps))
}

/// Rows with a mean square of 1; rows from which their mean was taken have a variance of 1.
fn normed(graph: &Graph, term: &Term, source: Id, eps: Number) -> Term {
    let origin = graph.uncast(source);
    let centre = graph.is(origin, "centred").map(|centre| centre.inputs[0]);
    let rows = centre.unwrap_or(origin);
    let op = if centre.is_some() { "standard" } else { "unit" }.to_owned();
    let mut joined = Term { op, inputs: vec![rows], attributes: Vec::new(), ..term.clone() };
    joined.shape.clone_from(&graph.term(rows).shape);
    joined.set("eps", eps);
    joined
}

/// `x * rsqrt(mean(x * x) + eps)`, whose rows have a mean square of 1.
fn root_mean_square(graph: &mut Graph, term: &Term) -> Option<Joined> {
    for (rows, root) in both(term) {
        let Some((source, eps)) = inverse_root(graph, root) else { continue };
        if graph.uncast(rows) != graph.uncast(source) {
            continue;
        }
        return Some(Joined::Term(normed(graph, term, source, eps)));
    }
    None
}

/// `x / sqrt(mean(x * x) + eps)`.
fn divided(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let root = graph.is(term.inputs[1], "square_root")?;
    let (source, eps) = mean_square(graph, root.inputs[0])?;
    if graph.uncast(term.inputs[0]) != graph.uncast(source) {
        return None;
    }
    Some(Joined::Term(normed(graph, term, source, eps)))
}

/// `x - mean(x)`.
fn centred(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let mean = graph.is(term.inputs[1], "mean")?;
    if mean.inputs[0] != term.inputs[0] || term.kind != Kind::Float {
        return None;
    }
    let origin = graph.uncast(term.inputs[0]);
    Some(Joined::Term(Term {
        op: "centred".to_owned(),
        inputs: vec![origin],
        attributes: Vec::new(),
        ..term.clone()
    }))
}

/// A weight times a norm without one.
fn weighted(graph: &mut Graph, term: &Term) -> Option<Joined> {
    for (weight, rows) in both(term) {
        let plus_one = graph
            .is(graph.uncast(weight), "offset")
            .filter(|sum| {
                sum.attribute("s") == Some(&Number::Real(1.0))
                    || sum.attribute("s") == Some(&Number::Int(1))
            })
            .map(|sum| sum.inputs[0]);
        let tensor = plus_one.unwrap_or(weight);
        if graph.weight(tensor).is_none() {
            continue;
        }
        let norm = graph.term(rows);
        let op = match norm.op.as_str() {
            "unit" => "rms_norm",
            "standard" => "layer_norm",
            _ => continue,
        };
        let mut joined = Term {
            op: op.to_owned(),
            inputs: vec![norm.inputs[0], graph.uncast(tensor)],
            attributes: norm.attributes.clone(),
            ..term.clone()
        };
        if op == "layer_norm" {
            joined.set("bias", Number::Bool(false));
        }
        joined.set(
            "cast",
            Number::Word(if norm.kind == Kind::Float { "after" } else { "before" }.to_owned()),
        );
        if plus_one.is_some() {
            joined.set("plus_one", Number::Bool(true));
        }
        if graph.term(graph.uncast(tensor)).shape.len() > 1 {
            joined.set("per_head", Number::Bool(true));
        }
        return Some(Joined::Term(joined));
    }
    None
}

/// A bias behind a norm with a weight.
fn shifted(graph: &mut Graph, term: &Term) -> Option<Joined> {
    for (bias, rows) in both(term) {
        let Some(norm) = graph.is(rows, "layer_norm") else { continue };
        if norm.attribute("bias") != Some(&Number::Bool(false)) || graph.weight(bias).is_none() {
            continue;
        }
        let mut joined = norm.clone();
        joined.inputs.push(graph.uncast(bias));
        joined.set("bias", Number::Bool(true));
        return Some(Joined::Term(joined));
    }
    None
}

/// One rounding behind a norm that was computed in f32.
fn rounded(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let norm = graph.term(term.inputs[0]);
    let known = ["unit", "standard", "rms_norm", "layer_norm"].contains(&norm.op.as_str());
    if !known {
        return None;
    }
    let origin = graph.uncast(norm.inputs[0]);
    // What a module gives in f32 is not rounded in it.
    if norm.owner != term.owner
        || norm.kind != Kind::Float
        || term.kind != Kind::Activation
        || graph.term(origin).kind != Kind::Activation
    {
        return None;
    }
    let mut joined = Term { kind: Kind::Activation, ..norm.clone() };
    joined.inputs[0] = origin;
    Some(Joined::Term(joined))
}
