//! Modules beside which checkpoints keep the scales of a quantized KV cache.

use crate::graph::{Graph, Node, StateKind, ValueId};
use crate::op::Trait;

/// The modules of one attention.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttentionModules {
    /// The attention itself.
    pub module: String,
    /// The one that makes its keys.
    pub keys: String,
    /// The one that makes its values.
    pub values: String,
}

impl AttentionModules {
    /// Returns the names that a scale may have, by the program that wrote it; `part` is 0 for keys.
    pub fn names(&self, part: usize) -> [String; 3] {
        let (end, maker) = if part == 0 { ("k", &self.keys) } else { ("v", &self.values) };
        let module = &self.module;
        // One scale for both is what older checkpoints have.
        [
            format!("{module}.{end}_scale"),
            format!("{maker}.{end}_scale"),
            format!("{module}.kv_scale"),
        ]
    }
}

/// Returns the modules of every state, by its number. None for a state that attention does not keep, or whose
/// keys and values no matrix of its layer makes.
pub fn attention_modules(graph: &Graph) -> Vec<Option<AttentionModules>> {
    let mut modules = vec![None; graph.states.len()];
    for (n, node) in graph.nodes.iter().enumerate() {
        let Some(state) = node.state.filter(|state| state.0 < modules.len()) else { continue };
        if !node.op.is(Trait::KeepsState) {
            continue;
        }
        let cache = match graph.states[state.0].kind {
            StateKind::Attention => input_module(graph, n, 1).zip(input_module(graph, n, 2)),
            // Keys and values are expanded from what is kept by a matrix of its own.
            _ if node.op.is(Trait::ExpandsState) => matrix(graph, node).map(|name| (name, name)),
            _ => None,
        };
        let Some((keys, values)) = cache else { continue };
        let Some((module, _)) = keys.rsplit_once('.') else { continue };
        let module = module.to_owned();
        let keys = keys.to_owned();
        let values = values.to_owned();
        modules[state.0] = Some(AttentionModules { module, keys, values });
    }
    modules
}

/// Returns the module whose matrix an input of a node follows from, in the same layer.
fn input_module(graph: &Graph, at: usize, input: usize) -> Option<&str> {
    let layer = graph.nodes[at].layer;
    let mut open: Vec<ValueId> = vec![*graph.nodes[at].inputs.get(input)?];
    // Straight-line programs: a value is made by an earlier node.
    for node in graph.nodes[..at].iter().rev().filter(|node| node.layer == layer) {
        if !node.outputs.iter().any(|output| open.contains(output)) {
            continue;
        }
        if node.op.is(Trait::Projects) || node.op.is(Trait::ProjectsHeads) {
            return matrix(graph, node);
        }
        open.extend(&node.inputs);
    }
    None
}

/// Returns the module of a node's matrix.
fn matrix<'g>(graph: &'g Graph, node: &Node) -> Option<&'g str> {
    let name = &graph.weights.get(node.weights.get("weight")?.0)?.name;
    Some(name.strip_suffix(".weight").unwrap_or(name))
}
