//! Rewrites: several nodes become one whose kernel is faster and gives the same bits.
//!
//! A rewrite looks at a graph and gives a [`GraphPatch`], or nothing. It is applied until it finds
//! nothing more. A value with a tap is never rewritten away, so a captured run shows the same
//! names whether rewrites are on or off.

use std::collections::BTreeSet;

use registry::graph::{Graph, Node};

mod glu;
mod linears;

/// Looks for one place to improve.
pub type Rewrite = fn(&Graph) -> Option<GraphPatch>;

/// A change of a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphPatch {
    /// Nodes that go.
    pub remove: BTreeSet<usize>,
    /// The node that takes their place.
    pub insert: Node,
    /// The index of the removed node whose place the new node takes.
    pub at: usize,
}

/// Returns every rewrite, in the order in which they are applied.
pub fn all() -> Vec<Rewrite> {
    vec![glu::fuse, linears::join]
}

/// Applies rewrites, each as often as it finds something.
pub fn apply(graph: &Graph, rewrites: &[Rewrite]) -> Graph {
    let mut graph = graph.clone();
    for rewrite in rewrites {
        // Every patch removes a node, so this ends.
        while let Some(patch) = rewrite(&graph) {
            if patch.remove.len() < 2 || !patch.remove.contains(&patch.at) {
                break;
            }
            graph = patched(&graph, &patch);
        }
    }
    graph
}

/// Returns the graph with one patch applied; layers and the head follow their nodes.
fn patched(graph: &Graph, patch: &GraphPatch) -> Graph {
    let keeps = |n: &usize| *n == patch.at || !patch.remove.contains(n);
    let moved = |n: usize| (0..n).filter(keeps).count();
    let nodes = graph.nodes.iter().enumerate().filter(|(n, _)| keeps(n));
    Graph {
        nodes: nodes
            .map(|(n, node)| if n == patch.at { patch.insert.clone() } else { node.clone() })
            .collect(),
        layers: graph
            .layers
            .iter()
            .cloned()
            .map(|mut layer| {
                layer.nodes = (moved(layer.nodes.0), moved(layer.nodes.1));
                layer
            })
            .collect(),
        head: moved(graph.head),
        ..graph.clone()
    }
}

/// Counts the nodes that read a value; the logits count as read.
fn readers(graph: &Graph, value: registry::graph::ValueId) -> usize {
    graph.nodes.iter().filter(|node| node.inputs.contains(&value)).count()
        + usize::from(graph.output == Some(value))
}
