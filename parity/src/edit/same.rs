//! Compares two models by their effect on one run.

use registry::dtype::Dtype;
use registry::graph::{Graph, Node, State};
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
    let mut values = a.values.iter().zip(&b.values);
    a.nodes.len() == b.nodes.len()
        && a.states.len() == b.states.len()
        && a.output == b.output
        && a.nodes.iter().zip(&b.nodes).all(|(a, b)| same_node(a, b))
        && a.states.iter().zip(&b.states).all(|(a, b)| same_state(a, b, dtype))
        && values.all(|(a, b)| a.dtype.resolve(dtype) == b.dtype.resolve(dtype))
}

/// True if two states hold the same in runs of a dtype.
fn same_state(a: &State, b: &State, dtype: Dtype) -> bool {
    a.dtype.resolve(dtype) == b.dtype.resolve(dtype)
        && (a.kind, a.window, a.eight) == (b.kind, b.window, b.eight)
}

fn same_node(a: &Node, b: &Node) -> bool {
    let mut keys = a.attrs.keys().chain(b.attrs.keys());
    a.op == b.op
        && (&a.inputs, &a.outputs, &a.weights, a.rope)
            == (&b.inputs, &b.outputs, &b.weights, b.rope)
        && a.state == b.state
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
    let long = match (&a.long, &b.long) {
        (Some(a), Some(b)) => {
            a.original_context == b.original_context
                && same_frequencies(&a.inv_freq, &b.inv_freq)
                && close(a.attention_factor, b.attention_factor)
        }
        (a, b) => a.is_none() && b.is_none(),
    };
    a.dim == b.dim
        && same_frequencies(&a.inv_freq, &b.inv_freq)
        && close(a.attention_factor, b.attention_factor)
        && long
        && (&a.dynamic, a.rounded) == (&b.dynamic, b.rounded)
}

/// True if two lists of frequencies are equal up to [`CLOSE`].
fn same_frequencies(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| close(f64::from(*a), f64::from(*b)))
}
