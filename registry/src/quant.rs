//! Weights that a quantized checkpoint of a model keeps unquantized, and shared scales.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{Graph, ValueId, WeightId};
use crate::op::Trait;
use crate::weight_map::{Holes, Pattern};

/// The `quant:` section of a spec, resolved. Patterns are of modules: a tensor's name without
/// its `.weight`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QuantRules {
    /// The modules that are not quantized, each pattern with a reason in words.
    pub keep: Vec<(String, Pattern)>,
    /// Modules that engines fuse, so that they have one scale where a tensor has one.
    pub together: Vec<(String, Pattern)>,
}

impl QuantRules {
    /// Returns the reason that a weight is not quantized, if the spec gives one.
    pub fn keep_reason(&self, weight: &str) -> Option<&str> {
        let module = module(weight);
        self.keep
            .iter()
            .find(|(_, pattern): &&(String, Pattern)| pattern.fit(module).is_some())
            .map(|(why, _)| why.as_str())
    }

    /// Returns the weights that share a scale with this one, itself included, in the order of the pattern.
    /// Only the weight itself if no pattern fits. Not all of them need exist.
    pub fn scale_group(&self, weight: &str) -> Vec<String> {
        let module = module(weight);
        let end = &weight[module.len()..];
        let all = self.together.iter().find_map(|(_, pattern)| {
            let mut holes: Holes = pattern.fit(module)?;
            holes.retain(|name, _| !name.contains('|'));
            pattern.spread(&holes)
        });
        match all {
            Some(modules) => modules.into_iter().map(|module| module + end).collect(),
            None => vec![weight.to_owned()],
        }
    }
}

/// The reason that a matrix is not quantized unless it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnquantizedReason {
    /// Its product is the logits.
    OutputMatrix,
    /// Its product decides which experts run.
    RouterMatrix,
}

impl UnquantizedReason {
    /// Returns the reason, as `convert --plan` shows it.
    pub fn reason(self) -> &'static str {
        match self {
            Self::OutputMatrix => {
                "its product is the logits; the option `quantize-output` quantizes it too"
            }
            Self::RouterMatrix => "its product decides which experts run",
        }
    }
}

/// Router and output matrices. They follow from the graph, not from their names.
pub fn unquantized_matrices(graph: &Graph) -> BTreeMap<WeightId, UnquantizedReason> {
    let mut reasons = BTreeMap::new();
    for node in graph.nodes.iter().filter(|node| node.op.is(Trait::Chooses)) {
        let scores = node.inputs.first().into_iter();
        let last = scores.flat_map(|&scores| last_multiplied(graph, scores));
        reasons.extend(last.map(|id| (id, UnquantizedReason::RouterMatrix)));
    }
    let last = graph.output.map(|logits| last_multiplied(graph, logits));
    reasons.extend(last.into_iter().flatten().map(|id| (id, UnquantizedReason::OutputMatrix)));
    reasons
}

/// Returns the matrices that a value was last multiplied by.
fn last_multiplied(graph: &Graph, value: ValueId) -> BTreeSet<WeightId> {
    let mut makers = BTreeMap::new();
    for (n, node) in graph.nodes.iter().enumerate() {
        makers.extend(node.outputs.iter().map(|&output| (output, n)));
    }
    let mut ids = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut next = vec![value];
    while let Some(value) = next.pop() {
        let Some(node) =
            makers.get(&value).map(|&n| &graph.nodes[n]).filter(|_| seen.insert(value))
        else {
            continue;
        };
        if node.op.is(Trait::Projects) {
            let matrices = node.weights.iter().filter(|(role, _)| !role.contains("bias"));
            ids.extend(matrices.map(|(_, &id)| id));
        } else if node.state.is_none() && !node.op.is(Trait::Experts) {
            // An op that mixes rows or experts is not the last step of logits or scores.
            next.extend(&node.inputs);
        }
    }
    ids
}

/// Returns the module of a tensor: its name without a last word `weight`.
fn module(weight: &str) -> &str {
    weight.strip_suffix(".weight").unwrap_or(weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(why: &str, pattern: &str) -> (String, Pattern) {
        (why.to_owned(), Pattern::parse(pattern).unwrap())
    }

    #[test]
    fn modules_are_kept_and_grouped_by_pattern() {
        let quant = QuantRules {
            keep: vec![entry("routers", "*.mlp.gate"), entry("the head", "head")],
            together: vec![entry("qkv", "*.{q|k|v}_proj")],
        };
        assert_eq!(quant.keep_reason("a.0.mlp.gate.weight"), Some("routers"));
        assert_eq!(quant.keep_reason("a.0.mlp.gate_up.weight"), None);
        assert_eq!(quant.keep_reason("head.weight"), Some("the head"));
        assert_eq!(
            quant.scale_group("a.1.k_proj.weight"),
            ["a.1.q_proj.weight", "a.1.k_proj.weight", "a.1.v_proj.weight"]
        );
        assert_eq!(quant.scale_group("a.1.o_proj.weight"), ["a.1.o_proj.weight"]);
    }
}
