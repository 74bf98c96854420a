//! The order in which a graph makes what is compared, so that "first" means something.
//!
//! Findings are ordered by phase (prefill, then decode), then by step, then by
//! the node of the graph that makes the value. A node's states come right
//! before its output, because the output is computed from them.
//!
//! A state belongs to the phase that reads it. Keys and values are written and
//! read within one forward, so after a prefill they count as prefill: a wrong
//! rotation shows in `k` first and then in everything behind it. What a
//! convolution keeps for later (its last inputs) is never read by the forward
//! that wrote it; that snapshot counts as **decode, step 0**, "what the prefix
//! left for the first step", also when it was taken after a full prefill.
//! So a conv state that is kept too narrow is a decode finding, and prefill
//! passes, which is what the user sees. The same goes for what a recurrence
//! carries: what it has become after the last token is read by the next step.

use std::collections::{BTreeMap, BTreeSet};

use engine::{Partial, Shows};
use registry::graph::{Graph, StateId, StateKind};

use crate::dump::Phase;

/// When something was made, in the order of execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// The phase.
    pub phase: Phase,
    /// 0 is the prefix (or the whole prefill), j the j-th single token.
    pub step: usize,
    /// The place in the graph.
    pub place: Place,
}

/// A place in the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Index of the node.
    pub node: usize,
    /// Its states (false) come before its output (true).
    pub output: bool,
}

/// Behind everything else: the log-probabilities.
pub const LAST: Place = Place { node: usize::MAX, output: true };

/// Places of all taps and states of a graph.
#[derive(Debug, Clone, Default)]
pub struct Order {
    /// Taps by name.
    pub taps: BTreeMap<String, Place>,
    /// State parts by layer and part.
    pub states: BTreeMap<(usize, String), StatePlace>,
    /// True if the engine shows its states.
    pub(crate) shows_states: bool,
    /// By node, how many nodes lie between the values that the dump has and its output; [`FAR`] at most.
    spans: Vec<usize>,
}

/// A part of a state, as reports name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatePlace {
    /// Which state of the graph.
    pub state: StateId,
    /// Its kind.
    pub kind: StateKind,
    /// `conv of model.layers.0`, `kv.k of model.layers.2`.
    pub label: String,
    /// The place of the node that owns it.
    pub place: Place,
}

impl Order {
    /// Reads the order off a graph. `recorded` tells whether the dump has a tap.
    pub fn of(graph: &Graph, recorded: impl Fn(&str) -> bool) -> Self {
        let mut order = Self { spans: spans(graph, recorded), ..Self::default() };
        let mut owners: BTreeMap<StateId, usize> = BTreeMap::new();
        for (node, n) in graph.nodes.iter().enumerate() {
            if let Some(state) = n.state {
                owners.entry(state).or_insert(node);
            }
            for output in &n.outputs {
                if let Some(tap) = graph.values.get(output.0).and_then(|v| v.tap.as_ref()) {
                    order.taps.entry(tap.clone()).or_insert(Place { node, output: true });
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
                        place: Place { node, output: false },
                    },
                );
            }
        }
        order
    }

    /// How many nodes lie between the values that the dump has and a place, its own included.
    pub(crate) fn span(&self, place: Place) -> usize {
        let last = self.spans.last().copied().unwrap_or(1);
        self.spans.get(place.node).copied().unwrap_or(last)
    }

    /// The part of it that an engine shows; `partial` is what it shows where not all.
    pub(crate) fn seen(&self, shows: Shows, partial: Option<&Partial>) -> Self {
        let tap = |tap: &String| shows.taps && partial.is_none_or(|seen| seen.taps.contains(tap));
        let part =
            |part: &String| shows.states && partial.is_none_or(|seen| seen.parts.contains(part));
        let taps = self.taps.iter().filter(|(name, _)| tap(name));
        let states = self.states.iter().filter(|((_, name), _)| part(name));
        Self {
            taps: taps.map(|(name, place)| (name.clone(), *place)).collect(),
            states: states.map(|(key, place)| (key.clone(), place.clone())).collect(),
            shows_states: shows.states,
            spans: self.spans.clone(),
        }
    }
}

/// Spans are counted up to here.
pub(crate) const FAR: usize = 32;

fn spans(graph: &Graph, recorded: impl Fn(&str) -> bool) -> Vec<usize> {
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
    cones.iter().map(|cone| cone.len().min(FAR)).collect()
}
