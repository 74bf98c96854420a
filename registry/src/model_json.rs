//! Formats a resolved model as JSON.

use serde_json::{Map, Value, json};

use crate::dtype::Dtype;
use crate::graph::{Graph, Node, State};
use crate::model::Model;

/// Requested sections.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "one flag per section, any of them together")]
pub struct ModelSections {
    /// True for the dims.
    pub dims: bool,
    /// True for the weights.
    pub weights: bool,
    /// True for the states.
    pub states: bool,
    /// True for the nodes of the graph.
    pub graph: bool,
}

/// Returns the sections of a model as one object; `dtype` replaces `activation`.
pub fn model_json(model: &Model, dtype: Dtype, sections: ModelSections) -> Value {
    let graph = &model.graph;
    let mut object = json!({
        "schema": "onboard-model/1",
        "spec": model.name,
        "architecture": model.architecture,
        "dtype": dtype.name(),
        "layers": graph.layers.iter().map(|layer| json!({ "kind": layer.kind, "prefix": layer.prefix })).collect::<Vec<_>>(),
    });
    if sections.dims {
        let dims = model.dims.iter().map(|(name, value)| (name.clone(), value.json(number_text)));
        object["dims"] = Value::Object(dims.collect());
    }
    if sections.weights {
        let weights = graph.weights.iter().map(|weight| {
            json!({ "name": weight.name, "shape": weight.shape, "dtype": weight.dtype.resolve(dtype).name() })
        });
        object["weights"] = weights.collect();
        object["tied"] = json!(graph.tied);
    }
    if sections.states {
        object["states"] = graph.states.iter().map(|one| state(one, dtype)).collect();
    }
    if sections.graph {
        object["graph"] = graph.nodes.iter().map(|one| node(graph, one, dtype)).collect();
        object["output"] = json!(graph.output.map(|id| id.0));
    }
    object
}

fn state(state: &State, dtype: Dtype) -> Value {
    let parts = state.parts.iter().map(|part| (part.name.clone(), json!(part.shape)));
    let stored_dtype =
        state.eight.map_or_else(|| state.dtype.resolve(dtype).name(), |eight| eight.name());
    json!({
        "name": state.name,
        "layer": state.layer,
        "kind": state.kind.name(),
        "dtype": stored_dtype,
        "window": state.window,
        "parts": parts.collect::<Map<_, _>>(),
    })
}

/// Formats a node; values are numbered as in the graph.
fn node(graph: &Graph, node: &Node, dtype: Dtype) -> Value {
    let outputs = node.outputs.iter().map(|id| {
        let value = &graph.values[id.0];
        json!({
            "value": id.0,
            "name": value.name,
            "shape": value.shape,
            "dtype": value.dtype.resolve(dtype).name(),
            "tap": value.tap,
        })
    });
    let weights =
        node.weights.iter().map(|(role, id)| (role.clone(), json!(graph.weights[id.0].name)));
    let attributes = node.attrs.iter().map(|(name, value)| (name.clone(), value.json(number_text)));
    json!({
        "op": node.op.as_str(),
        "layer": node.layer,
        "inputs": node.inputs.iter().map(|id| id.0).collect::<Vec<_>>(),
        "outputs": outputs.collect::<Vec<_>>(),
        "weights": weights.collect::<Map<_, _>>(),
        "state": node.state.map(|id| graph.states[id.0].name.clone()),
        "rope": node.rope.map(|id| id.0),
        "attributes": attributes.collect::<Map<_, _>>(),
    })
}

/// Returns a number that JSON cannot express as text.
fn number_text(number: f64) -> Value {
    number.to_string().into()
}
