//! Choices of experts.

use crate::graph::{Graph, Id, Term};
use crate::number::Number;

use super::Joined;

/// Joins the steps of a choice in groups.
pub(super) fn join(graph: &mut Graph, term: &Term) -> Option<Joined> {
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
