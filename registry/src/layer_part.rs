//! Takes layers out of a model.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{Graph, StateId, ValueId, WeightId};
use crate::layer_choice::{LayerChoice, LayerChoiceError};
use crate::model::Model;

impl Model {
    /// Returns the model without the layers that are not chosen, and without its multi-token prediction head.
    pub fn with_layers(&self, choice: &LayerChoice) -> Result<Self, LayerChoiceError> {
        let have = self.graph.layers.len();
        if choice.of != have {
            return Err(LayerChoiceError::Count { choice: choice.of, model: have });
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
    let resolved = |mut value: ValueId| {
        while let Some(earlier) = handed.get(&value) {
            value = *earlier;
        }
        value
    };
    let keeps = |n: &usize| graph.nodes[*n].layer.is_none_or(|layer| chosen.contains(&layer));
    let moved = |n: usize| (0..n).filter(keeps).count();
    let mut nodes: Vec<_> =
        (0..graph.nodes.len()).filter(keeps).map(|n| graph.nodes[n].clone()).collect();
    let weights: BTreeSet<WeightId> =
        nodes.iter().flat_map(|node| node.weights.values().copied()).collect();
    let states: BTreeSet<StateId> = nodes.iter().filter_map(|node| node.state).collect();
    let place = |all: &BTreeSet<StateId>, id: StateId| StateId(all.range(..id).count());
    for node in &mut nodes {
        node.inputs.iter_mut().for_each(|value| *value = resolved(*value));
        for id in node.weights.values_mut() {
            *id = WeightId(weights.range(..*id).count());
        }
        node.state = node.state.map(|id| place(&states, id));
    }
    let mut equal_dtypes = graph.equal_dtypes.clone();
    equal_dtypes.retain(|demand| states.contains(&demand.state));
    for demand in &mut equal_dtypes {
        demand.state = place(&states, demand.state);
        demand.value = resolved(demand.value);
    }
    let mut layers = graph.layers.clone();
    for layer in &mut layers {
        layer.nodes = (moved(layer.nodes.0), moved(layer.nodes.1));
    }
    Ok(Graph {
        nodes,
        weights: weights.iter().map(|id| graph.weights[id.0].clone()).collect(),
        states: states.iter().map(|id| graph.states[id.0].clone()).collect(),
        layers,
        equal_dtypes,
        output: graph.output.map(resolved),
        head: moved(graph.head),
        ..graph.clone()
    })
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
    let made_in = |value: ValueId| makers.get(&value).copied().flatten();
    let mut handed = BTreeMap::new();
    for layer in (0..graph.layers.len()).filter(|layer| !chosen.contains(layer)) {
        let (inside, outside): (Vec<_>, Vec<_>) =
            graph.nodes.iter().partition(|node| node.layer == Some(layer));
        let read = outside.iter().flat_map(|node| node.inputs.iter().copied()).chain(graph.output);
        let out: BTreeSet<ValueId> = read.filter(|value| made_in(*value) == Some(layer)).collect();
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
            .filter(|value| made_in(*value) != Some(layer))
            .filter(|value| graph.values[value.0].shape == graph.values[out.0].shape)
            .collect();
        // The rows of the layer before, where later layers also read a value from before all layers.
        let before = read.iter().find(|value| layer > 0 && made_in(**value) == Some(layer - 1));
        let input = match (before, read.len()) {
            (Some(value), _) => *value,
            (None, 1) => *read.first().expect("one value"),
            _ => return Err(LayerChoiceError::Input { layer }),
        };
        handed.insert(out, input);
    }
    Ok(handed)
}
