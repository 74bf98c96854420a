//! Takes layers out of a model.
//!
//! The others hand their input on ([decision 64](../../docs/decisions/0064-leave-layers-out.md)).

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{Graph, Node, StateId, ValueId, WeightId};
use crate::layer_choice::{LayerChoice, LayerChoiceError};
use crate::model::Model;

impl Model {
    /// Returns the model without the layers that are not chosen, and without its multi-token prediction head.
    pub fn with_layers(&self, choice: &LayerChoice) -> Result<Self, LayerChoiceError> {
        let count = self.graph.layers.len();
        if choice.of != count {
            return Err(LayerChoiceError::Count { choice: choice.of, model: count });
        }
        let head = self.nextn.iter().flat_map(|nextn| &nextn.layers);
        let head = head.flat_map(|layer| &layer.graph.weights).map(|weight| weight.name.clone());
        Ok(Self {
            graph: part(&self.graph, &choice.chosen)?,
            ignore: self.ignore.iter().cloned().chain(head).collect(),
            nextn: None,
            layers: Some(choice.clone()),
            ..self.clone()
        })
    }
}

/// Returns the graph without the other layers.
fn part(graph: &Graph, chosen: &BTreeSet<usize>) -> Result<Graph, LayerChoiceError> {
    let handed = handed_on(graph, chosen)?;
    let kept_nodes = graph.nodes.iter().filter(|node| is_kept(node, chosen));
    let mut nodes: Vec<_> = kept_nodes.cloned().collect();
    let weights: BTreeSet<WeightId> =
        nodes.iter().flat_map(|node| node.weights.values().copied()).collect();
    let states: BTreeSet<StateId> = nodes.iter().filter_map(|node| node.state).collect();
    for node in &mut nodes {
        node.inputs.iter_mut().for_each(|value| *value = resolved(&handed, *value));
        for id in node.weights.values_mut() {
            *id = WeightId(weights.range(..*id).count());
        }
        node.state = node.state.map(|id| new_id(&states, id));
    }
    let mut equal_dtypes = graph.equal_dtypes.clone();
    equal_dtypes.retain(|demand| states.contains(&demand.state));
    for demand in &mut equal_dtypes {
        demand.state = new_id(&states, demand.state);
        demand.value = resolved(&handed, demand.value);
    }
    let mut layers = graph.layers.clone();
    for layer in &mut layers {
        let (first, end) = layer.nodes;
        layer.nodes = (kept_before(graph, chosen, first), kept_before(graph, chosen, end));
    }
    Ok(Graph {
        nodes,
        weights: weights.iter().map(|id| graph.weights[id.0].clone()).collect(),
        states: states.iter().map(|id| graph.states[id.0].clone()).collect(),
        layers,
        equal_dtypes,
        output: graph.output.map(|value| resolved(&handed, value)),
        head: kept_before(graph, chosen, graph.head),
        // Rows that are added behind layers belong to all layers.
        beside: 0,
        ..graph.clone()
    })
}

/// Follows a value to the one that takes its place once layers are left out.
fn resolved(handed: &BTreeMap<ValueId, ValueId>, mut value: ValueId) -> ValueId {
    while let Some(earlier) = handed.get(&value) {
        value = *earlier;
    }
    value
}

/// True if a node is outside of the layers, or in a chosen one.
fn is_kept(node: &Node, chosen: &BTreeSet<usize>) -> bool {
    node.layer.is_none_or(|layer| chosen.contains(&layer))
}

/// Counts the kept nodes before node `n`: the new number of that node.
fn kept_before(graph: &Graph, chosen: &BTreeSet<usize>, n: usize) -> usize {
    graph.nodes[..n].iter().filter(|node| is_kept(node, chosen)).count()
}

/// Returns the new number of a state among those that are left.
fn new_id(states: &BTreeSet<StateId>, id: StateId) -> StateId {
    StateId(states.range(..id).count())
}

/// Maps the output of each layer that is left out to the layer's input.
fn handed_on(
    graph: &Graph,
    chosen: &BTreeSet<usize>,
) -> Result<BTreeMap<ValueId, ValueId>, LayerChoiceError> {
    let makers: BTreeMap<ValueId, Option<usize>> = graph
        .nodes
        .iter()
        .flat_map(|node| node.outputs.iter().map(|value| (*value, node.layer)))
        .collect();
    let mut handed = BTreeMap::new();
    for layer in (0..graph.layers.len()).filter(|layer| !chosen.contains(layer)) {
        let (inside, outside): (Vec<_>, Vec<_>) =
            graph.nodes.iter().partition(|node| node.layer == Some(layer));
        let read = outside.iter().flat_map(|node| node.inputs.iter().copied()).chain(graph.output);
        let out: BTreeSet<ValueId> =
            read.filter(|value| maker_layer(&makers, *value) == Some(layer)).collect();
        let (1, Some(out)) = (out.len(), out.first().copied()) else {
            let names: Vec<&str> =
                out.iter().map(|value| graph.values[value.0].name.as_str()).collect();
            let values = if names.is_empty() {
                "nothing".to_owned()
            } else {
                format!("`{}`", names.join("`, `"))
            };
            return Err(LayerChoiceError::Values { layer, values });
        };
        let read: BTreeSet<ValueId> = inside
            .iter()
            .flat_map(|node| node.inputs.iter().copied())
            .filter(|value| maker_layer(&makers, *value) != Some(layer))
            .filter(|value| graph.values[value.0].shape == graph.values[out.0].shape)
            .collect();
        // The rows of the layer before, where later layers also read a value from before all layers.
        let before =
            read.iter().find(|value| layer > 0 && maker_layer(&makers, **value) == Some(layer - 1));
        let input = match (before, read.len()) {
            (Some(value), _) => *value,
            (None, 1) => *read.first().expect("one value"),
            _ => return Err(LayerChoiceError::Input { layer }),
        };
        handed.insert(out, input);
    }
    Ok(handed)
}

/// Returns the layer of the node that gives a value.
fn maker_layer(makers: &BTreeMap<ValueId, Option<usize>>, value: ValueId) -> Option<usize> {
    makers.get(&value).copied().flatten()
}
