//! Choices of experts.

use crate::graph::{Dim, Graph, Id, Term};
use crate::number::Number;

use super::Joined;

/// Joins the steps of a choice in groups.
pub(super) fn join(graph: &mut Graph, term: &Term) -> Option<Joined> {
    if term.op == "masked_fill" {
        return without_expert(graph, term);
    }
    if term.op == "pick" {
        // Only numbers that no mask hides are chosen in groups.
        let filled = graph.is(term.inputs[0], "masked_fill")?;
        graph.is(term.inputs[1], "choose")?.attribute("groups")?;
        return Some(Joined::Term(Term {
            inputs: vec![filled.inputs[0], term.inputs[1]],
            ..term.clone()
        }));
    }
    if term.op != "choose" || term.attribute("groups").is_some() {
        return None;
    }
    let filled = graph.is(term.inputs[0], "masked_fill")?;
    let scores = filled.inputs[0];
    let mask = graph.is(graph.uncast(filled.inputs[1]), "not")?;
    let repeated = graph.is(graph.uncast(mask.inputs[0]), "repeat_each")?;
    let scattered = graph.is(repeated.inputs[0], "scatter")?;
    let best = graph.is(scattered.inputs[1], "choose")?;
    let (split, by) = group_scores(graph, best.inputs[0])?;
    let groups = graph.is(split, "split_axis")?;
    if groups.inputs[0] != scores {
        return None;
    }
    let mut joined = Term { inputs: vec![scores], ..term.clone() };
    joined.set("groups", groups.shape[0].number.clone());
    joined.set("keep", best.attribute("k")?.clone());
    if by != "top2" {
        joined.set("by", Number::Word(by.to_owned()));
    }
    let value = filled.attribute("value")?;
    if matches!(value, Number::Int(0)) || *value == Number::Real(0.0) {
        joined.set("mask", Number::Word("zero".to_owned()));
    }
    Some(Joined::Term(joined))
}

/// The last of the choices, which stands for no expert: its weight is 0, whatever expert stands in its place.
fn without_expert(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let test = graph.is(graph.bare(term.inputs[1]), "eq")?;
    let choose = test.inputs[0];
    let scores = *graph.is(choose, "choose")?.inputs.first()?;
    let width = graph.term(scores).width();
    let count = test.attribute("s")?.clone();
    let last = Number::apply("+", vec![count.clone(), Number::Int(1)]) == width.number;
    let zero = matches!(term.attribute("value")?, Number::Int(0))
        || term.attribute("value")? == &Number::Real(0.0);
    if !last || !zero {
        return None;
    }
    if term.inputs[0] == choose {
        let mut joined = term.clone();
        "choose_or_none".clone_into(&mut joined.op);
        joined.inputs = vec![choose];
        return Some(Joined::Term(joined));
    }
    let pick = graph.is(term.inputs[0], "pick")?.clone();
    if pick.inputs[1] != choose {
        return None;
    }
    let source = graph.term(pick.inputs[0]).clone();
    let known = (&count, width.size - 1);
    let first = columns(graph, pick.inputs[0], (&Number::Int(0), 0), known);
    let none = columns(graph, pick.inputs[0], known, (&width.number, width.size));
    let mut zero = Term { inputs: vec![none], ..graph.term(none).clone() };
    "scale".clone_into(&mut zero.op);
    zero.attributes.clear();
    zero.set("s", Number::Real(0.0));
    let zero = graph.add(zero);
    let whole = Term {
        op: "concat".to_owned(),
        inputs: vec![first, zero],
        attributes: Vec::new(),
        ..source
    };
    let whole = graph.add(whole);
    Some(Joined::Term(Term { inputs: vec![whole, choose], ..pick }))
}

/// Adds the columns of a row from one to another, each an expression with its value.
fn columns(graph: &mut Graph, row: Id, from: (&Number, usize), to: (&Number, usize)) -> Id {
    let width =
        Dim { size: to.1 - from.1, number: Number::apply("-", vec![to.0.clone(), from.0.clone()]) };
    let mut slice = Term {
        op: "slice".to_owned(),
        inputs: vec![row],
        attributes: Vec::new(),
        shape: vec![width],
        ..graph.term(row).clone()
    };
    slice.set("from", from.0.clone());
    slice.set("to", to.0.clone());
    slice.set("start", Number::Int(from.1 as i64));
    slice.set("end", Number::Int(to.1 as i64));
    graph.add(slice)
}

/// The groups whose two best, or whose best, are the scores of groups.
fn group_scores(graph: &Graph, id: Id) -> Option<(Id, &'static str)> {
    let term = graph.term(id);
    let inner = if term.op == "merge_axes" { graph.term(term.inputs[0]) } else { term };
    match inner.op.as_str() {
        "sum" => {
            let top = graph.is(inner.inputs[0], "top_values")?;
            (top.attribute("k") == Some(&Number::Int(2))).then(|| (top.inputs[0], "top2"))
        }
        "max" | "amax" => Some((inner.inputs[0], "max")),
        _ => None,
    }
}
