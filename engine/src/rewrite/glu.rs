//! `activation(a) * b` becomes one pass over memory.

use std::collections::{BTreeMap, BTreeSet};

use registry::graph::{Graph, Node};
use registry::ops::Trait;
use registry::ops::fused::GLU;
use registry::scalar::Scalar;

use super::{GraphPatch, readers};

/// Finds activations whose only reader multiplies them by a value of the same shape.
pub(super) fn fuse(graph: &Graph) -> Vec<GraphPatch> {
    (0..graph.nodes.len()).filter_map(|n| fused(graph, n)).collect()
}

/// Returns the patch of one activation.
fn fused(graph: &Graph, n: usize) -> Option<GraphPatch> {
    let activation = &graph.nodes[n];
    if !activation.op.is(Trait::Gates) {
        return None;
    }
    let &[gate] = activation.inputs.as_slice() else { return None };
    let &[activated] = activation.outputs.as_slice() else { return None };
    if graph.values[activated.0].tap.is_some() || readers(graph, activated) != 1 {
        return None;
    }
    let mut later = graph.nodes.iter().enumerate().skip(n + 1);
    let (at, product) = later.find(|(_, node)| node.inputs.contains(&activated))?;
    // Multiplication gives the same bits either way round.
    let up = match product.inputs.as_slice() {
        [a, b] if *a == activated && *b != activated => *b,
        [a, b] if *b == activated && *a != activated => *a,
        _ => return None,
    };
    let &[out] = product.outputs.as_slice() else {
        return None;
    };
    let [from, other, to] = [activated, up, out].map(|value| &graph.values[value.0]);
    // The head must not fall between the two: their rows would differ.
    let apart = (n < graph.head) != (at < graph.head);
    if !product.op.is(Trait::Multiplies)
        || apart
        || from.shape != other.shape
        || from.shape != to.shape
        || from.dtype != to.dtype
    {
        return None;
    }
    let name = Scalar::Str(activation.op.to_string());
    let insert = Node {
        op: GLU.into(),
        inputs: vec![gate, up],
        attrs: BTreeMap::from([("activation".to_owned(), name)]),
        ..product.clone()
    };
    Some(GraphPatch { remove: BTreeSet::from([n, at]), insert, at })
}
