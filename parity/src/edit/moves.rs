//! Edits that move an op with weights to another place of its layer, swap the weights of two ops, cap the logits, or
//! exchange two numbers of the config.

use std::collections::BTreeMap;

use registry::graph::{Graph, Node, Value, ValueId};
use registry::model::Model;
use registry::ops::{OpSet, ParamKind, Trait};
use registry::scalar::Scalar;

use super::knobs::{Knob, KnobTarget};
use super::logit_op::LogitOp;
use super::scope::{Suspects, kinds, maker_of, place, shape_of};
use super::{Candidate, Change, Edit};

/// Caps of logits in released models.
const CAPS: [f64; 4] = [30.0, 50.0, 20.0, 15.0];

/// Maximum number of ops of one kind in a layer, and of exchanged pairs of numbers.
const SEVERAL: usize = 8;

/// New place of an op with one input and one result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpMove {
    /// Result of the op.
    pub result: ValueId,
    /// Value that the op reads in its new place.
    pub after: ValueId,
    /// Op whose readers keep that value, given by its result: the sum at the end of a branch.
    pub except: Option<ValueId>,
}

/// Returns all edits of this kind, which are run if simpler ones explain nothing.
pub(crate) fn candidates(model: &Model, ops: &OpSet, suspects: &Suspects) -> Vec<Candidate> {
    let graph = &model.graph;
    let mut all = swapped_weights(graph, suspects);
    all.extend(moves(graph, suspects));
    all.extend(exchanged_numbers(model, suspects));
    let mut all: Vec<Candidate> = all.into_iter().map(Candidate::Edit).collect();
    all.extend(capped_logits(model, ops, suspects));
    all
}

/// True for ops with weights that keep the shape of their only input.
fn is_norm(graph: &Graph, node: &Node) -> bool {
    let [input] = node.inputs.as_slice() else { return false };
    let [output] = node.outputs.as_slice() else { return false };
    let like = shape_of(graph, *input) == shape_of(graph, *output);
    like && node.state.is_none() && !node.weights.is_empty() && !node.op.is(Trait::Projects)
}

/// Returns the nodes of each layer that are norms of one op, in the order of the layer.
fn norms_by_layer(graph: &Graph) -> Vec<Vec<Vec<usize>>> {
    let mut all = Vec::new();
    for (_, nodes) in kinds(graph, |node| node.layer.is_some() && is_norm(graph, node)) {
        let mut layers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for n in nodes {
            layers.entry(graph.nodes[n].layer.unwrap_or_default()).or_default().push(n);
        }
        all.push(layers.into_values().filter(|nodes| nodes.len() <= SEVERAL).collect());
    }
    all
}

/// Returns the roles of a node's weights with their shapes.
fn weight_shapes(graph: &Graph, n: usize) -> Vec<(&String, &Vec<usize>)> {
    let weights = graph.nodes[n].weights.iter();
    weights.map(|(role, weight)| (role, &graph.weights[weight.0].shape)).collect()
}

/// Returns the name of a node's first weight.
fn first_weight_name(graph: &Graph, n: usize) -> &str {
    let weight = graph.nodes[n].weights.values().next();
    weight.map_or("", |weight| graph.weights[weight.0].name.as_str())
}

/// Returns edits that swap the weights of two norms in every layer.
fn swapped_weights(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let mut all = Vec::new();
    for layers in norms_by_layer(graph) {
        for (a, b) in (0..SEVERAL).flat_map(|a| (a + 1..SEVERAL).map(move |b| (a, b))) {
            let pairs: Vec<(usize, usize)> = layers
                .iter()
                .filter_map(|nodes: &Vec<usize>| Some((*nodes.get(a)?, *nodes.get(b)?)))
                .filter(|(first, second)| {
                    weight_shapes(graph, *first) == weight_shapes(graph, *second)
                })
                .collect();
            let Some(&(first, second)) = pairs.first() else { continue };
            if !pairs.iter().any(|(a, b)| suspects.has_any(&[*a, *b])) {
                continue;
            }
            let place = format!("in {} layers", pairs.len());
            let names = format!(
                "`{}` and `{}`",
                first_weight_name(graph, first),
                first_weight_name(graph, second)
            );
            let words = format!("{names} in each other's place");
            all.push(Edit {
                words,
                place: place.clone(),
                change: Change::Projections(pairs.clone()),
            });
            all.push(Edit {
                words: format!("weights {names} swapped"),
                place,
                change: Change::Weights(pairs),
            });
        }
    }
    all
}

/// Place of an op in a branch of the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BranchPlace {
    Before,
    Behind,
    AfterSum,
}

/// Returns the branches of a layer: the sums at their ends.
fn sums(graph: &Graph, layer: usize) -> Vec<&Node> {
    let of_layer = graph.nodes.iter().filter(|node| node.layer == Some(layer));
    of_layer.filter(|node| node.op.is(Trait::Adds) && node.inputs.len() == 2).collect()
}

/// Returns edits that move norms to the begin of a branch, to its end, or behind the sum with the residual stream.
fn moves(graph: &Graph, suspects: &Suspects) -> Vec<Edit> {
    let mut all = Vec::new();
    for layers in norms_by_layer(graph) {
        let longest = layers.iter().map(Vec::len).max().unwrap_or(0);
        for (to, words) in [
            (BranchPlace::Behind, "at the end of the branch"),
            (BranchPlace::Before, "before the branch"),
            (BranchPlace::AfterSum, "behind the sum with the residual stream"),
        ] {
            // Every norm with the branch of its number first, then each with each.
            let mut choices: Vec<Vec<(usize, usize)>> =
                vec![(0..longest).map(|n| (n, n)).collect()];
            choices.extend((0..longest).flat_map(|a| (0..longest).map(move |b| vec![(a, b)])));
            for choice in choices {
                let (nodes, moves): (Vec<usize>, Vec<OpMove>) =
                    layers.iter().flat_map(|norms| moved_norms(graph, norms, &choice, to)).unzip();
                let Some(first) = nodes.first() else { continue };
                if suspects.first.iter().any(|n| is_near(&graph.nodes[*n], &moves)) {
                    let words = format!("`{}` {words}", graph.nodes[*first].op);
                    let place = place(graph, &nodes);
                    all.push(Edit { words, place, change: Change::Move(moves) });
                }
            }
        }
    }
    all
}

/// Returns the moves of norms of one layer. `choice` has the index of each norm to move, and that of its branch.
fn moved_norms(
    graph: &Graph,
    norms: &[usize],
    choice: &[(usize, usize)],
    to: BranchPlace,
) -> Vec<(usize, OpMove)> {
    let Some(layer) = norms.first().and_then(|n| graph.nodes[*n].layer) else {
        return Vec::new();
    };
    let sums = sums(graph, layer);
    let moves = choice.iter().filter_map(|(norm, sum)| {
        let n = *norms.get(*norm)?;
        Some((n, new_place(graph, n, sums.get(*sum)?, to)?))
    });
    moves.collect()
}

/// True if a node reads or makes a value of a move.
fn is_near(node: &Node, moves: &[OpMove]) -> bool {
    let mut values = node.inputs.iter().chain(&node.outputs);
    values.any(|value| moves.iter().any(|op| op.after == *value || op.result == *value))
}

/// Returns the place of a norm relative to a branch; none if it is there already, or cannot be.
fn new_place(graph: &Graph, n: usize, sum: &Node, to: BranchPlace) -> Option<OpMove> {
    let node = &graph.nodes[n];
    let from = *node.inputs.first()?;
    let result = *node.outputs.first()?;
    let [residual, branch] = sum.inputs.as_slice() else { return None };
    let [total] = sum.outputs.as_slice() else { return None };
    // A norm at the end of the branch makes the value that is added; without it, its input is added.
    let (after, except) = match to {
        BranchPlace::Before => (*residual, Some(*total)),
        BranchPlace::Behind => (*branch, None),
        BranchPlace::AfterSum => (*total, None),
    };
    let same_shape = shape_of(graph, after) == shape_of(graph, result);
    let possible = after != from && after != result && same_shape;
    let in_layer = maker_of(graph, after)
        .is_some_and(|n| to == BranchPlace::Before || graph.nodes[n].layer == node.layer);
    (possible && in_layer).then_some(OpMove { result, after, except })
}

/// Moves ops. Readers of the old place read the input of an op, those of the new place its result.
pub(super) fn apply(graph: &mut Graph, moves: &[OpMove]) {
    for OpMove { result, after, except } in moves {
        let Some(n) = maker_of(graph, *result) else { continue };
        let Some(source) = maker_of(graph, *after) else { continue };
        let Some(&from) = graph.nodes[n].inputs.first() else { continue };
        if after == result || n == source {
            continue;
        }
        reroute(graph, *result, from, None);
        let sum = except.and_then(|total| maker_of(graph, total));
        reroute(graph, *after, *result, sum);
        let mut node = graph.nodes.remove(n);
        node.inputs = vec![*after];
        let source = if source > n { source - 1 } else { source };
        // The value before the first branch of a layer is made by another layer.
        let begin = node.layer.and_then(|layer| graph.layers.get(layer)).map_or(0, |l| l.nodes.0);
        graph.nodes.insert((source + 1).max(begin), node);
    }
}

/// Lets all nodes but one read another value.
fn reroute(graph: &mut Graph, from: ValueId, to: ValueId, except: Option<usize>) {
    for (_, node) in graph.nodes.iter_mut().enumerate().filter(|(n, _)| Some(*n) != except) {
        node.inputs.iter_mut().filter(|input| **input == from).for_each(|input| *input = to);
    }
    if graph.output == Some(from) {
        graph.output = Some(to);
    }
}

/// Returns edits that put an op with one number behind the logits: a cap.
fn capped_logits(model: &Model, ops: &OpSet, suspects: &Suspects) -> Vec<Candidate> {
    let graph = &model.graph;
    let Some(output) = graph.output else { return Vec::new() };
    if !maker_of(graph, output).is_some_and(|n| suspects.first.contains(&n)) {
        return Vec::new();
    }
    let mut all = Vec::new();
    for op in ops.declared() {
        let Some(rule) = ops.get(op.as_str()) else { continue };
        let [value, number] = rule.signature().params.as_slice() else { continue };
        let fits = value.kind == ParamKind::Value && number.kind == ParamKind::Float;
        if !fits || number.default.is_some() {
            continue;
        }
        for tapped in [false, true] {
            let op = op.as_str().to_owned();
            let key = number.name.to_owned();
            let cap = LogitOp { op, key, output, tapped };
            all.extend(CAPS.map(|x| Candidate::Edit(cap.edit(x))));
            let target = KnobTarget::Logits(cap);
            all.push(Candidate::Knob(Knob { place: "the head".to_owned(), target }));
        }
    }
    all
}

/// Puts an op behind the node that makes a value, before the value is tapped or only for its readers.
pub(super) fn behind(
    graph: &mut Graph,
    value: ValueId,
    (op, attrs): (&str, &[(String, Scalar)]),
    tapped: bool,
) {
    let Some(maker) = maker_of(graph, value) else { return };
    let result = ValueId(graph.values.len());
    let Some(input) = graph.values.get_mut(value.0) else { return };
    let tap = if tapped { input.tap.take() } else { None };
    let output =
        Value { name: input.name.clone(), shape: input.shape.clone(), dtype: input.dtype, tap };
    graph.values.push(output);
    for node in &mut graph.nodes[maker + 1..] {
        node.inputs.iter_mut().filter(|input| **input == value).for_each(|input| *input = result);
    }
    if graph.output == Some(value) {
        graph.output = Some(result);
    }
    let old = &graph.nodes[maker];
    let node = Node {
        op: op.into(),
        inputs: vec![value],
        weights: BTreeMap::default(),
        state: None,
        rope: None,
        attrs: attrs.iter().cloned().collect(),
        outputs: vec![result],
        layer: old.layer,
        at: old.at.clone(),
    };
    graph.nodes.insert(maker + 1, node);
    for layer in &mut graph.layers {
        let (from, to) = &mut layer.nodes;
        *from += usize::from(*from > maker);
        *to += usize::from(*to > maker);
    }
    graph.head += usize::from(graph.head > maker);
}

/// Returns edits in which two dims have each other's value, wherever arguments are one of them or its inverse.
fn exchanged_numbers(model: &Model, suspects: &Suspects) -> Vec<Edit> {
    let numbers: Vec<(&str, f64)> = model
        .dims
        .iter()
        .filter_map(|(name, value)| Some((name.as_str(), value.as_f64()?)))
        .filter(|(_, x)| *x > 0.0 && *x != 1.0)
        .collect();
    let mut all: Vec<Edit> = Vec::new();
    for (n, (a, x)) in numbers.iter().enumerate() {
        for (b, y) in numbers.iter().skip(n + 1).filter(|(_, y)| y != x) {
            let there = arguments(&model.graph, *x, *y);
            let back = arguments(&model.graph, *y, *x);
            let suspect = there.iter().chain(&back).any(|(n, ..)| suspects.first.contains(n));
            if there.is_empty() || back.is_empty() || !suspect || all.len() >= SEVERAL * SEVERAL {
                continue;
            }
            let values = there.into_iter().chain(back).collect();
            let words = format!("dims `{a}` and `{b}` in each other's place");
            let change = Change::Arguments(values);
            all.push(Edit { words, place: "in `dims:`".to_owned(), change });
        }
    }
    all
}

/// Returns the arguments that are a number or its inverse, with another number in its place.
fn arguments(graph: &Graph, from: f64, to: f64) -> Vec<(usize, String, Scalar)> {
    let mut all = Vec::new();
    for (n, node) in graph.nodes.iter().enumerate() {
        for (key, value) in &node.attrs {
            let Scalar::Float(value) = value else { continue };
            let new = match *value {
                x if is_close(x, from) => to,
                x if is_close(x, 1.0 / from) => 1.0 / to,
                _ => continue,
            };
            all.push((n, key.clone(), Scalar::Float(new)));
        }
    }
    all
}

/// True if two numbers are equal up to rounding.
fn is_close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-12 * b.abs()
}
