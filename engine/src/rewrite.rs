//! Rewrites: several nodes become one whose kernel is faster and gives the same bits.
//!
//! A rewrite looks at a graph and gives a [`GraphPatch`] for each place. A value with a tap is never rewritten away, so a captured run shows the same
//! names whether rewrites are on or off.

use std::collections::BTreeSet;

use registry::graph::{Graph, Node};

mod glu;
mod linears;

/// Finds the places to improve. Of two that share a node, the first is improved.
pub type Rewrite = fn(&Graph) -> Vec<GraphPatch>;

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

/// Applies rewrites, one after another.
pub fn apply(graph: &Graph, rewrites: &[Rewrite]) -> Graph {
    let mut graph = graph.clone();
    for rewrite in rewrites {
        let patches = rewrite(&graph);
        patch(&mut graph, patches);
    }
    graph
}

/// Applies patches to a graph; layers and the head follow their nodes.
fn patch(graph: &mut Graph, patches: Vec<GraphPatch>) {
    let mut nodes: Vec<Option<Node>> = graph.nodes.drain(..).map(Some).collect();
    let mut patched = BTreeSet::new();
    for GraphPatch { remove, insert, at } in patches {
        if !remove.is_disjoint(&patched) {
            continue;
        }
        for n in &remove {
            nodes[*n] = None;
        }
        nodes[at] = Some(insert);
        patched.extend(remove);
    }
    // For each node, and for the end, the number of nodes that stay before it.
    let kept_counts = nodes.iter().scan(0, |node_count, node| {
        *node_count += usize::from(node.is_some());
        Some(*node_count)
    });
    let moved: Vec<usize> = std::iter::once(0).chain(kept_counts).collect();
    for layer in &mut graph.layers {
        layer.nodes = (moved[layer.nodes.0], moved[layer.nodes.1]);
    }
    graph.head = moved[graph.head];
    graph.nodes = nodes.into_iter().flatten().collect();
}

/// Counts the nodes that read a value; the logits count as read.
fn readers(graph: &Graph, value: registry::graph::ValueId) -> usize {
    graph.nodes.iter().filter(|node| node.inputs.contains(&value)).count()
        + usize::from(graph.output == Some(value))
}
