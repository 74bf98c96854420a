//! Edits that replace or omit ops, or reorder inputs, outputs and weights.

use std::collections::BTreeMap;

use registry::graph::{Graph, Node, ValueId, WeightId};
use registry::model::Model;
use registry::ops::{Op, OpSet, ParamKind, Trait};
use registry::scalar::Scalar;

use super::scope::{EditScope, Suspects, kinds, place, scopes};
use super::{Candidate, Change, Edit};

/// Pairs of nodes.
type NodePairs = Vec<(usize, usize)>;

/// Maximum number of readers of one value for which each is tried separately.
const READERS: usize = 8;

/// Returns every structural edit.
pub(super) fn candidates(model: &Model, ops: &OpSet, suspects: &Suspects) -> Vec<Candidate> {
    let graph = &model.graph;
    let mut all = functions(graph, ops, suspects);
    all.extend(inputs(graph, suspects));
    all.extend(outputs(graph, suspects));
    all.extend(omissions(graph, suspects));
    all.extend(weightless(graph, ops, suspects));
    all.extend(orders(graph, suspects));
    all.extend(bypasses(graph, suspects));
    all.extend(unread(graph, suspects));
    all.extend(siblings(graph, suspects));
    all.extend(weights(graph, suspects));
    all.into_iter().map(Candidate::Edit).collect()
}

fn edit(words: String, scope: EditScope, change: impl FnOnce(Vec<usize>) -> Change) -> Edit {
    Edit { words, place: scope.place, change: change(scope.nodes) }
}

fn is_function(op: &Op) -> bool {
    op.is(Trait::Function) || op.is(Trait::RowFunction)
}

/// Maximum number of nodes between a router's scores and its choice.
const NEAR: usize = 6;

/// True if a router chooses by a node's result.
fn is_chosen_by(graph: &Graph, n: usize) -> bool {
    let mut values: Vec<ValueId> = graph.nodes[n].outputs.clone();
    for node in graph.nodes.iter().skip(n + 1).take(NEAR) {
        if node.inputs.iter().any(|input| values.contains(input)) {
            if node.op.is(Trait::Chooses) {
                return true;
            }
            values.extend(&node.outputs);
        }
    }
    false
}

fn functions(graph: &Graph, ops: &OpSet, suspects: &Suspects) -> Vec<Edit> {
    let names = |wanted: &dyn Fn(&Op) -> bool| {
        let mut names: Vec<&str> = ops.declared().filter(|op| wanted(op)).map(Op::as_str).collect();
        names.sort_unstable();
        names
    };
    let known = names(&|op| op.is(Trait::Function));
    // A router may score by a function of each number or of the whole row.
    let of_rows = names(&|op| op.is(Trait::RowFunction));
    let mut all = Vec::new();
    for (op, nodes) in kinds(graph, |node| is_function(&node.op)) {
        for scope in scopes(graph, &nodes, suspects) {
            let scores = scope.nodes.iter().all(|n| is_chosen_by(graph, *n));
            let more = of_rows.iter().filter(|_| scores);
            for other in known.iter().chain(more).filter(|other| **other != op) {
                let words = format!("`{other}` instead of `{op}`");
                all.push(edit(words, scope.clone(), |nodes| Change::Op {
                    nodes,
                    op: (*other).to_owned(),
                }));
            }
        }
    }
    all
}

fn inputs(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let swaps = |node: &Node| match node.inputs.as_slice() {
        [a, b, ..] => {
            a != b
                && !node.op.is(Trait::Commutes)
                && graph.values[a.0].shape == graph.values[b.0].shape
        }
        _ => false,
    };
    let mut all = Vec::new();
    for (op, nodes) in kinds(graph, swaps) {
        for scope in scopes(graph, &nodes, suspects) {
            all.push(edit(format!("first two inputs of `{op}` swapped"), scope, Change::Inputs));
        }
    }
    all
}

fn outputs(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let shape = |value: &ValueId| &graph.values[value.0].shape;
    let mut all = Vec::new();
    for (op, nodes) in kinds(graph, |node| node.outputs.len() > 1) {
        for scope in scopes(graph, &nodes, suspects) {
            let most = scope.nodes.iter().map(|n| graph.nodes[*n].outputs.len()).min().unwrap_or(0);
            for a in 0..most.min(6) {
                for b in a + 1..most.min(6) {
                    if scope.nodes.iter().all(|n: &usize| {
                        let outputs = &graph.nodes[*n].outputs;
                        shape(&outputs[a]) == shape(&outputs[b])
                    }) {
                        let words = format!("parts {} and {} of `{op}` swapped", a + 1, b + 1);
                        all.push(edit(words, scope.clone(), |nodes| {
                            Change::Outputs(nodes, [a, b])
                        }));
                    }
                }
            }
        }
    }
    all
}

fn readers(graph: &Graph, value: ValueId) -> Vec<usize> {
    let nodes = graph.nodes.iter().enumerate();
    nodes.filter(|(_, node)| node.inputs.contains(&value)).map(|(n, _)| n).collect()
}

/// Returns edits whose readers bypass a node and read one of its inputs.
fn omissions(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let mut all = Vec::new();
    for input in 0..2 {
        let passes = |node: &Node| match (node.inputs.get(input), node.outputs.as_slice()) {
            (Some(from), [to]) => {
                graph.values[from.0].shape == graph.values[to.0].shape && graph.output != Some(*to)
            }
            _ => false,
        };
        for (op, nodes) in kinds(graph, passes) {
            if input == 1 && !graph.nodes[nodes[0]].op.is(Trait::Combines) {
                continue;
            }
            for scope in scopes(graph, &nodes, suspects) {
                let route = |n: &usize| {
                    let node = &graph.nodes[*n];
                    let readers = readers(graph, node.outputs[0]);
                    (!readers.is_empty()).then(|| (readers, node.outputs[0], node.inputs[input]))
                };
                // Later nodes first: values that are bypassed may be omitted too.
                let routes: Vec<_> = scope.nodes.iter().rev().filter_map(route).collect();
                let words = if input == 0 {
                    format!("`{op}` left out")
                } else {
                    format!("`{op}` and its first input left out")
                };
                if !routes.is_empty() {
                    all.push(edit(words, scope, |_| Change::Reroute(routes)));
                }
            }
        }
    }
    all
}

/// Returns edits without a weight that an op need not have.
fn weightless(graph: &Graph, ops: &OpSet, suspects: &Suspects) -> Vec<Edit> {
    let mut all = Vec::new();
    for (op, _) in kinds(graph, |node| !node.weights.is_empty()) {
        let Some(rule) = ops.get(&op) else { continue };
        let optional = |kind| matches!(kind, ParamKind::Tensor | ParamKind::Module);
        let params = rule.signature().params.iter();
        for param in params.filter(|p| optional(p.kind) && p.default == Some(Scalar::Null)) {
            let nodes = graph.nodes.iter().enumerate();
            let has = |node: &Node| node.op == op.as_str() && node.weights.contains_key(param.name);
            let nodes: Vec<usize> = nodes.filter(|(_, node)| has(node)).map(|(n, _)| n).collect();
            for scope in scopes(graph, &nodes, suspects) {
                let words = format!("`{}` of `{op}` left out", param.name);
                let role = param.name.to_owned();
                all.push(edit(words, scope, |nodes| Change::Weightless { nodes, role }));
            }
        }
    }
    all
}

/// Returns edits in which an op runs after the one that reads its result: a norm after a rotation.
fn orders(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let shape = |value: ValueId| &graph.values[value.0].shape;
    // The only reader of a node's result, if both ops keep the shape.
    let next = |n: usize| {
        let node = &graph.nodes[n];
        let ([from, ..], [made]) = (node.inputs.as_slice(), node.outputs.as_slice()) else {
            return None;
        };
        let readers = readers(graph, *made);
        let [reader] = readers.as_slice() else { return None };
        let other = &graph.nodes[*reader];
        let [result] = other.outputs.as_slice() else { return None };
        let fits = shape(*from) == shape(*made)
            && shape(*made) == shape(*result)
            && other.inputs.iter().filter(|input| *input == made).count() == 1
            && (other.op != node.op && other.layer == node.layer)
            && node.state.is_none()
            && other.state.is_none()
            && graph.output != Some(*made);
        fits.then_some((*reader, *made, *result))
    };
    let mut all = Vec::new();
    for (op, nodes) in kinds(graph, |node| node.layer.is_some()) {
        let nodes: Vec<usize> = nodes.into_iter().filter(|n| next(*n).is_some()).collect();
        let follower = |n: &usize| next(*n).map(|(reader, ..)| graph.nodes[reader].op.as_str());
        let mut others: Vec<&str> = nodes.iter().filter_map(follower).collect();
        others.sort_unstable();
        others.dedup();
        for other in others {
            let of = |n: &usize| follower(n) == Some(other);
            let group: Vec<usize> = nodes.iter().copied().filter(of).collect();
            for scope in scopes(graph, &group, suspects) {
                let pairs: Vec<_> = scope
                    .nodes
                    .iter()
                    .filter_map(|n: &usize| next(*n).map(|(_, made, result)| (made, result)))
                    .collect();
                let words = format!("`{op}` after `{other}` instead of before it");
                all.push(edit(words, scope.clone(), |_| Change::Order(pairs)));
            }
        }
    }
    all
}

/// The value that each reader takes, and the one that it takes instead.
type BypassRoutes = BTreeMap<usize, (ValueId, ValueId)>;

/// Returns edits in which one reader takes an op's result instead of its input, or the reverse.
fn bypasses(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let shape = |value: ValueId| &graph.values[value.0].shape;
    let makes = |value: ValueId| graph.nodes.iter().position(|node| node.outputs.contains(&value));
    let mut all = Vec::new();
    // By the passed op, the reader's op and the direction.
    let mut found: BTreeMap<(&str, &str, bool), BypassRoutes> = BTreeMap::new();
    for (n, node) in graph.nodes.iter().enumerate().filter(|(_, node)| node.layer.is_some()) {
        let ([from, ..], [made]) = (node.inputs.as_slice(), node.outputs.as_slice()) else {
            continue;
        };
        if shape(*from) != shape(*made) || graph.output == Some(*made) {
            continue;
        }
        let before = readers(graph, *from);
        let after = readers(graph, *made);
        for reader in before.iter().filter(|r| **r > n && !after.contains(r)) {
            let key = (node.op.as_str(), graph.nodes[*reader].op.as_str(), true);
            found.entry(key).or_default().insert(*reader, (*from, *made));
        }
        // One reader takes every result that way: the op is left out.
        if after.len() > 1 && makes(*from).is_some() {
            for reader in &after {
                let key = (node.op.as_str(), graph.nodes[*reader].op.as_str(), false);
                found.entry(key).or_default().insert(*reader, (*made, *from));
            }
        }
    }
    for ((op, reader, later), routes) in found {
        let nodes: Vec<usize> = routes.keys().copied().collect();
        for scope in scopes(graph, &nodes, suspects) {
            let words = if later {
                format!("`{reader}` reads the result of `{op}` instead of its input")
            } else {
                format!("`{reader}` reads the input of `{op}` instead of its result")
            };
            let of = |n: &usize| routes.get(n).map(|(old, new)| (vec![*n], *old, *new));
            let routes: Vec<_> = scope.nodes.iter().filter_map(of).collect();
            all.push(edit(words, scope.clone(), |_| Change::Reroute(routes)));
        }
    }
    all
}

/// Returns edits that use an unread result in place of its inputs.
fn unread(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let mut all = Vec::new();
    for (n, node) in graph.nodes.iter().enumerate() {
        let ([from, ..], [made]) = (node.inputs.as_slice(), node.outputs.as_slice()) else {
            continue;
        };
        let shape = |value: ValueId| &graph.values[value.0].shape;
        if graph.output == Some(*made)
            || !readers(graph, *made).is_empty()
            || shape(*from) != shape(*made)
        {
            continue;
        }
        let others: Vec<usize> = readers(graph, *from).into_iter().filter(|r| *r > n).collect();
        let mut sets = vec![others.clone()];
        for (_, group) in kinds(graph, |_| true) {
            sets.push(group.into_iter().filter(|r| others.contains(r)).collect());
        }
        if others.len() <= READERS {
            sets.extend(others.iter().map(|r| vec![*r]));
            sets.extend(
                others.iter().map(|r: &usize| others.iter().copied().filter(|o| o != r).collect()),
            );
        }
        for set in sets {
            if set.iter().any(|r| suspects.first.contains(r)) {
                let words = format!("result of `{}` read, which nothing reads", node.op);
                let change = Change::Reroute(vec![(set, *from, *made)]);
                all.push(Edit { words, place: place(graph, &[n]), change });
            }
        }
    }
    all
}

/// Returns edits that read another part of a split.
fn siblings(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let mut parts: BTreeMap<ValueId, (usize, usize)> = BTreeMap::new();
    for (n, node) in graph.nodes.iter().enumerate().filter(|(_, node)| node.outputs.len() > 1) {
        parts.extend(node.outputs.iter().enumerate().map(|(part, value)| (*value, (n, part))));
    }
    let mut all = Vec::new();
    for (op, nodes) in kinds(graph, |node| node.inputs.iter().any(|i| parts.contains_key(i))) {
        for scope in scopes(graph, &nodes, suspects) {
            for (part, other) in (0..4).flat_map(|a| (0..4).map(move |b| (a, b))) {
                let route = |n: &usize| {
                    let read = graph.nodes[*n].inputs.iter().find(|input| {
                        parts.get(input).is_some_and(|(_, number)| *number == part)
                    })?;
                    let made = &graph.nodes[parts[read].0].outputs;
                    let to = *made.get(other).filter(|to| *to != read)?;
                    let shape = |value: ValueId| &graph.values[value.0].shape;
                    (shape(*read) == shape(to)).then(|| (vec![*n], *read, to))
                };
                let routes: Vec<_> = scope.nodes.iter().filter_map(route).collect();
                if !routes.is_empty() {
                    let a = part + 1;
                    let b = other + 1;
                    let words = format!("`{op}` reads part {b} of a split instead of part {a}");
                    all.push(edit(words, scope.clone(), |_| Change::Reroute(routes)));
                }
            }
        }
    }
    all
}

/// Returns edits that swap the weights of two projections of one input, or replace the output matrix by the
/// embedding.
fn weights(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let weight = |node: &Node| node.weights.get("weight").copied();
    let shape = |node: &Node| Some(&graph.weights[weight(node)?.0].shape);
    let mut all = Vec::new();
    let mut sites: Vec<([usize; 4], NodePairs)> = Vec::new();
    let linear = |(_, node): &(usize, &Node)| node.op.is(Trait::Projects);
    for (n, node) in graph.nodes.iter().enumerate().filter(linear) {
        for (m, other) in graph.nodes.iter().enumerate().skip(n + 1).filter(linear) {
            if other.inputs != node.inputs || shape(other) != shape(node) {
                continue;
            }
            let site = [node.at.start, node.at.end, other.at.start, other.at.end];
            match sites.iter_mut().find(|(known, _)| *known == site) {
                Some((_, pairs)) => pairs.push((n, m)),
                None => sites.push((site, vec![(n, m)])),
            }
        }
    }
    let suspect =
        |(a, b): &(usize, usize)| suspects.first.contains(a) || suspects.first.contains(b);
    let name = |n: usize| {
        let weight = weight(&graph.nodes[n]).map(|weight| graph.weights[weight.0].name.as_str());
        weight.unwrap_or_default().to_owned()
    };
    let read = |n: usize| {
        let made = graph.nodes[n].outputs.first();
        made.is_some_and(|made| readers(graph, *made).iter().any(|r| suspects.first.contains(r)))
    };
    for (_, pairs) in
        sites.iter().filter(|(_, pairs)| pairs.iter().any(|(a, b)| read(*a) && read(*b)))
    {
        let (a, b) = pairs[0];
        let words = format!("`{}` and `{}` in each other's place", name(a), name(b));
        let place = format!("in {} layers", pairs.len());
        all.push(Edit { words, place, change: Change::Projections(pairs.clone()) });
    }
    for (_, pairs) in sites.iter().filter(|(_, pairs)| pairs.iter().any(suspect)) {
        let mut sets = vec![pairs.clone()];
        if suspects.single && pairs.len() > 1 {
            sets.extend(pairs.iter().filter(|pair| suspect(pair)).map(|pair| vec![*pair]));
        }
        for set in sets {
            let (a, b) = set[0];
            let words = format!("weights `{}` and `{}` swapped", name(a), name(b));
            let place = match set.len() {
                1 => place(graph, &[a]),
                count => format!("in {count} layers"),
            };
            all.push(Edit { words, place, change: Change::Weights(set) });
        }
    }
    let Some(head) = graph.output.and_then(|output| {
        graph
            .nodes
            .iter()
            .position(|node| node.outputs.contains(&output) && node.op.is(Trait::Projects))
    }) else {
        return all;
    };
    if suspects.first.contains(&head) {
        for (n, other) in graph.weights.iter().enumerate() {
            let own = weight(&graph.nodes[head]);
            if Some(&other.shape) == shape(&graph.nodes[head]) && own != Some(WeightId(n)) {
                let words = format!("head reads `{}` instead of `{}`", other.name, name(head));
                let role = "weight".to_owned();
                let weight = WeightId(n);
                let change = Change::Weight { node: head, role, weight };
                all.push(Edit { words, place: place(graph, &[head]), change });
            }
        }
    }
    all
}
