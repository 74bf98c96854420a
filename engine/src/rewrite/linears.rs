//! Matrices with the same input run as one node: one visit to the worker threads instead of
//! several.

use std::collections::{BTreeMap, BTreeSet};

use registry::graph::{Graph, Node};
use registry::ops::Trait;
use registry::ops::fused::LINEARS;

use super::GraphPatch;

/// Finds two or more `linear`s of the same input. They come to stand at the first, which moves
/// the others earlier; their input is there already.
pub(super) fn join(graph: &Graph) -> Option<GraphPatch> {
    graph.nodes.iter().enumerate().find_map(|(at, first)| {
        let alike = |(n, node): &(usize, &Node)| {
            node.op.is(Trait::Joins)
                && node.inputs == first.inputs
                && node.layer == first.layer
                && (*n < graph.head) == (at < graph.head)
        };
        let found: Vec<(usize, &Node)> =
            graph.nodes.iter().enumerate().skip(at).filter(alike).collect();
        if !first.op.is(Trait::Joins) || found.len() < 2 {
            return None;
        }
        let mut weights = BTreeMap::new();
        for (n, (_, node)) in found.iter().enumerate() {
            for (role, id) in &node.weights {
                weights.insert(format!("{role}.{n}"), *id);
            }
        }
        let insert = Node {
            op: LINEARS.into(),
            weights,
            outputs: found.iter().flat_map(|(_, node)| node.outputs.iter().copied()).collect(),
            attrs: BTreeMap::new(),
            ..first.clone()
        };
        Some(GraphPatch {
            remove: found.iter().map(|(n, _)| *n).collect::<BTreeSet<_>>(),
            insert,
            at,
        })
    })
}
