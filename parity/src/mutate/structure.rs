//! Edits of the inputs of nodes and of the functions that they apply.

use std::collections::BTreeMap;

use registry::graph::{Graph, Layer, Node};
use registry::model::Model;
use registry::ops::{DISTINCT, Trait};

use super::{MistakeClass, Mutant};
use crate::edit::{Change, can_bypass, has_swappable_inputs};
use crate::places::Places;

/// Gives swaps of inputs and weights, and other activation functions.
pub(super) fn mutants(model: &Model, places: &Places<'_>) -> Vec<Mutant> {
    let mut all = input_swaps(&model.graph, places);
    all.extend(weights(&model.graph, places));
    all.extend(functions(&model.graph, places));
    all.extend(omissions(&model.graph, places));
    all.extend(layers(&model.graph, places));
    all
}

/// Returns a swap of the weights of two layers of one kind.
fn layers(graph: &Graph, places: &Places<'_>) -> Option<Mutant> {
    let mut all = graph.layers.iter().enumerate();
    let (a, b) = all.find_map(|(n, a)| {
        let mut later = graph.layers[n + 1..].iter();
        Some((a, later.find(|b| b.kind == a.kind && node_count(b) == node_count(a))?))
    })?;
    let pairs: Vec<(usize, usize)> = (a.nodes.0..a.nodes.1).zip(b.nodes.0..b.nodes.1).collect();
    let right = places.of(pairs.iter().flat_map(|(a, b)| [*a, *b]));
    let name = format!("layers: all weights of `{}` and `{}` swapped", a.prefix, b.prefix);
    let change = Change::Weights(pairs);
    Some(
        Mutant::edit(name, MistakeClass::Swap, right, "both layers are equal", change)
            .without_edit(),
    )
}

/// Returns the number of nodes of a layer.
fn node_count(layer: &Layer) -> usize {
    layer.nodes.1 - layer.nodes.0
}

/// Groups the nodes that `selects` gives by their op.
fn kinds(graph: &Graph, selects: impl Fn(&Node) -> bool) -> BTreeMap<&str, Vec<usize>> {
    let mut kinds: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (n, node) in graph.nodes.iter().enumerate().filter(|(_, node)| selects(node)) {
        kinds.entry(node.op.as_str()).or_default().push(n);
    }
    kinds
}

/// Returns swaps of the first two inputs of nodes, if they have one shape and do not commute.
fn input_swaps(graph: &Graph, places: &Places<'_>) -> Vec<Mutant> {
    let mut all = Vec::new();
    for (op, nodes) in kinds(graph, |node| has_swappable_inputs(graph, node)) {
        let right = places.of(nodes.iter().copied());
        let name = format!("{op}: its first two inputs swapped");
        let change = Change::Inputs(nodes);
        all.push(Mutant::edit(name, MistakeClass::Swap, right, "both inputs are equal", change));
    }
    all
}

/// Returns swaps of the weights of two projections of one input, if they have one shape.
fn weights(graph: &Graph, places: &Places<'_>) -> Vec<Mutant> {
    let nodes = graph.nodes.iter().enumerate();
    let projections: Vec<(usize, &Node)> =
        nodes.filter(|(_, node)| node.op.is(Trait::Projects)).collect();
    let mut pair = None;
    for (index, &(n, node)) in projections.iter().enumerate() {
        let twin = projections[index + 1..].iter().find(|(_, other)| {
            other.inputs == node.inputs && weight_shape(graph, other) == weight_shape(graph, node)
        });
        if let Some(&(m, _)) = twin {
            pair = Some((n, m));
        }
    }
    let Some((n, m)) = pair else { return Vec::new() };
    let right = places.of([n, m]);
    let name = "linear: the weights of two projections swapped".to_owned();
    let change = Change::Weights(vec![(n, m)]);
    vec![Mutant::edit(name, MistakeClass::Swap, right, "both weights are equal", change)]
}

/// Returns the shape of a node's weight.
fn weight_shape<'g>(graph: &'g Graph, node: &Node) -> Option<&'g [usize]> {
    Some(&graph.weights[node.weights.get("weight")?.0].shape)
}

/// Other functions in place of activation functions.
fn functions(graph: &Graph, places: &Places<'_>) -> Vec<Mutant> {
    let mut all = Vec::new();
    for (op, nodes) in kinds(graph, |node| DISTINCT.contains(&node.op.as_str())) {
        for other in DISTINCT.into_iter().filter(|other| *other != op) {
            let right = places.of(nodes.iter().copied());
            let nodes = nodes.clone();
            let name = format!("{op}: {other} in its place");
            let change = Change::Op { nodes, op: other.to_owned() };
            all.push(Mutant::edit(name, MistakeClass::Form, right, "every value is 0", change));
        }
    }
    all
}

/// Returns edits in which readers of the last node of each kind bypass it.
fn omissions(graph: &Graph, places: &Places<'_>) -> Vec<Mutant> {
    let mut all = Vec::new();
    for (op, nodes) in kinds(graph, |node| can_bypass(graph, node, 0)) {
        let Some(&last) = nodes.last() else { continue };
        let from = graph.nodes[last].inputs[0];
        let to = graph.nodes[last].outputs[0];
        let readers = places.nodes(|node| node.inputs.contains(&to));
        if readers.is_empty() {
            continue;
        }
        let right = places.of(readers.iter().copied());
        let name = format!("{op}: the last left out");
        let reach = "it changes no number here";
        let change = Change::Reroute(vec![(readers, to, from)]);
        all.push(Mutant::edit(name, MistakeClass::Form, right, reach, change));
    }
    all
}
