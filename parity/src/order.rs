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

use engine::Shows;
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
    /// Nodes that read a recurrent state, or what does, with no tap of the dump between.
    pub(crate) behind_recurrence: BTreeSet<usize>,
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
    /// Reads the order off a graph. `recorded` says whether the dump has a tap.
    pub fn of(graph: &Graph, recorded: impl Fn(&str) -> bool) -> Self {
        let mut order = Self::default();
        let mut behind = vec![false; graph.values.len()];
        let mut owners: BTreeMap<StateId, usize> = BTreeMap::new();
        for (node, n) in graph.nodes.iter().enumerate() {
            if let Some(state) = n.state {
                owners.entry(state).or_insert(node);
            }
            let recurrent = n
                .state
                .and_then(|id| graph.states.get(id.0))
                .is_some_and(|state| state.kind == StateKind::Recurrent);
            if recurrent || n.inputs.iter().any(|input| behind.get(input.0) == Some(&true)) {
                order.behind_recurrence.insert(node);
                for output in &n.outputs {
                    let Some(value) = graph.values.get(output.0) else { continue };
                    behind[output.0] = !value.tap.as_deref().is_some_and(&recorded);
                }
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

    /// The part of it that an engine shows.
    pub(crate) fn seen(&self, shows: Shows) -> Self {
        Self {
            taps: if shows.taps { self.taps.clone() } else { BTreeMap::new() },
            states: if shows.states { self.states.clone() } else { BTreeMap::new() },
            behind_recurrence: self.behind_recurrence.clone(),
        }
    }
}
