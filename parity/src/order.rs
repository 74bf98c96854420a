//! Order in which a graph computes the compared values, which defines the first divergence.
//!
//! Findings are ordered by phase (prefill, then decode), then by step, then by the node of the graph that
//! makes the value. A node's states come right before its output, because the output is computed from them.
//!
//! A state belongs to the phase that reads it. Keys and values are written and read within one forward
//! pass, so after a prefill they count as prefill: a wrong rotation shows in `k` first and then in
//! everything after it. The inputs that a convolution stores for later are never read by the forward pass
//! that wrote them. That snapshot counts as **decode, step 0**, the state that the prefix leaves for the
//! first step, even if it was taken after a full prefill. A conv state that is stored in too few bits is
//! therefore a decode finding while prefill passes, which matches the visible behaviour. The same holds for
//! recurrent states: the state after the last token is read by the next step.

use std::collections::{BTreeMap, BTreeSet};

use engine::{SessionFeatures, ShownParts};
use registry::graph::{Graph, Node, StateId, StateKind};

use crate::dump::Phase;

/// Moment of a computation, in the order of execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExecutionPoint {
    /// The phase.
    pub phase: Phase,
    /// Step: 0 is the prefix (or the whole prefill), j the j-th single token.
    pub step: usize,
    /// Place in the graph.
    pub place: GraphPlace,
}

/// Place in the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GraphPlace {
    /// Index of the node.
    pub node: usize,
    /// False for the states of the node, which come before its output.
    pub output: bool,
}

/// Place of the log-probabilities, after everything else.
pub const LAST: GraphPlace = GraphPlace { node: usize::MAX, output: true };

/// Size of the part of a graph between recorded values and the output of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeSpan {
    /// Number of nodes, including the node itself; [`FAR`] at most.
    pub(crate) nodes: usize,
    /// Number of terms of the longest sum of a product with a matrix.
    pub(crate) terms: usize,
}

/// Places of all taps and states of a graph.
#[derive(Debug, Clone, Default)]
pub struct ExecutionOrder {
    /// Taps by name.
    pub taps: BTreeMap<String, GraphPlace>,
    /// State parts by layer and part.
    pub states: BTreeMap<(usize, String), StatePlace>,
    /// True if the engine exposes its states.
    pub(crate) shows_states: bool,
    /// Parts between the values that the dump has and each node's output.
    spans: Vec<NodeSpan>,
}

/// Part of a state, as named in reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatePlace {
    /// State in the graph.
    pub state: StateId,
    /// Kind of the state.
    pub kind: StateKind,
    /// `conv of model.layers.0`, `kv.k of model.layers.2`.
    pub label: String,
    /// Place of the node that owns the state.
    pub place: GraphPlace,
}

impl ExecutionOrder {
    /// Computes the order of a graph. `recorded` returns true if the dump has a tap.
    pub fn of(graph: &Graph, recorded: impl Fn(&str) -> bool) -> Self {
        let mut order = Self { spans: spans(graph, recorded), ..Self::default() };
        let mut owners: BTreeMap<StateId, usize> = BTreeMap::new();
        for (node, n) in graph.nodes.iter().enumerate() {
            if let Some(state) = n.state {
                owners.entry(state).or_insert(node);
            }
            for output in &n.outputs {
                if let Some(tap) = graph.values.get(output.0).and_then(|v| v.tap.as_ref()) {
                    order.taps.entry(tap.clone()).or_insert(GraphPlace { node, output: true });
                }
            }
        }
        for (n, state) in graph.states.iter().enumerate() {
            let node = owners.get(&StateId(n)).copied().unwrap_or(usize::MAX);
            let layer = graph
                .layers
                .get(state.layer)
                .map_or_else(|| format!("layer {}", state.layer), |l| l.prefix.clone());
            for part in &state.parts {
                let name = if part.name == state.name {
                    part.name.clone()
                } else {
                    format!("{}.{}", state.name, part.name)
                };
                order.states.insert(
                    (state.layer, part.name.clone()),
                    StatePlace {
                        state: StateId(n),
                        kind: state.kind,
                        label: format!("{name} of {layer}"),
                        place: GraphPlace { node, output: false },
                    },
                );
            }
        }
        order
    }

    /// Returns the size of the part between the values that the dump has and a place.
    pub(crate) fn span(&self, place: GraphPlace) -> NodeSpan {
        let last = self.spans.last().copied().unwrap_or(NodeSpan { nodes: 1, terms: 1 });
        self.spans.get(place.node).copied().unwrap_or(last)
    }

    /// Returns the part of the order that an engine exposes; `partial` limits it if not everything is
    /// exposed.
    pub(crate) fn exposed(&self, features: SessionFeatures, partial: Option<&ShownParts>) -> Self {
        let taps = self.taps.iter().filter(|(name, _)| {
            features.taps && partial.is_none_or(|seen| seen.taps.contains(*name))
        });
        let states = self.states.iter().filter(|((_, name), _)| {
            features.states && partial.is_none_or(|seen| seen.parts.contains(name))
        });
        Self {
            taps: taps.map(|(name, place)| (name.clone(), *place)).collect(),
            states: states.map(|(key, place)| (key.clone(), place.clone())).collect(),
            shows_states: features.states,
            spans: self.spans.clone(),
        }
    }
}

/// Upper limit of counted spans.
pub(crate) const FAR: usize = 32;

fn spans(graph: &Graph, recorded: impl Fn(&str) -> bool) -> Vec<NodeSpan> {
    let mut makers: BTreeMap<usize, usize> = BTreeMap::new();
    let mut cones: Vec<BTreeSet<usize>> = Vec::new();
    for (n, node) in graph.nodes.iter().enumerate() {
        let mut cone = BTreeSet::from([n]);
        for maker in node.inputs.iter().filter_map(|input| makers.get(&input.0)) {
            if cone.len() < FAR {
                cone.extend(&cones[*maker]);
            }
        }
        cones.push(cone);
        for output in &node.outputs {
            let tap = graph.values.get(output.0).and_then(|value| value.tap.as_deref());
            if !tap.is_some_and(&recorded) {
                makers.insert(output.0, n);
            }
        }
    }
    let terms: Vec<usize> = graph.nodes.iter().map(|node| terms(graph, node)).collect();
    cones
        .iter()
        .map(|cone: &BTreeSet<usize>| NodeSpan {
            nodes: cone.len().min(FAR),
            terms: cone.iter().map(|node| terms[*node]).max().unwrap_or(1),
        })
        .collect()
}

/// Returns the number of terms of the longest sum of a node: the last axis of its matrices.
///
/// Transposed matrices sum over the other one, which is of a similar size. Embeddings are read and not
/// multiplied, and neither are weights in the shape of the input, as those of norms.
fn terms(graph: &Graph, node: &Node) -> usize {
    let Some(input) = node.inputs.first().and_then(|input| graph.values.get(input.0)) else {
        return 1;
    };
    if input.shape.iter().product::<usize>() == 1 {
        return 1;
    }
    let weights = node.weights.values().filter_map(|weight| graph.weights.get(weight.0));
    let matrices = weights.filter(|weight| weight.shape.len() > 1 && weight.shape != input.shape);
    matrices.filter_map(|weight| weight.shape.last().copied()).max().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use registry::config::Config;
    use registry::library::Library;
    use registry::ops::OpSet;
    use registry::resolve::resolve;

    use super::*;

    #[test]
    fn sums_are_as_long_as_a_side_of_the_matrix() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
        let library = Library::builtin();
        let ops = OpSet::builtin();
        let mut matrices = 0;
        let mut vectors = 0;
        for folder in fs_err::read_dir(fixtures).unwrap() {
            let path = folder.unwrap().path().join("config.json");
            let Ok(config) = Config::read(&path) else { continue };
            let Some(name) = library.find(&config).into_iter().next() else { continue };
            let spec = library.load(name, &[]).unwrap();
            let Ok((model, _)) = resolve(&spec, &config, &ops) else { continue };
            let graph = &model.graph;
            for (tap, place) in &ExecutionOrder::of(graph, |_| true).taps {
                let node = &graph.nodes[place.node];
                let name = format!("{tap}.weight");
                let mut weights = node.weights.values();
                let Some(weight) = weights.find(|id| graph.weights[id.0].name == name) else {
                    continue;
                };
                let Some(input) = node.inputs.first().map(|input| &graph.values[input.0]) else {
                    continue;
                };
                let shape = &graph.weights[weight.0].shape;
                match (shape.as_slice(), node.weights.len()) {
                    // Ids of tokens have one number, and weights of norms the shape of their input.
                    ([a, b], _) if input.shape.iter().product::<usize>() > 1 => {
                        let sides = if *shape == input.shape { [1, 1] } else { [*a, *b] };
                        assert!(sides.contains(&terms(graph, node)), "{name} {tap}");
                        matrices += 1;
                    }
                    ([_], 1) => {
                        assert_eq!(terms(graph, node), 1, "{name} {tap}");
                        vectors += 1;
                    }
                    _ => {}
                }
            }
        }
        assert!(matrices > 300 && vectors > 100, "{matrices} {vectors}");
    }
}
