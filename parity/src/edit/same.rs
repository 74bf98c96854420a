//! Compares two models by their effect on one run.

use registry::dtype::Dtype;
use registry::graph::{Graph, Node, StateId};
use registry::model::Model;
use registry::rope::RopeTable;
use registry::scalar::Scalar;

/// Relative tolerance of fitted values.
const CLOSE: f64 = 1e-3;

/// True if two models give the same results in runs of a dtype, judged by their graphs. Fitted values may
/// differ by a thousandth, and dtypes may be written differently.
pub(crate) fn same(a: &Model, b: &Model, dtype: Dtype) -> bool {
    a.ropes.len() == b.ropes.len()
        && a.ropes.iter().zip(&b.ropes).all(|(a, b)| same_table(a, b))
        && a.rules == b.rules
        && same_graph(&a.graph, &b.graph, dtype)
}

fn same_graph(a: &Graph, b: &Graph, dtype: Dtype) -> bool {
    let state = |n: usize| {
        let a = &a.states[n];
        let b = &b.states[n];
        a.dtype.resolve(dtype) == b.dtype.resolve(dtype)
            && (a.kind, a.window, a.eight) == (b.kind, b.window, b.eight)
    };
    let values = || a.values.iter().zip(&b.values);
    a.nodes.len() == b.nodes.len()
        && a.states.len() == b.states.len()
        && a.output == b.output
        && a.nodes.iter().zip(&b.nodes).all(|(a, b)| same_node(a, b))
        && (0..a.states.len()).all(state)
        && values().all(|(a, b)| a.dtype.resolve(dtype) == b.dtype.resolve(dtype))
}

fn same_node(a: &Node, b: &Node) -> bool {
    let state = |node: &Node| node.state.map(|StateId(n)| n);
    let mut keys = a.attrs.keys().chain(b.attrs.keys());
    a.op == b.op
        && (&a.inputs, &a.outputs, &a.weights, a.rope)
            == (&b.inputs, &b.outputs, &b.weights, b.rope)
        && state(a) == state(b)
        && keys.all(|key| match (a.attrs.get(key), b.attrs.get(key)) {
            (Some(a), Some(b)) => same_value(a, b),
            _ => false,
        })
}

fn close(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() <= CLOSE * a.abs().max(b.abs())
}

fn same_value(a: &Scalar, b: &Scalar) -> bool {
    match (a, b) {
        (Scalar::List(a), Scalar::List(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_value(a, b))
        }
        _ => match (a.as_f64(), b.as_f64()) {
            (Some(a), Some(b)) => close(a, b),
            _ => a == b,
        },
    }
}

fn same_table(a: &RopeTable, b: &RopeTable) -> bool {
    let frequencies = |a: &[f32], b: &[f32]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| close(f64::from(*a), f64::from(*b)))
    };
    let long = match (&a.long, &b.long) {
        (Some(a), Some(b)) => {
            a.original_context == b.original_context
                && frequencies(&a.inv_freq, &b.inv_freq)
                && close(a.attention_factor, b.attention_factor)
        }
        (a, b) => a.is_none() && b.is_none(),
    };
    a.dim == b.dim
        && frequencies(&a.inv_freq, &b.inv_freq)
        && close(a.attention_factor, b.attention_factor)
        && long
        && (&a.dynamic, a.rounded) == (&b.dynamic, b.rounded)
}
