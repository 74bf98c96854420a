//! Changes of axes that undo each other.

use crate::graph::{Graph, Term};
use crate::number::Number;

use super::Joined;

/// Joins changes of axes.
pub(super) fn join(graph: &mut Graph, term: &Term) -> Option<Joined> {
    match term.op.as_str() {
        "split_axis"
            if term.shape.first().is_some_and(|dim| dim.size == 1)
                && term.shape.len() == 2
                && graph.term(term.inputs[0]).op == "rope" =>
        {
            // One head is rotated as heads are.
            let rope = graph.term(term.inputs[0]).clone();
            let mut split = Term { inputs: rope.inputs.clone(), ..term.clone() };
            split.kind = graph.term(rope.inputs[0]).kind;
            let split = graph.add(split);
            Some(Joined::Term(Term { inputs: vec![split], shape: term.shape.clone(), ..rope }))
        }
        "split_axis" => {
            let source = graph.is(term.inputs[0], "merge_axes")?;
            let origin = graph.term(source.inputs[0]);
            same_sizes(origin, term).then_some(Joined::Known(source.inputs[0]))
        }
        "merge_axes" => merged(graph, term),
        "slice_axis" => heads_of_slice(graph, term),
        "repeat_each" if term.attribute("n") == Some(&Number::Int(1)) => {
            Some(Joined::Known(term.inputs[0]))
        }
        "permute_row" => {
            let order = match term.attribute("order")? {
                Number::Apply(_, items) => items.clone(),
                _ => return None,
            };
            let same = order
                .iter()
                .enumerate()
                .all(|(place, number)| *number == Number::Int(place as i64));
            same.then_some(Joined::Known(term.inputs[0]))
        }
        "concat" => concatenated(graph, term),
        _ => None,
    }
}

/// Some of the heads of a row are the heads of a part of the row.
fn heads_of_slice(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let heads = graph.is(term.inputs[0], "split_axis")?;
    if heads.shape.len() == 3
        && term.attribute("axis") == Some(&Number::Int(1))
        && heads.attribute("at") == Some(&Number::Int(0))
        && heads.attribute("count") == Some(&Number::Int(3))
    {
        return parts_of_heads(graph, term);
    }
    if heads.shape.len() == 3
        && term.attribute("axis") == Some(&Number::Int(0))
        && heads.attribute("at") == Some(&Number::Int(0))
        && heads.attribute("count") == Some(&Number::Int(3))
    {
        return leading_part(graph, term);
    }
    if heads.shape.len() != 2
        || term.attribute("axis") != Some(&Number::Int(0))
        || heads.attribute("at") != Some(&Number::Int(0))
    {
        return None;
    }
    let size = heads.shape[1].clone();
    let source = heads.inputs[0];
    let bound = |name: &str| {
        term.attribute(name)
            .map(|number| Number::apply("*", vec![number.clone(), size.number.clone()]))
    };
    let place = |name: &str| match term.attribute(name) {
        Some(Number::Int(value)) => Some(Number::Int(value * size.size as i64)),
        _ => None,
    };
    let (from, to, start, end) = (bound("from")?, bound("to")?, place("start")?, place("end")?);
    let width = crate::graph::Dim::product(&[term.shape[0].clone(), size]);
    let kind = term.kind;
    let mut part = Term {
        op: "slice".to_owned(),
        inputs: vec![source],
        attributes: Vec::new(),
        shape: vec![width],
        kind,
        ..term.clone()
    };
    for (name, value) in [("from", from), ("to", to), ("start", start), ("end", end)] {
        part.set(name, value);
    }
    let id = graph.add(part);
    let mut joined = Term {
        op: "split_axis".to_owned(),
        inputs: vec![id],
        attributes: Vec::new(),
        ..term.clone()
    };
    joined.set("at", Number::Int(0));
    joined.set("count", Number::Int(2));
    Some(Joined::Term(joined))
}

/// A part of each head, where heads hold several parts of equal size.
fn parts_of_heads(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let heads = graph.term(term.inputs[0]).clone();
    let size = heads.shape[2].clone();
    let wide = crate::graph::Dim::product(&heads.shape[1..]);
    let mut split =
        Term { shape: vec![heads.shape[0].clone(), wide], attributes: Vec::new(), ..heads.clone() };
    split.set("at", Number::Int(0));
    split.set("count", Number::Int(2));
    let split = graph.add(split);
    let bound = |name: &str| {
        term.attribute(name)
            .map(|number| Number::apply("*", vec![number.clone(), size.number.clone()]))
    };
    let place = |name: &str| match term.attribute(name) {
        Some(Number::Int(value)) => Some(Number::Int(value * size.size as i64)),
        _ => None,
    };
    let (from, to, start, end) = (bound("from")?, bound("to")?, place("start")?, place("end")?);
    let width = crate::graph::Dim::product(&[term.shape[1].clone(), size]);
    let mut part = Term {
        op: "slice".to_owned(),
        inputs: vec![split],
        attributes: Vec::new(),
        shape: vec![heads.shape[0].clone(), width],
        ..term.clone()
    };
    for (name, value) in [("from", from), ("to", to), ("start", start), ("end", end)] {
        part.set(name, value);
    }
    let id = graph.add(part);
    let mut joined = Term {
        op: "split_axis".to_owned(),
        inputs: vec![id],
        attributes: Vec::new(),
        ..term.clone()
    };
    joined.set("at", Number::Int(1));
    joined.set("count", Number::Int(2));
    Some(Joined::Term(joined))
}

/// One of several rows of heads that lie one behind the other.
fn leading_part(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let rows = graph.term(term.inputs[0]).clone();
    let size = crate::graph::Dim::product(&rows.shape[1..]);
    let bound = |name: &str| {
        term.attribute(name)
            .map(|number| Number::apply("*", vec![number.clone(), size.number.clone()]))
    };
    let place = |name: &str| match term.attribute(name) {
        Some(Number::Int(value)) => Some(Number::Int(value * size.size as i64)),
        _ => None,
    };
    let (from, to, start, end) = (bound("from")?, bound("to")?, place("start")?, place("end")?);
    let width = crate::graph::Dim::product(&[term.shape[0].clone(), size]);
    let mut part = Term {
        op: "slice".to_owned(),
        inputs: rows.inputs.clone(),
        attributes: Vec::new(),
        shape: vec![width],
        ..term.clone()
    };
    for (name, value) in [("from", from), ("to", to), ("start", start), ("end", end)] {
        part.set(name, value);
    }
    let id = graph.add(part);
    let mut joined = Term {
        op: "split_axis".to_owned(),
        inputs: vec![id],
        attributes: Vec::new(),
        ..term.clone()
    };
    joined.set("at", Number::Int(0));
    joined.set("count", Number::Int(3));
    Some(Joined::Term(joined))
}

fn same_sizes(one: &Term, other: &Term) -> bool {
    one.shape.len() == other.shape.len()
        && one.shape.iter().zip(&other.shape).all(|(left, right)| left.size == right.size)
}

/// A merge that undoes a split, or that makes a repeat of an expansion.
fn merged(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let source = graph.term(term.inputs[0]).clone();
    if source.op == "split_axis" {
        let origin = graph.term(source.inputs[0]);
        if same_sizes(origin, term) {
            return Some(Joined::Known(source.inputs[0]));
        }
    }
    if source.op == "split_axis"
        && source.shape.len() == term.shape.len() + 1
        && source.attribute("count") == Some(&Number::Int(3))
    {
        // An axis of size 1 that a split made and a merge drops.
        let (Some(Number::Int(first)), Some(Number::Int(at))) =
            (source.attribute("at"), term.attribute("at"))
        else {
            return None;
        };
        let dropped =
            source.shape[*at as usize].size == 1 || source.shape[*at as usize + 1].size == 1;
        if dropped && *at >= *first && *at + 1 < first + 3 {
            let mut joined = Term {
                op: "split_axis".to_owned(),
                inputs: source.inputs.clone(),
                attributes: Vec::new(),
                ..term.clone()
            };
            joined.set("at", Number::Int(*first));
            joined.set("count", Number::Int(2));
            return Some(Joined::Term(joined));
        }
    }
    let two = term.attribute("at") == Some(&Number::Int(0))
        && term.attribute("count") == Some(&Number::Int(2));
    if two
        && source.op == "split_axis"
        && source.attribute("at") == Some(&Number::Int(1))
        && source.shape.len() == 3
    {
        // Parts of heads, side by side, are heads of the whole.
        let inner = graph.term(source.inputs[0]).clone();
        let mut flat = Term {
            op: "merge_axes".to_owned(),
            inputs: source.inputs.clone(),
            attributes: Vec::new(),
            shape: vec![crate::graph::Dim::product(&inner.shape)],
            ..term.clone()
        };
        flat.set("at", Number::Int(0));
        flat.set("count", Number::Int(2));
        let flat = graph.add(flat);
        let mut joined = Term {
            op: "split_axis".to_owned(),
            inputs: vec![flat],
            attributes: Vec::new(),
            ..term.clone()
        };
        joined.set("at", Number::Int(0));
        joined.set("count", Number::Int(2));
        return Some(Joined::Term(joined));
    }
    if two && source.op == "repeat_each" && source.attribute("axis") == Some(&Number::Int(1)) {
        let single = graph.term(source.inputs[0]).clone();
        if single.shape.len() == 3 && single.shape[1].size == 1 {
            let count = source.attribute("n")?.clone();
            let mut dropped = Term {
                op: "merge_axes".to_owned(),
                inputs: source.inputs.clone(),
                attributes: Vec::new(),
                shape: vec![single.shape[0].clone(), single.shape[2].clone()],
                ..term.clone()
            };
            dropped.set("at", Number::Int(0));
            dropped.set("count", Number::Int(2));
            let dropped = graph.add(dropped);
            let mut joined = Term {
                op: "repeat_each".to_owned(),
                inputs: vec![dropped],
                attributes: Vec::new(),
                ..term.clone()
            };
            joined.set("axis", Number::Int(0));
            joined.set("n", count);
            return Some(Joined::Term(joined));
        }
    }
    if source.op == "expand" && term.attribute("count") == Some(&Number::Int(2)) {
        let (Some(Number::Int(new)), Some(Number::Int(at))) =
            (source.attribute("at"), term.attribute("at"))
        else {
            return None;
        };
        let count = source.shape[*new as usize].number.clone();
        let mut joined = Term {
            op: if *new == at + 1 { "repeat_each" } else { "repeat_all" }.to_owned(),
            inputs: source.inputs.clone(),
            attributes: Vec::new(),
            ..term.clone()
        };
        joined.set("axis", Number::Int(*at));
        joined.set("n", count);
        return Some(Joined::Term(joined));
    }
    None
}

/// Parts of one term in their order are the term.
fn concatenated(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let filled: Vec<usize> =
        term.inputs.iter().copied().filter(|&id| graph.term(id).width().size > 0).collect();
    if filled.len() < term.inputs.len() {
        if let [single] = filled[..] {
            return Some(Joined::Known(single));
        }
        return Some(Joined::Term(Term { inputs: filled, ..term.clone() }));
    }
    let parts: Vec<&Term> = term.inputs.iter().map(|&id| graph.term(id)).collect();
    let first = parts.first()?;
    if parts.iter().any(|part| part.op != "slice" || part.inputs != first.inputs) {
        return None;
    }
    let mut at = Number::Int(0);
    for part in &parts {
        if part.attribute("start") != Some(&at) {
            return None;
        }
        at = part.attribute("end")?.clone();
    }
    let source = graph.term(first.inputs[0]);
    (at == Number::Int(source.width().size as i64)).then(|| Joined::Known(first.inputs[0]))
}
