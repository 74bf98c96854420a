//! Attention: scores, softmax and the sum of values.

use crate::graph::{Dim, Graph, Id, Kind, Term};
use crate::number::Number;

use super::{Joined, both};

/// Joins the steps of attention.
pub fn join(graph: &mut Graph, term: &Term) -> Option<Joined> {
    match term.op.as_str() {
        "scale" | "divide" => scaled(graph, term),
        "add" => masked(graph, term).or_else(|| biased(graph, term)),
        "tanh" | "cast" | "softmax_keys" | "slice" => passed(graph, term),
        "sub" => highest(graph, term),
        "with_sinks" => sinks(graph, term),
        "max_keys" => None,
        "attended" => attended(graph, term),
        "merge_axes" => flat(graph, term),
        _ => None,
    }
}

/// A number that multiplies scores; behind a tanh it is a soft cap.
fn scaled(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let scores = graph.is(term.inputs[0], "scores")?;
    let factor = term.attribute("s")?.clone();
    let mut joined = scores.clone();
    joined.kind = term.kind;
    match (term.op.as_str(), scores.word("open")) {
        ("divide", None) if scores.attribute("mask").is_none() && scores.attribute("divided").is_none() => {
            joined.set("divided", factor);
        }
        ("scale", Some("tanh")) if scores.attribute("divided") == Some(&factor) => {
            joined.set("softcap", factor);
            joined.attributes.retain(|(key, _)| key != "open" && key != "divided");
        }
        ("scale", None) if scores.attribute("scale").is_none() && scores.attribute("divided").is_none() => joined.set("scale", factor),
        _ => return None,
    }
    Some(Joined::Term(joined))
}

fn masked(graph: &mut Graph, term: &Term) -> Option<Joined> {
    for (mask, rows) in both(term) {
        let (Some(mask), Some(scores)) = (graph.is(mask, "mask"), graph.is(rows, "scores")) else { continue };
        let mut joined = scores.clone();
        joined.kind = term.kind;
        joined.set("mask", mask.attribute("kind")?.clone());
        return Some(Joined::Term(joined));
    }
    None
}

fn biased(_: &mut Graph, _: &Term) -> Option<Joined> {
    None
}

/// Steps that scores remember: tanh, casts, softmax, and a slice that drops the column of sinks.
fn passed(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let scores = graph.is(term.inputs[0], "scores")?;
    let mut joined = scores.clone();
    joined.kind = term.kind;
    match term.op.as_str() {
        "tanh" => joined.set("open", Number::Word("tanh".to_owned())),
        "softmax_keys" => {
            joined.set("soft", Number::Word(if term.kind == Kind::Float || scores.kind == Kind::Float { "f32" } else { "activation" }.to_owned()));
            if scores.kind == Kind::Float && scores.attribute("mask").is_some() {
                joined.set("scores", Number::Word("f32".to_owned()));
            }
        }
        "cast" => {}
        _ => return None,
    }
    Some(Joined::Term(joined))
}

/// `scores - max(scores)` changes no softmax.
fn highest(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let scores = graph.is(term.inputs[0], "scores")?;
    let highest = graph.is(term.inputs[1], "max_keys")?;
    if highest.inputs[0] != term.inputs[0] { return None; }
    let mut joined = scores.clone();
    joined.set("highest", Number::Bool(true));
    Some(Joined::Term(joined))
}

fn sinks(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let scores = graph.is(term.inputs[0], "scores")?;
    let tensor = graph.uncast(term.inputs[1]);
    graph.weight(tensor)?;
    let mut joined = scores.clone();
    joined.inputs.push(tensor);
    joined.set("sinks", Number::Bool(true));
    Some(Joined::Term(joined))
}

/// Keys or values as they were before heads shared them, and the term that is kept.
fn kept(graph: &Graph, id: Id) -> Option<Id> {
    let mut id = id;
    loop {
        let term = graph.term(id);
        match term.op.as_str() {
            "repeat_each" | "cast" | "expand" => id = term.inputs[0],
            "cached" => return Some(term.inputs[0]),
            _ => return None,
        }
    }
}

/// Keys of one head have an axis for it.
fn with_heads(graph: &mut Graph, id: Id) -> Id {
    let row = graph.term(id).shape.clone();
    if row.len() != 1 { return id; }
    let kind = graph.term(id).kind;
    let mut term = graph.step("split_axis", &[id], vec![Dim::plain(1), row[0].clone()], kind);
    term.owner.clone_from(&graph.term(id).owner);
    term.set("at", Number::Int(0));
    term.set("count", Number::Int(2));
    graph.add(term)
}

fn attended(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let scores = graph.is(graph.uncast(term.inputs[0]), "scores")?.clone();
    scores.attribute("soft")?;
    let key = kept(graph, scores.inputs[1])?;
    let value = kept(graph, term.inputs[1])?;
    let key = with_heads(graph, key);
    let value = with_heads(graph, value);
    let mut joined = Term { op: "attend".to_owned(), inputs: vec![graph.uncast(scores.inputs[0]), key, value], attributes: Vec::new(), ..term.clone() };
    joined.inputs.extend(scores.inputs.iter().skip(2));
    joined.shape = term.shape.clone();
    for (name, value) in &scores.attributes {
        joined.set(name, value.clone());
    }
    Some(Joined::Term(joined))
}

/// `attend` gives its heads side by side.
fn flat(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let attend = graph.is(term.inputs[0], "attend")?;
    if attend.attribute("flat").is_some() || term.shape.len() != 1 { return None; }
    let mut joined = Term { shape: term.shape.clone(), ..attend.clone() };
    joined.set("flat", Number::Bool(true));
    Some(Joined::Term(joined))
}
