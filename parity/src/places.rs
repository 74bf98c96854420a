//! Places that a check should name first for a mistake in a node.

use std::collections::BTreeSet;

use registry::graph::{Graph, Node, RopeId, StateId};

use crate::compare::LOGITS;
use crate::gate::Subject;
use crate::order::ExecutionOrder;

/// Taps that a dump has.
#[derive(Debug, Default)]
pub(crate) struct DumpTaps {
    /// Taps of any phase.
    pub(crate) all: BTreeSet<String>,
    /// Taps of single steps.
    pub(crate) steps: BTreeSet<String>,
}

/// Flow of values between recorded taps of a graph.
pub(crate) struct Places<'a> {
    pub(super) graph: &'a Graph,
    recorded: &'a DumpTaps,
    order: ExecutionOrder,
}

impl<'a> Places<'a> {
    pub(crate) fn new(graph: &'a Graph, recorded: &'a DumpTaps) -> Self {
        Self { graph, recorded, order: ExecutionOrder::of(graph, |_| true) }
    }

    /// Names the states of these nodes and of their successors up to the next recorded taps, and these
    /// taps.
    pub(crate) fn of(&self, nodes: impl IntoIterator<Item = usize>) -> BTreeSet<String> {
        self.flow(nodes, &self.recorded.all)
    }

    fn flow(
        &self,
        nodes: impl IntoIterator<Item = usize>,
        recorded: &BTreeSet<String>,
    ) -> BTreeSet<String> {
        let mut right = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut queue: Vec<usize> = nodes.into_iter().collect();
        while let Some(at) = queue.pop() {
            let Some(node) = self.graph.nodes.get(at).filter(|_| seen.insert(at)) else { continue };
            if let Some(state) = node.state {
                right.extend(self.state(state));
                queue.extend(self.nodes(|other| other.state == Some(state)));
            }
            for &output in &node.outputs {
                if self.graph.output == Some(output) {
                    right.extend([Subject::Logprobs.to_string(), LOGITS.to_owned()]);
                }
                match self.graph.values[output.0].tap.as_ref().filter(|tap| recorded.contains(*tap))
                {
                    Some(tap) => {
                        right.insert(tap.clone());
                    }
                    None => queue.extend(self.nodes(|other| other.inputs.contains(&output))),
                }
            }
        }
        right
    }

    /// Names the parts of a state.
    pub(super) fn state(&self, state: StateId) -> BTreeSet<String> {
        let parts = self.order.states.values().filter(|place| place.state == state);
        parts.map(|place| format!("state {}", place.label)).collect()
    }

    /// Names the places of states and of the nodes that read them.
    pub(crate) fn of_states(&self, states: &[StateId]) -> BTreeSet<String> {
        let nodes = self.nodes(|node| node.state.is_some_and(|state| states.contains(&state)));
        // A state is read by steps, which a reference may compute without the module of a tap.
        let mut right = self.flow(nodes.iter().copied(), &self.recorded.steps);
        right.extend(self.of(nodes));
        right
    }

    /// Names the places of nodes that read a rotary table.
    pub(super) fn of_rope(&self, rope: usize) -> BTreeSet<String> {
        self.of(self.nodes(|node| node.rope == Some(RopeId(rope))))
    }

    /// Returns the indices of matching nodes.
    pub(super) fn nodes(&self, matches: impl Fn(&Node) -> bool) -> Vec<usize> {
        let nodes = self.graph.nodes.iter().enumerate();
        nodes.filter(|(_, node)| matches(node)).map(|(n, _)| n).collect()
    }
}
