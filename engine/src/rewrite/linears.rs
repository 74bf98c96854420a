//! Matrices with the same input run as one node: one visit to the worker threads instead of
//! several.

use std::collections::BTreeMap;

use registry::graph::{Graph, Node};
use registry::ops::Trait;
use registry::ops::fused::LINEARS;

use super::GraphPatch;

/// Finds groups of two or more `linear`s of the same input. They come to stand at the first, which moves
/// the others earlier; their input is there already.
pub(super) fn join(graph: &Graph) -> Vec<GraphPatch> {
    let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (n, node) in graph.nodes.iter().enumerate().filter(|(_, node)| node.op.is(Trait::Joins)) {
        groups.entry((&node.inputs, node.layer, n < graph.head)).or_default().push(n);
    }
    groups.into_values().filter(|group| group.len() > 1).map(|group| joined(graph, group)).collect()
}

/// Returns the patch that makes one node of several.
fn joined(graph: &Graph, group: Vec<usize>) -> GraphPatch {
    let nodes = group.iter().map(|n| &graph.nodes[*n]);
    let weights = nodes.clone().enumerate().flat_map(|(n, node)| {
        node.weights.iter().map(move |(role, id)| (format!("{role}.{n}"), *id))
    });
    let insert = Node {
        op: LINEARS.into(),
        weights: weights.collect(),
        outputs: nodes.clone().flat_map(|node| node.outputs.iter().copied()).collect(),
        attrs: BTreeMap::new(),
        ..graph.nodes[group[0]].clone()
    };
    GraphPatch { at: group[0], insert, remove: group.into_iter().collect() }
}
