//! Residuals in several streams: rows that are mixed by factors, and rows that are spread over streams.

use crate::graph::{Dim, Graph, Id, Term};
use crate::number::Number;

use super::{Joined, both};

/// Joins sums of streams, and products of a row with a factor for each stream.
pub(super) fn join(graph: &mut Graph, term: &Term) -> Option<Joined> {
    match term.op.as_str() {
        "sum_axis" => mixed(graph, term),
        "mul" => spread(graph, term),
        _ => None,
    }
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
