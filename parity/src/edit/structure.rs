//! Edits that replace or omit ops, or reorder inputs, outputs and weights.

use std::collections::BTreeMap;

use registry::graph::{Graph, Node, ValueId, WeightId};
use registry::model::Model;
use registry::ops::{Op, OpSet, ParamKind, Trait};
use registry::scalar::Scalar;

use super::scope::{EditScope, Suspects, kinds, maker_of, place, scopes, shape_of};
use super::{Candidate, Change, Edit};

/// Pairs of nodes.
type NodePairs = Vec<(usize, usize)>;

/// Readers, the value that they read, and its replacement.
type Route = (Vec<usize>, ValueId, ValueId);

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

/// Returns the names of the declared ops with a trait, sorted.
fn names(ops: &OpSet, kind: Trait) -> Vec<&str> {
    let mut names: Vec<&str> = ops.declared().filter(|op| op.is(kind)).map(Op::as_str).collect();
    names.sort_unstable();
    names
}

/// Returns edits that replace functions by others.
fn functions(graph: &Graph, ops: &OpSet, suspects: &Suspects) -> Vec<Edit> {
    let known = names(ops, Trait::Function);
    // A router may score by a function of each number or of the whole row.
    let of_rows = names(ops, Trait::RowFunction);
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

/// True if a node reads two different values of one shape first, and does not commute.
pub(crate) fn has_swappable_inputs(graph: &Graph, node: &Node) -> bool {
    let [a, b, ..] = node.inputs.as_slice() else { return false };
    a != b && !node.op.is(Trait::Commutes) && shape_of(graph, *a) == shape_of(graph, *b)
}

/// Returns edits that swap the first two inputs of nodes.
fn inputs(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let mut all = Vec::new();
    for (op, nodes) in kinds(graph, |node| has_swappable_inputs(graph, node)) {
        for scope in scopes(graph, &nodes, suspects) {
            all.push(edit(format!("first two inputs of `{op}` swapped"), scope, Change::Inputs));
        }
    }
    all
}

/// Returns edits that swap two outputs of nodes.
fn outputs(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let mut all = Vec::new();
    for (op, nodes) in kinds(graph, |node| node.outputs.len() > 1) {
        for scope in scopes(graph, &nodes, suspects) {
            let counts = scope.nodes.iter().map(|n| graph.nodes[*n].outputs.len());
            let count = counts.min().unwrap_or(0).min(6);
            for a in 0..count {
                for b in a + 1..count {
                    if scope.nodes.iter().all(|n: &usize| {
                        let outputs = &graph.nodes[*n].outputs;
                        shape_of(graph, outputs[a]) == shape_of(graph, outputs[b])
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

/// Returns the nodes that read a value.
fn readers(graph: &Graph, value: ValueId) -> Vec<usize> {
    let nodes = graph.nodes.iter().enumerate();
    nodes.filter(|(_, node)| node.inputs.contains(&value)).map(|(n, _)| n).collect()
}

/// True if the only output of a node has the shape of one of its inputs and is not the result of the graph.
pub(crate) fn can_bypass(graph: &Graph, node: &Node, input: usize) -> bool {
    let Some(from) = node.inputs.get(input) else { return false };
    let [to] = node.outputs.as_slice() else { return false };
    shape_of(graph, *from) == shape_of(graph, *to) && graph.output != Some(*to)
}

/// Returns the route of a node's readers to one of its inputs; none if the node has no readers.
fn bypass_route(graph: &Graph, n: usize, input: usize) -> Option<Route> {
    let node = &graph.nodes[n];
    let readers = readers(graph, node.outputs[0]);
    (!readers.is_empty()).then(|| (readers, node.outputs[0], node.inputs[input]))
}

/// Returns edits whose readers bypass a node and read one of its inputs.
fn omissions(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let mut all = Vec::new();
    for input in 0..2 {
        for (op, nodes) in kinds(graph, |node| can_bypass(graph, node, input)) {
            if input == 1 && !graph.nodes[nodes[0]].op.is(Trait::Combines) {
                continue;
            }
            for scope in scopes(graph, &nodes, suspects) {
                // Later nodes first: values that are bypassed may be omitted too.
                let nodes = scope.nodes.iter().rev();
                let routes: Vec<Route> =
                    nodes.filter_map(|n| bypass_route(graph, *n, input)).collect();
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
        let params = rule.signature().params.iter();
        let params = params.filter(|p| matches!(p.kind, ParamKind::Tensor | ParamKind::Module));
        for param in params.filter(|p| p.default == Some(Scalar::Null)) {
            let nodes = graph.nodes.iter().enumerate();
            let nodes = nodes.filter(|(_, node)| node.op == op.as_str());
            let nodes: Vec<usize> = nodes
                .filter(|(_, node)| node.weights.contains_key(param.name))
                .map(|(n, _)| n)
                .collect();
            for scope in scopes(graph, &nodes, suspects) {
                let words = format!("`{}` of `{op}` left out", param.name);
                let role = param.name.to_owned();
                all.push(edit(words, scope, |nodes| Change::Weightless { nodes, role }));
            }
        }
    }
    all
}

/// Returns the only reader of a node's result, with the results of both, if both ops keep the shape.
fn next_op(graph: &Graph, n: usize) -> Option<(usize, ValueId, ValueId)> {
    let node = &graph.nodes[n];
    let input = *node.inputs.first()?;
    let [output] = *node.outputs.as_slice() else { return None };
    let readers = readers(graph, output);
    let [reader] = *readers.as_slice() else { return None };
    let other = &graph.nodes[reader];
    let [result] = *other.outputs.as_slice() else { return None };
    let fits = shape_of(graph, input) == shape_of(graph, output)
        && shape_of(graph, output) == shape_of(graph, result)
        && other.inputs.iter().filter(|input| **input == output).count() == 1
        && (other.op != node.op && other.layer == node.layer)
        && node.state.is_none()
        && other.state.is_none()
        && graph.output != Some(output);
    fits.then_some((reader, output, result))
}

/// Returns the op of a node's [`next_op`].
fn follower_of(graph: &Graph, n: usize) -> Option<&str> {
    let (reader, ..) = next_op(graph, n)?;
    Some(graph.nodes[reader].op.as_str())
}

/// Returns edits in which an op runs after the one that reads its result: a norm after a rotation.
fn orders(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let mut all = Vec::new();
    for (op, nodes) in kinds(graph, |node| node.layer.is_some()) {
        let nodes: Vec<usize> =
            nodes.into_iter().filter(|n| next_op(graph, *n).is_some()).collect();
        let mut followers: Vec<&str> =
            nodes.iter().filter_map(|n| follower_of(graph, *n)).collect();
        followers.sort_unstable();
        followers.dedup();
        for other in followers {
            let group = nodes.iter().copied();
            let group: Vec<usize> =
                group.filter(|n: &usize| follower_of(graph, *n) == Some(other)).collect();
            for scope in scopes(graph, &group, suspects) {
                let ops = scope.nodes.iter().filter_map(|n| next_op(graph, *n));
                let pairs: Vec<_> = ops.map(|(_, output, result)| (output, result)).collect();
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
    let mut all = Vec::new();
    // By the passed op, the reader's op and the direction.
    let mut routes_by_ops: BTreeMap<(&str, &str, bool), BypassRoutes> = BTreeMap::new();
    for (n, node) in graph.nodes.iter().enumerate().filter(|(_, node)| node.layer.is_some()) {
        let [from, ..] = node.inputs.as_slice() else { continue };
        let [to] = node.outputs.as_slice() else { continue };
        if shape_of(graph, *from) != shape_of(graph, *to) || graph.output == Some(*to) {
            continue;
        }
        let before = readers(graph, *from);
        let after = readers(graph, *to);
        for reader in before.iter().filter(|r| **r > n && !after.contains(r)) {
            let key = (node.op.as_str(), graph.nodes[*reader].op.as_str(), true);
            routes_by_ops.entry(key).or_default().insert(*reader, (*from, *to));
        }
        // One reader takes every result that way: the op is left out.
        if after.len() > 1 && maker_of(graph, *from).is_some() {
            for reader in &after {
                let key = (node.op.as_str(), graph.nodes[*reader].op.as_str(), false);
                routes_by_ops.entry(key).or_default().insert(*reader, (*to, *from));
            }
        }
    }
    for ((op, reader, later), routes) in routes_by_ops {
        let nodes: Vec<usize> = routes.keys().copied().collect();
        for scope in scopes(graph, &nodes, suspects) {
            let words = if later {
                format!("`{reader}` reads the result of `{op}` instead of its input")
            } else {
                format!("`{reader}` reads the input of `{op}` instead of its result")
            };
            let routes: Vec<Route> = scope
                .nodes
                .iter()
                .filter_map(|n| routes.get(n).map(|(old, new)| (vec![*n], *old, *new)))
                .collect();
            all.push(edit(words, scope.clone(), |_| Change::Reroute(routes)));
        }
    }
    all
}

/// Returns edits that use an unread result in place of its inputs.
fn unread(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let mut all = Vec::new();
    for (n, node) in graph.nodes.iter().enumerate() {
        let [from, ..] = node.inputs.as_slice() else { continue };
        let [to] = node.outputs.as_slice() else { continue };
        if graph.output == Some(*to)
            || !readers(graph, *to).is_empty()
            || shape_of(graph, *from) != shape_of(graph, *to)
        {
            continue;
        }
        let later: Vec<usize> = readers(graph, *from).into_iter().filter(|r| *r > n).collect();
        let mut sets = vec![later.clone()];
        for (_, group) in kinds(graph, |_| true) {
            sets.push(group.into_iter().filter(|r| later.contains(r)).collect());
        }
        if later.len() <= READERS {
            sets.extend(later.iter().map(|r| vec![*r]));
            sets.extend(
                later.iter().map(|r: &usize| later.iter().copied().filter(|o| o != r).collect()),
            );
        }
        for set in sets {
            if suspects.has_any(&set) {
                let words = format!("result of `{}` read, which nothing reads", node.op);
                let change = Change::Reroute(vec![(set, *from, *to)]);
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
                let nodes = scope.nodes.iter();
                let routes: Vec<Route> =
                    nodes.filter_map(|n| sibling_route(graph, &parts, *n, part, other)).collect();
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

/// Returns the route of a node from one part of a split to another of its shape. `parts` has the node and the number of
/// each part.
fn sibling_route(
    graph: &Graph,
    parts: &BTreeMap<ValueId, (usize, usize)>,
    n: usize,
    part: usize,
    other: usize,
) -> Option<Route> {
    let mut inputs = graph.nodes[n].inputs.iter().copied();
    let (from, split) = inputs.find_map(|input| {
        let (split, number) = parts.get(&input)?;
        (*number == part).then_some((input, *split))
    })?;
    let to = *graph.nodes[split].outputs.get(other).filter(|to| **to != from)?;
    (shape_of(graph, from) == shape_of(graph, to)).then(|| (vec![n], from, to))
}

/// Returns the weight of a node with one weight.
fn weight_of(node: &Node) -> Option<WeightId> {
    node.weights.get("weight").copied()
}

/// Returns the shape of a node's weight.
fn weight_shape<'g>(graph: &'g Graph, node: &Node) -> Option<&'g [usize]> {
    Some(&graph.weights[weight_of(node)?.0].shape)
}

/// Returns the name of a node's weight.
fn weight_name(graph: &Graph, n: usize) -> &str {
    let weight = weight_of(&graph.nodes[n]);
    weight.map_or("", |weight| graph.weights[weight.0].name.as_str())
}

/// True if a suspect reads the result of a node.
fn is_read_by_suspect(graph: &Graph, n: usize, suspects: &Suspects) -> bool {
    let result = graph.nodes[n].outputs.first();
    result.is_some_and(|result| suspects.has_any(&readers(graph, *result)))
}

/// Returns edits that swap the weights of two projections of one input, or replace the output matrix by the
/// embedding.
fn weights(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let mut all = Vec::new();
    let mut sites: Vec<([usize; 4], NodePairs)> = Vec::new();
    let nodes = graph.nodes.iter().enumerate();
    let projections: Vec<(usize, &Node)> =
        nodes.filter(|(_, node)| node.op.is(Trait::Projects)).collect();
    for (index, &(n, node)) in projections.iter().enumerate() {
        for &(m, other) in &projections[index + 1..] {
            if other.inputs != node.inputs
                || weight_shape(graph, other) != weight_shape(graph, node)
            {
                continue;
            }
            let site = [node.at.start, node.at.end, other.at.start, other.at.end];
            match sites.iter_mut().find(|(known, _)| *known == site) {
                Some((_, pairs)) => pairs.push((n, m)),
                None => sites.push((site, vec![(n, m)])),
            }
        }
    }
    for (_, pairs) in &sites {
        if !pairs.iter().any(|(a, b)| {
            is_read_by_suspect(graph, *a, suspects) && is_read_by_suspect(graph, *b, suspects)
        }) {
            continue;
        }
        let (a, b) = pairs[0];
        let first = weight_name(graph, a);
        let second = weight_name(graph, b);
        let words = format!("`{first}` and `{second}` in each other's place");
        let place = format!("in {} layers", pairs.len());
        all.push(Edit { words, place, change: Change::Projections(pairs.clone()) });
    }
    for (_, pairs) in &sites {
        let suspected: NodePairs =
            pairs.iter().copied().filter(|(a, b)| suspects.has_any(&[*a, *b])).collect();
        if suspected.is_empty() {
            continue;
        }
        let mut sets = vec![pairs.clone()];
        if suspects.single && pairs.len() > 1 {
            sets.extend(suspected.into_iter().map(|pair| vec![pair]));
        }
        for set in sets {
            let (a, b) = set[0];
            let first = weight_name(graph, a);
            let second = weight_name(graph, b);
            let words = format!("weights `{first}` and `{second}` swapped");
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
            let head_weight = weight_of(&graph.nodes[head]);
            let head_shape = weight_shape(graph, &graph.nodes[head]);
            if Some(other.shape.as_slice()) == head_shape && head_weight != Some(WeightId(n)) {
                let words = format!(
                    "head reads `{}` instead of `{}`",
                    other.name,
                    weight_name(graph, head)
                );
                let role = "weight".to_owned();
                let weight = WeightId(n);
                let change = Change::Weight { node: head, role, weight };
                all.push(Edit { words, place: place(graph, &[head]), change });
            }
        }
    }
    all
}
