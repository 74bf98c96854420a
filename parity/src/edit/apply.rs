//! Applies a change to a model.

use std::collections::BTreeMap;

use registry::graph::{Graph, Node, ValueId, WeightId};
use registry::model::Model;
use registry::ops::{Op, SCALE};
use registry::scalar::Scalar;
use registry::weight_map::{Pattern, WeightRule, WeightStep};

use super::{Change, inserts, moves};

impl Change {
    /// Changes the model. Missing nodes, values and tables are ignored.
    pub fn apply(&self, model: &mut Model) {
        if let Self::Model(other) = self {
            Model::clone_from(model, other);
            return;
        }
        let Model { graph, ropes, rules, .. } = model;
        match self {
            Self::Argument { key, values } => {
                for (n, value) in values {
                    argument(graph, *n, key, value);
                }
            }
            Self::Arguments(values) => {
                for (n, key, value) in values {
                    argument(graph, *n, key, value);
                }
            }
            Self::Move(all) => moves::apply(graph, all),
            Self::Behind { value, op, attrs, tapped } => {
                moves::behind(graph, *value, (op, attrs), *tapped);
            }
            Self::Window(values) => windows(graph, values),
            Self::Op { nodes, op } => each(graph, nodes, |node| node.op = Op::from(op.as_str())),
            Self::Inputs(nodes) => each(graph, nodes, |node| {
                if node.inputs.len() > 1 {
                    node.inputs.swap(0, 1);
                }
            }),
            Self::Outputs(nodes, [a, b]) => outputs(graph, nodes, *a, *b),
            Self::Weights(pairs) => weights(graph, pairs),
            Self::Projections(pairs) => {
                weights(graph, pairs);
                for (a, b) in pairs {
                    taps(graph, *a, *b);
                }
            }
            Self::Weight { node, role, weight } => {
                each(graph, &[*node], |node| {
                    node.weights.insert(role.clone(), *weight);
                });
            }
            Self::WeightSteps(weights) => weight_steps(graph, rules, weights),
            Self::RuleSteps(all) => rule_steps(rules, all),
            Self::Roles(roles) => {
                for (n, a, b) in roles {
                    each(graph, &[*n], |node| swap_roles(node, a, b));
                }
            }
            Self::Reroute(routes) => {
                for (readers, from, to) in routes {
                    each(graph, readers, |node| reroute(node, *from, *to));
                }
            }
            Self::Order(pairs) => {
                for (first, second) in pairs {
                    exchange(graph, *first, *second);
                }
            }
            Self::Weightless { nodes, role } => each(graph, nodes, |node| {
                node.weights.remove(role);
            }),
            // Tokens are no part of a model, and a whole model was put in its place above.
            Self::Model(_) | Self::Tokens(_) => {}
            Self::Table { rope, table } => {
                if let Some(old) = ropes.get_mut(*rope) {
                    old.clone_from(table);
                }
            }
            Self::Rope(nodes, rope) => each(graph, nodes, |node| node.rope = Some(*rope)),
            Self::StateDtype(states, rule) => {
                for state in states {
                    if let Some(state) = graph.states.get_mut(state.0) {
                        state.dtype = *rule;
                    }
                }
            }
            Self::ValueDtype(values, rule) => {
                for value in values {
                    if let Some(value) = graph.values.get_mut(value.0) {
                        value.dtype = *rule;
                    }
                }
            }
            Self::PlainDecay(nodes) => {
                for rate in inserts::plain_decay(graph, nodes) {
                    own_steps(graph, rules, rate, &[WeightStep::NegExp]);
                }
            }
            Self::Tiles(nodes) => inserts::tile(graph, nodes),
            Self::Narrow { nodes, dtype, inputs } => inserts::round(graph, nodes, *dtype, *inputs),
            Self::Scale { values, by, tapped } => {
                for value in values {
                    scale(graph, *value, *by, *tapped);
                }
            }
        }
    }
}

/// Changes each of some nodes.
fn each(graph: &mut Graph, nodes: &[usize], mut change: impl FnMut(&mut Node)) {
    for n in nodes {
        if let Some(node) = graph.nodes.get_mut(*n) {
            change(node);
        }
    }
}

/// Sets the windows of attentions, and of the states that they keep.
fn windows(graph: &mut Graph, values: &[(usize, Option<usize>)]) {
    for (n, window) in values {
        let Some(node) = graph.nodes.get_mut(*n) else { continue };
        let value = window.and_then(|w| i64::try_from(w).ok());
        node.attrs.insert("window".to_owned(), value.map_or(Scalar::Null, Scalar::Int));
        if let Some(state) = node.state {
            graph.states[state.0].window = *window;
        }
    }
}

/// Swaps the weights of two roles of a node that has both.
fn swap_roles(node: &mut Node, a: &str, b: &str) {
    if let (Some(first), Some(second)) =
        (node.weights.get(a).copied(), node.weights.get(b).copied())
    {
        node.weights.insert(a.to_owned(), second);
        node.weights.insert(b.to_owned(), first);
    }
}

/// Has a node read another value.
fn reroute(node: &mut Node, from: ValueId, to: ValueId) {
    node.inputs.iter_mut().filter(|input| **input == from).for_each(|input| *input = to);
}

/// Swaps all weights of pairs of nodes.
fn weights(graph: &mut Graph, pairs: &[(usize, usize)]) {
    for (a, b) in pairs {
        let (Some(first), Some(second)) = (graph.nodes.get(*a), graph.nodes.get(*b)) else {
            continue;
        };
        let first = first.weights.clone();
        let second = second.weights.clone();
        graph.nodes[*a].weights = second;
        graph.nodes[*b].weights = first;
    }
}

/// Returns the tensor and the steps of a rule that makes this weight of one tensor, and nothing else of it.
fn single(rule: &WeightRule, weight: &str) -> Option<(String, Vec<WeightStep>)> {
    if let Some(name) = rule.on_disk(weight) {
        return Some((name, Vec::new()));
    }
    let disk = rule.disk.spread(&rule.weight.fit(weight)?)?;
    let [disk] = disk.as_slice() else { return None };
    let names = rule.weight.spread(&rule.disk.fit(disk)?)?;
    (names == [weight]).then(|| (disk.clone(), rule.steps.clone()))
}

/// Adds steps to the rules that make these weights.
fn weight_steps(
    graph: &Graph,
    rules: &mut Vec<WeightRule>,
    all: &[(Vec<WeightId>, Vec<WeightStep>)],
) {
    shared_steps(graph, rules, all);
    for (weights, steps) in all {
        for weight in weights {
            own_steps(graph, rules, *weight, steps);
        }
    }
}

/// Inserts steps into rules before a step of each.
fn rule_steps(rules: &mut [WeightRule], all: &[(usize, usize, Vec<WeightStep>)]) {
    for (rule, before, steps) in all {
        if let Some(rule) = rules.get_mut(*rule).filter(|rule| *before <= rule.steps.len()) {
            rule.steps.splice(*before..*before, steps.iter().cloned());
        }
    }
}

/// Gives rules more steps that make several weights of one tensor, if all of these have the same steps.
fn shared_steps(graph: &Graph, rules: &mut [WeightRule], all: &[(Vec<WeightId>, Vec<WeightStep>)]) {
    let mut steps_by_name: BTreeMap<&String, &Vec<WeightStep>> = BTreeMap::new();
    for (ids, steps) in all {
        let weights = ids.iter().filter_map(|id| graph.weights.get(id.0));
        steps_by_name.extend(weights.map(|weight| (&weight.name, steps)));
    }
    for rule in rules {
        let names = graph.weights.iter().map(|weight| &weight.name);
        let names: Vec<&String> = names.filter(|name| rule.weight.fit(name).is_some()).collect();
        let Some(steps) = names.first().and_then(|name| steps_by_name.get(name)) else { continue };
        if names.iter().all(|name: &&String| steps_by_name.get(*name) == Some(steps))
            && names.iter().any(|name| single(rule, name).is_none())
        {
            rule.steps.extend(steps.iter().cloned());
        }
    }
}

/// Puts a rule for one weight before the others: those that make it alone, with more steps.
fn own_steps(graph: &Graph, rules: &mut Vec<WeightRule>, of: WeightId, steps: &[WeightStep]) {
    let Some(weight) = graph.weights.get(of.0) else { return };
    let Ok(exact) = Pattern::parse(&weight.name) else { return };
    let mut sources: Vec<_> = rules.iter().filter_map(|rule| single(rule, &weight.name)).collect();
    sources.push((weight.name.clone(), Vec::new()));
    let exact_rules = sources.into_iter().filter_map(|(disk, first)| {
        Some(WeightRule {
            disk: Pattern::parse(&disk).ok()?,
            weight: exact.clone(),
            steps: first.into_iter().chain(steps.iter().cloned()).collect(),
            at: weight.at.clone(),
        })
    });
    let exact_rules: Vec<_> = exact_rules.collect();
    rules.splice(0..0, exact_rules);
}

/// Swaps the names under which the results of two nodes are recorded.
fn taps(graph: &mut Graph, a: usize, b: usize) {
    if let (Some(a), Some(b)) = (first_output(graph, a), first_output(graph, b)) {
        let first = graph.values[a.0].tap.take();
        let second = graph.values[b.0].tap.take();
        (graph.values[a.0].tap, graph.values[b.0].tap) = (second, first);
    }
}

/// Returns the first result of a node.
fn first_output(graph: &Graph, n: usize) -> Option<ValueId> {
    graph.nodes.get(n)?.outputs.first().copied()
}

/// Sets an argument of a node, and its bias if the argument says whether it has one.
fn argument(graph: &mut Graph, n: usize, key: &str, value: &Scalar) {
    let Some(node) = graph.nodes.get(n) else { return };
    // A disabled bias is not read either; an enabled one is found beside the weight.
    let bias = (key == "bias" && *value == Scalar::Bool(true)).then(|| bias_of(graph, node));
    let node = &mut graph.nodes[n];
    node.attrs.insert(key.to_owned(), value.clone());
    if key == "bias" && *value == Scalar::Bool(false) {
        node.weights.remove("bias");
    }
    if let Some(bias) = bias.flatten() {
        node.weights.insert("bias".to_owned(), bias);
    }
}

/// Returns the bias beside a node's weight in the graph.
pub(super) fn bias_of(graph: &Graph, node: &Node) -> Option<WeightId> {
    let weight = &graph.weights.get(node.weights.get("weight")?.0)?.name;
    let name = format!("{}.bias", weight.strip_suffix(".weight")?);
    graph.weights.iter().position(|weight| weight.name == name).map(WeightId)
}

/// Swaps two outputs for their readers; tap names stay in place.
fn outputs(graph: &mut Graph, nodes: &[usize], a: usize, b: usize) {
    for n in nodes {
        let Some(node) = graph.nodes.get_mut(*n) else { continue };
        if a.max(b) < node.outputs.len() {
            node.outputs.swap(a, b);
        }
    }
}

/// Exchanges the nodes that make two values, of which the second reads the result of the first. Tap names and
/// roundings stay with their ops.
fn exchange(graph: &mut Graph, first: ValueId, second: ValueId) {
    let Some(a) = maker_of_first(graph, first) else { return };
    let Some(b) = maker_of_first(graph, second) else { return };
    let Some(&from) = graph.nodes[a].inputs.first() else { return };
    if a >= b || first.0.max(second.0) >= graph.values.len() {
        return;
    }
    graph.nodes[a].inputs[0] = first;
    graph.nodes[a].outputs[0] = second;
    let node = &mut graph.nodes[b];
    node.inputs.iter_mut().filter(|input| **input == first).for_each(|input| *input = from);
    node.outputs[0] = first;
    graph.nodes[a..=b].rotate_left(1);
    graph.values.swap(first.0, second.0);
}

/// Returns the index of the node whose first result is a value.
fn maker_of_first(graph: &Graph, value: ValueId) -> Option<usize> {
    graph.nodes.iter().position(|node| node.outputs.first() == Some(&value))
}

/// Inserts a `scale` after the node that makes a value.
fn scale(graph: &mut Graph, value: ValueId, by: f64, tapped: bool) {
    let attrs =
        [("s".to_owned(), Scalar::Float(by)), ("round".to_owned(), Scalar::Str("none".to_owned()))];
    moves::behind(graph, value, (SCALE, &attrs), tapped);
}
