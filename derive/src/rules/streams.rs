//! Residuals in several streams: rows that are mixed by factors, and rows that are spread over streams.

use crate::graph::{Dim, Graph, Id, Kind, Term};
use crate::number::Number;

use super::{Joined, both};

/// Joins sums of streams, and products of a row with a factor for each stream.
pub(super) fn join(graph: &mut Graph, term: &Term) -> Option<Joined> {
    match term.op.as_str() {
        "sum_axis" => mixed(graph, term),
        "mul" => spread(graph, term),
        "div" => balanced(graph, term),
        _ => None,
    }
}

/// A matrix divided by the sums of its columns, each plus a small number, and by those of its rows and columns in turn.
fn balanced(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let [matrix, sums] = term.inputs[..] else { return None };
    let sums = graph.is(graph.weightless(sums), "offset")?;
    let eps = sums.attribute("s")?;
    let sum = graph.term(sums.inputs[0]);
    if term.kind != Kind::Float || term.shape.len() != 2 || sum.inputs[0] != matrix {
        return None;
    }
    let source = graph.term(matrix);
    let same_eps = source.attribute("eps") == Some(eps);
    let (op, rows, iterations) = match (sum.op.as_str(), source.op.as_str()) {
        ("sum_axis", "balanced_rows") if same_eps => ("sinkhorn", source.inputs[0], 1),
        ("sum_axis", _) => ("sinkhorn", matrix, 1),
        ("sum", "sinkhorn") if same_eps => ("balanced_rows", source.inputs[0], 0),
        _ => return None,
    };
    let before = match (source.op.as_str(), source.attribute("iterations")) {
        ("sinkhorn" | "balanced_rows", Some(Number::Int(count))) if rows != matrix => *count,
        _ => 0,
    };
    let mut joined =
        Term { op: op.to_owned(), inputs: vec![rows], attributes: Vec::new(), ..term.clone() };
    joined.set("iterations", Number::Int(before + iterations));
    joined.set("eps", eps.clone());
    Some(Joined::Term(joined))
}

/// The factors of `[n, 1]` that stand for one number of each of n streams.
fn factors(graph: &Graph, id: Id) -> Option<Id> {
    let column = graph.is(id, "with_ones")?;
    let [_, Dim { size: 1, .. }] = column.shape[..] else { return None };
    let numbers = column.inputs[0];
    (graph.term(numbers).shape.len() == 1).then_some(numbers)
}

/// The sum of streams, each times its factor.
fn mixed(graph: &mut Graph, term: &Term) -> Option<Joined> {
    let product = graph.is(term.inputs[0], "mul")?;
    if term.attribute("axis") != Some(&Number::Int(0)) || product.shape.len() != 2 {
        return None;
    }
    let (rows, numbers) = both(product).into_iter().find_map(|(rows, column)| {
        let streams = graph.term(rows).shape.len() == 2;
        streams.then(|| factors(graph, column)).flatten().map(|numbers| (rows, numbers))
    })?;
    Some(Joined::Term(Term {
        op: "mix_streams".to_owned(),
        inputs: vec![rows, numbers],
        attributes: Vec::new(),
        ..term.clone()
    }))
}

/// A row times a factor for each stream.
fn spread(graph: &mut Graph, term: &Term) -> Option<Joined> {
    if term.shape.len() != 2 {
        return None;
    }
    let (row, numbers) = both(term).into_iter().find_map(|(row, column)| {
        let flat = graph.term(row).shape.len() == 1 && graph.term(row).width().size > 1;
        flat.then(|| factors(graph, column)).flatten().map(|numbers| (row, numbers))
    })?;
    Some(Joined::Term(Term {
        op: "outer".to_owned(),
        inputs: vec![row, numbers],
        attributes: Vec::new(),
        ..term.clone()
    }))
}
