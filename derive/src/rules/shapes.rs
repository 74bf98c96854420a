//! Changes of axes that undo each other.

use crate::graph::{Dim, Graph, Id, Term};
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
        "slice_axis" => part_of_split(graph, term),
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

/// A part along an axis that a split made is a part of the row before, split behind it.
fn part_of_split(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let split = graph.is(term.inputs[0], "split_axis")?.clone();
    let Some(&Number::Int(axis)) = term.attribute("axis") else { return None };
    let axis = usize::try_from(axis).ok()?;
    let rank = split.shape.len();
    let of_whole_row = split.attribute("at") == Some(&Number::Int(0))
        && split.attribute("count") == Some(&Number::Int(rank as i64));
    if !of_whole_row || axis + 1 >= rank {
        return None;
    }
    let behind = Dim::product(&split.shape[axis + 1..]);
    let source = if axis == 0 {
        split.inputs[0]
    } else {
        let mut shape = split.shape[..axis].to_vec();
        shape.push(Dim::product(&split.shape[axis..]));
        graph.add(split_into(&split, split.inputs[0], 0, axis + 1, shape))
    };
    let mut shape = split.shape[..axis].to_vec();
    shape.push(Dim::product(&[term.shape[axis].clone(), behind.clone()]));
    let mut part = Term {
        op: "slice".to_owned(),
        inputs: vec![source],
        attributes: Vec::new(),
        shape,
        ..term.clone()
    };
    for name in ["from", "to"] {
        part.set(
            name,
            Number::apply("*", vec![term.attribute(name)?.clone(), behind.number.clone()]),
        );
    }
    for name in ["start", "end"] {
        let Some(Number::Int(place)) = term.attribute(name) else { return None };
        part.set(name, Number::Int(place * behind.size as i64));
    }
    let part = graph.add(part);
    Some(Joined::Term(split_into(term, part, axis, rank - axis, term.shape.clone())))
}

/// A split of a row's axis into several.
fn split_into(like: &Term, source: Id, at: usize, count: usize, shape: Vec<Dim>) -> Term {
    let mut split = Term {
        op: "split_axis".to_owned(),
        inputs: vec![source],
        attributes: Vec::new(),
        shape,
        ..like.clone()
    };
    split.set("at", Number::Int(at as i64));
    split.set("count", Number::Int(count as i64));
    split
}

/// A row whose first two axes are one.
fn first_two_merged(like: &Term, source: Id, shape: Vec<Dim>) -> Term {
    let merged = split_into(like, source, 0, 2, shape);
    Term { op: "merge_axes".to_owned(), ..merged }
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
            let shape = term.shape.clone();
            let joined = split_into(term, source.inputs[0], *first as usize, 2, shape);
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
        let flat = first_two_merged(term, source.inputs[0], vec![Dim::product(&inner.shape)]);
        let flat = graph.add(flat);
        let joined = split_into(term, flat, 0, 2, term.shape.clone());
        return Some(Joined::Term(joined));
    }
    if two && source.op == "repeat_each" && source.attribute("axis") == Some(&Number::Int(1)) {
        let single = graph.term(source.inputs[0]).clone();
        if single.shape.len() == 3 && single.shape[1].size == 1 {
            let count = source.attribute("n")?.clone();
            let shape = vec![single.shape[0].clone(), single.shape[2].clone()];
            let dropped = first_two_merged(term, source.inputs[0], shape);
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
