//! Compares two graphs op by op, as exact arithmetic sees them.
//!
//! Values get a class each: two values are of one class if the same ops with the same settings made
//! them of the same weights. Rounding does not count, nor does the order of independent ops.

use std::collections::{BTreeMap, BTreeSet};

use crate::diag::Span;
use crate::graph::{Graph, Node, ValueId};
use crate::ops::OpSet;
use crate::rope::RopeTable;
use crate::scalar::Scalar;

/// A graph, and a name for each of its weights that both sides share.
pub(crate) struct LabeledGraph<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) ropes: &'a [RopeTable],
    pub(crate) labels: Vec<String>,
}

/// An op that one graph has and the other does not.
#[derive(Debug, Clone)]
pub(crate) struct OpDifference {
    /// The node of the first graph.
    pub(crate) node: usize,
    /// The call in the first spec.
    pub(crate) at: Span,
    /// The layer, the op, and both values.
    pub(crate) text: String,
}

/// Returns what the first graph computes otherwise than the second, whose spec is `name`.
pub(crate) fn differences(
    ours: &LabeledGraph<'_>,
    theirs: &LabeledGraph<'_>,
    name: &str,
    ops: &OpSet,
) -> Vec<OpDifference> {
    let mut classes = ValueClasses { ops, known: BTreeMap::new() };
    let mut right = classes.inputs(theirs.graph);
    let needed = reachable(theirs.graph);
    for &n in &needed {
        let node = &theirs.graph.nodes[n];
        let key = classes.key(theirs, node, &right);
        classes.assign(node, &key, &mut right);
    }
    let their_classes: BTreeSet<usize> = right.values().copied().collect();
    let mut left = classes.inputs(ours.graph);
    let mut differences = Vec::new();
    for n in reachable(ours.graph) {
        let node = &ours.graph.nodes[n];
        let key = classes.key(ours, node, &left);
        classes.assign(node, &key, &mut left);
        let is_same =
            node.outputs.first().is_none_or(|output| their_classes.contains(&left[&output.0]));
        if is_same {
            continue;
        }
        let pair = GraphPair { ours, theirs, name, ops, left: &left, right: &right };
        let text = if let Some(other) = pair.counterpart(node, &needed) {
            let other = &theirs.graph.nodes[other];
            let text = pair.between(node, other);
            for (output, same) in node.outputs.iter().zip(&other.outputs) {
                left.insert(output.0, right[&same.0]);
            }
            text
        } else {
            let text = format!("`{}` has no {} here", name, shown(node, ops));
            // What follows is compared as if it were not there.
            if let (Some(output), Some(input)) = (node.outputs.first(), node.inputs.first()) {
                left.insert(output.0, left[&input.0]);
            }
            text
        };
        let text = format!("{}: {text}", place(node));
        differences.push(OpDifference { node: n, at: node.at.clone(), text });
    }
    if differences.is_empty()
        && output_class(ours.graph, &left) != output_class(theirs.graph, &right)
    {
        // Ours is a part of theirs.
        let seen: BTreeSet<usize> = left.values().copied().collect();
        let mut nodes = needed.iter().map(|&n: &usize| &theirs.graph.nodes[n]);
        let missing = nodes.find(|node: &&Node| {
            node.outputs.first().is_some_and(|output| !seen.contains(&right[&output.0]))
        });
        if let (Some(node), Some(last)) = (missing, ours.graph.nodes.last()) {
            let text = format!("{}: {} of `{name}` is missing", place(node), shown(node, ops));
            differences.push(OpDifference {
                node: ours.graph.nodes.len() - 1,
                at: last.at.clone(),
                text,
            });
        }
    }
    differences
}

/// Returns the class of the value that a graph gives.
fn output_class(graph: &Graph, classes: &BTreeMap<usize, usize>) -> Option<usize> {
    graph.output.and_then(|output| classes.get(&output.0).copied())
}

/// Classes of values, each with the text of what made it.
struct ValueClasses<'a> {
    ops: &'a OpSet,
    known: BTreeMap<String, usize>,
}

impl ValueClasses<'_> {
    fn of(&mut self, key: String) -> usize {
        let next = self.known.len();
        *self.known.entry(key).or_insert(next)
    }

    /// Pairs the tokens, and the other input if there is one.
    fn inputs(&mut self, graph: &Graph) -> BTreeMap<usize, usize> {
        let mut classes = BTreeMap::from([(0, self.of("tokens".into()))]);
        if let Some(fed) = graph.fed {
            classes.insert(fed.value.0, self.of(format!("fed from {}", fed.position)));
        }
        classes
    }

    fn key(
        &self,
        side: &LabeledGraph<'_>,
        node: &Node,
        classes: &BTreeMap<usize, usize>,
    ) -> String {
        let inputs: Vec<Option<&usize>> = node.inputs.iter().map(|id| classes.get(&id.0)).collect();
        format!(
            "{}({}) of {inputs:?} with {:?}, state {}, rope {}",
            node.op,
            settings(node, self.ops),
            weights(side, node),
            state(side, node),
            rope(side, node),
        )
    }

    fn assign(&mut self, node: &Node, key: &str, classes: &mut BTreeMap<usize, usize>) {
        let unchanged = is_identity(node, self.ops).then(|| node.inputs.first()).flatten();
        let unchanged = unchanged.and_then(|input| classes.get(&input.0).copied());
        for (n, output) in node.outputs.iter().enumerate() {
            let class = unchanged.unwrap_or_else(|| self.of(format!("{n} of {key}")));
            classes.insert(output.0, class);
        }
    }
}

/// Both graphs with the classes of their values so far.
struct GraphPair<'a> {
    ours: &'a LabeledGraph<'a>,
    theirs: &'a LabeledGraph<'a>,
    name: &'a str,
    ops: &'a OpSet,
    left: &'a BTreeMap<usize, usize>,
    right: &'a BTreeMap<usize, usize>,
}

impl GraphPair<'_> {
    /// Finds the place of the other graph's node that corresponds to a node.
    fn counterpart(&self, node: &Node, candidates: &[usize]) -> Option<usize> {
        let nodes = &self.theirs.graph.nodes;
        let alike = candidates.iter().copied().filter(|&n| {
            let other = &nodes[n];
            other.op == node.op
                && other.layer == node.layer
                && other.outputs.len() == node.outputs.len()
        });
        let ours = weights(self.ours, node);
        // The first of equals.
        let best = alike.rev().max_by_key(|&n| self.likeness(node, &ours, &nodes[n]))?;
        (self.likeness(node, &ours, &nodes[best]) > 0).then_some(best)
    }

    /// Counts what a node, whose weights are `ours`, has in common with a node of the other graph.
    fn likeness(&self, node: &Node, ours: &BTreeMap<&str, &str>, other: &Node) -> usize {
        let inputs = node.inputs.iter().zip(&other.inputs);
        let same = inputs.filter(|(a, b)| self.same(**a, **b)).count();
        let weights = !ours.is_empty() && *ours == weights(self.theirs, other);
        2 * usize::from(weights) + same
    }

    fn same(&self, a: ValueId, b: ValueId) -> bool {
        self.left.get(&a.0).is_some_and(|class| self.right.get(&b.0) == Some(class))
    }

    /// Returns the first difference of two nodes of one op.
    fn between(&self, node: &Node, other: &Node) -> String {
        let op = &node.op;
        let name = self.name;
        let keys: BTreeSet<&String> = node.attrs.keys().chain(other.attrs.keys()).collect();
        let differing = keys.iter().find(|key: &&&String| {
            !is_neutral(node, key, self.ops)
                && node.attrs.get(**key).map(plain) != other.attrs.get(**key).map(plain)
        });
        if let Some(key) = differing {
            let a = attribute_text(node, key);
            let b = attribute_text(other, key);
            return format!("`{key}` of `{op}` is {a}; in `{name}` it is {b}");
        }
        let a = weights(self.ours, node);
        let b = weights(self.theirs, other);
        if a != b {
            let mut roles = a.keys().chain(b.keys());
            let role = roles.find(|role: &&&str| a.get(**role) != b.get(**role));
            let role = role.copied().unwrap_or_default();
            let ours = weight_text(&a, role);
            let theirs = weight_text(&b, role);
            return format!("the {role} of `{op}` is {ours}; in `{name}` it is {theirs}");
        }
        let a = state(self.ours, node);
        let b = state(self.theirs, other);
        if a != b {
            return format!("the state of `{op}` is {a}; in `{name}` it is {b}");
        }
        let a = rope(self.ours, node);
        let b = rope(self.theirs, other);
        if a != b {
            return format!("`{op}` turns by {a}; in `{name}` by {b}");
        }
        let inputs = node.inputs.iter().zip(&other.inputs);
        let Some((a, b)) = inputs.into_iter().find(|(a, b)| !self.same(**a, **b)) else {
            return format!("`{op}` is fed other values than in `{name}`");
        };
        let seen: BTreeSet<usize> = self.left.values().copied().collect();
        match self.theirs.graph.nodes.iter().find(|node: &&Node| node.outputs.contains(b)) {
            Some(maker) if !self.right.get(&b.0).is_some_and(|class| seen.contains(class)) => {
                format!("{} of `{name}` is missing before `{op}`", shown(maker, self.ops))
            }
            _ => {
                let a = &self.ours.graph.values[a.0].name;
                let b = &self.theirs.graph.values[b.0].name;
                format!("`{op}` is fed `{a}`; in `{name}` it is fed `{b}`")
            }
        }
    }
}

/// Lists the nodes that the output depends on, in order.
pub(crate) fn reachable(graph: &Graph) -> Vec<usize> {
    let mut needed: BTreeSet<usize> = graph.output.iter().map(|id| id.0).collect();
    let mut nodes = Vec::new();
    for (n, node) in graph.nodes.iter().enumerate().rev() {
        if node.outputs.iter().any(|id| needed.contains(&id.0)) {
            needed.extend(node.inputs.iter().map(|id| id.0));
            nodes.push(n);
        }
    }
    nodes.reverse();
    nodes
}

fn place(node: &Node) -> String {
    match node.layer {
        Some(layer) => format!("layer {layer}"),
        None => "outside of the layers".to_owned(),
    }
}

/// Formats an op and its settings: `scale(s=0.5)`.
fn shown(node: &Node, ops: &OpSet) -> String {
    match settings(node, ops) {
        settings if settings.is_empty() => format!("`{}`", node.op),
        settings => format!("`{}({settings})`", node.op),
    }
}

/// Returns the attributes that count, by name.
fn settings(node: &Node, ops: &OpSet) -> String {
    let counted = node.attrs.iter().filter(|(key, _)| !is_neutral(node, key, ops));
    let texts = counted.map(|(key, value)| format!("{key}={}", plain(value)));
    texts.collect::<Vec<_>>().join(", ")
}

/// Formats a number as text, whichever kind of number it is.
fn plain(value: &Scalar) -> String {
    value.as_f64().map_or_else(|| value.to_string(), |x| x.to_string())
}

/// Formats an attribute as findings show it, with a word for one that is not given.
fn attribute_text(node: &Node, key: &str) -> String {
    node.attrs.get(key).map_or_else(|| "not given".to_owned(), ToString::to_string)
}

/// Formats the name of the weight that has a role, with a word for none.
fn weight_text(weights: &BTreeMap<&str, &str>, role: &str) -> String {
    weights.get(role).map_or_else(|| "none".to_owned(), |name| format!("`{name}`"))
}

fn is_neutral(node: &Node, key: &str, ops: &OpSet) -> bool {
    let params = ops.get(node.op.as_str()).map(|rule| &rule.signature().params);
    params.is_some_and(|params| params.iter().any(|param| param.name == key && param.neutral))
}

fn is_identity(node: &Node, ops: &OpSet) -> bool {
    let values = ops.get(node.op.as_str()).and_then(|rule| rule.signature().identity);
    values.is_some_and(|values| {
        values.iter().all(|(key, value): &(&str, f64)| {
            node.attrs.get(*key).and_then(Scalar::as_f64).is_some_and(|attr| attr == *value)
        })
    })
}

fn weights<'s>(side: &'s LabeledGraph<'_>, node: &'s Node) -> BTreeMap<&'s str, &'s str> {
    let weights = node.weights.iter();
    weights.map(|(role, weight)| (role.as_str(), side.labels[weight.0].as_str())).collect()
}

/// Describes a state by its contents, without its dtype.
fn state(side: &LabeledGraph<'_>, node: &Node) -> String {
    let Some(state) = node.state.map(|id| &side.graph.states[id.0]) else { return "none".into() };
    let parts = state.parts.iter().map(|part| format!("{} {:?}", part.name, part.shape));
    let parts: Vec<String> = parts.collect();
    let window = state.window.map_or_else(String::new, |window| format!(", window {window}"));
    format!("{} of layer {}: {}{window}", state.kind.name(), state.layer, parts.join(", "))
}

/// Describes a rotary table by its numbers.
fn rope(side: &LabeledGraph<'_>, node: &Node) -> String {
    let Some(table) = node.rope.map(|id| &side.ropes[id.0]) else { return "nothing".into() };
    let RopeTable { dim, inv_freq, attention_factor, long, dynamic, .. } = table;
    let last = inv_freq.last().copied().unwrap_or_default();
    let long = long.as_ref().map_or_else(String::new, |long| {
        let from = long.original_context;
        let factor = long.attention_factor;
        format!(", beyond {from} factor {factor} (sum {})", sum(&long.inv_freq))
    });
    let dynamic = dynamic.as_ref().map_or_else(String::new, |dynamic| format!(", {dynamic:?}"));
    format!(
        "a table of {dim}, factor {attention_factor}, frequencies to {last} (sum {}){long}{dynamic}",
        sum(inv_freq)
    )
}

/// Returns a number that no two lists of frequencies are likely to share.
fn sum(numbers: &[f32]) -> f64 {
    numbers.iter().enumerate().map(|(n, x): (usize, &f32)| f64::from(*x) * (n + 1) as f64).sum()
}
