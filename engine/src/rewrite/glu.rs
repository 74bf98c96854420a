//! `activation(a) * b` becomes one pass over memory.

use std::collections::{BTreeMap, BTreeSet};

use registry::graph::{Graph, Node};
use registry::ops::Trait;
use registry::ops::fused::GLU;
use registry::scalar::Scalar;

use super::{GraphPatch, readers};

/// Finds an activation whose only reader multiplies it by a value of the same shape.
pub(super) fn fuse(graph: &Graph) -> Option<GraphPatch> {
    graph.nodes.iter().enumerate().find_map(|(n, activation)| {
        if !activation.op.is(Trait::Gates) {
            return None;
        }
        let (&[gate], &[made]) = (activation.inputs.as_slice(), activation.outputs.as_slice())
        else {
            return None;
        };
        if graph.values[made.0].tap.is_some() || readers(graph, made) != 1 {
            return None;
        }
        let (at, product) = graph
            .nodes
            .iter()
            .enumerate()
            .skip(n + 1)
            .find(|(_, node)| node.inputs.contains(&made))?;
        // Multiplication gives the same bits either way round.
        let up = match product.inputs.as_slice() {
            [a, b] if *a == made && *b != made => *b,
            [a, b] if *b == made && *a != made => *a,
            _ => return None,
        };
        let (Some(from), &[out]) = (graph.values.get(made.0), product.outputs.as_slice()) else {
            return None;
        };
        let (other, to) = (&graph.values[up.0], &graph.values[out.0]);
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
    })
}
