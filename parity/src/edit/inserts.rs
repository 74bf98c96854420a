//! Edits that put ops before others: heads that take their groups in turn, plain decays, and numbers in fewer bits.

use std::collections::BTreeMap;

use registry::dtype::{Dtype, DtypeRule};
use registry::graph::{Graph, Node, StateKind, Value, ValueId, WeightId};
use registry::ops::{CONCAT, HEADS, LOG_DECAY, MERGE, SCALE, Trait, WEIGHT_ADD, WEIGHT_SCALE};
use registry::scalar::Scalar;

use super::scope::{Suspects, kinds, scopes, shape_of};
use super::{Candidate, Change, Clues, Edit};

/// Narrow dtypes in which an engine may compute a part of an f32 run.
const NARROW: [Dtype; 2] = [Dtype::Bf16, Dtype::F16];

/// Returns edits of ops whose heads share groups of another input: heads take the groups in turn.
pub(super) fn tiles(graph: &Graph, suspects: &Suspects) -> Vec<Candidate> {
    edits(
        graph,
        suspects,
        |node| !groups(graph, node).is_empty(),
        |op: &str| format!("heads of `{op}` that share a group lie a number of groups apart"),
        Change::Tiles,
    )
}

/// Returns an edit for each scope of the nodes that it fits.
fn edits(
    graph: &Graph,
    suspects: &Suspects,
    fits: impl Fn(&Node) -> bool,
    words: impl Fn(&str) -> String,
    change: impl Fn(Vec<usize>) -> Change,
) -> Vec<Candidate> {
    let mut all = Vec::new();
    for (op, nodes) in kinds(graph, fits) {
        for scope in scopes(graph, &nodes, suspects) {
            let words = words(&op);
            let change = change(scope.nodes);
            all.push(Candidate::Edit(Edit { words, place: scope.place, change }));
        }
    }
    all
}

/// Returns the inputs of an op with fewer heads than another, and the number of heads. Keys and values of an
/// attention are kept by their own heads.
fn groups(graph: &Graph, node: &Node) -> Vec<(usize, usize)> {
    let state_kind = node.state.map(|state| graph.states[state.0].kind);
    if !node.op.is(Trait::KeepsState) || state_kind != Some(StateKind::Recurrent) {
        return Vec::new();
    }
    let heads: Vec<usize> = node.inputs.iter().map(|value| heads_of(graph, *value)).collect();
    let largest = heads.iter().copied().max().unwrap_or(0);
    let fewer = heads
        .into_iter()
        .enumerate()
        .filter(|(_, heads)| (2..largest).contains(heads) && largest.is_multiple_of(*heads));
    fewer.map(|(input, _)| (input, largest)).collect()
}

/// Returns the number of heads of a value; 0 for a value without heads.
fn heads_of(graph: &Graph, value: ValueId) -> usize {
    match shape_of(graph, value) {
        [heads, _] => *heads,
        _ => 0,
    }
}

/// Lets the heads of nodes take their groups in turn.
pub(super) fn tile(graph: &mut Graph, nodes: &[usize]) {
    let mut nodes = nodes.to_vec();
    nodes.sort_unstable();
    for n in nodes.into_iter().rev() {
        let Some(node) = graph.nodes.get(n) else { continue };
        let mut at = n;
        for (input, heads) in groups(graph, node) {
            let from = graph.nodes[at].inputs[input];
            let Value { shape, .. } = &graph.values[from.0];
            let [group_count, size] = shape[..] else { continue };
            let row = insert(graph, at, MERGE, vec![from], vec![group_count * size], &[]);
            let parts = vec![row; heads / group_count];
            let rows = insert(graph, at + 1, CONCAT, parts, vec![heads * size], &[]);
            let count = Scalar::Int(i64::try_from(heads).unwrap_or(i64::MAX));
            let tiled =
                insert(graph, at + 2, HEADS, vec![rows], vec![heads, size], &[("n", count)]);
            at += 3;
            graph.nodes[at].inputs[input] = tiled;
        }
    }
}

/// Returns edits of decays whose steps are not made positive: `-exp(A) * (x + dt)`.
pub(super) fn decays(graph: &Graph, suspects: &Suspects) -> Vec<Candidate> {
    edits(
        graph,
        suspects,
        |node| decay(graph, node).is_some(),
        |op: &str| format!("`{op}` without its softplus"),
        Change::PlainDecay,
    )
}

/// Returns the rates and the offsets of a decay that has one of each for every number.
fn decay(graph: &Graph, node: &Node) -> Option<(WeightId, WeightId)> {
    let rate = *node.weights.get("A")?;
    let offset = *node.weights.get("dt")?;
    let shape = &graph.values[node.inputs.first()?.0].shape;
    let floor = node.attrs.get("floor").is_some_and(|floor| *floor != Scalar::Null);
    let fits = node.op == LOG_DECAY
        && graph.weights[rate.0].shape == *shape
        && graph.weights[offset.0].shape == *shape;
    (fits && !floor).then_some((rate, offset))
}

/// Replaces decays by a sum and a product, and returns the weights that the products read.
pub(super) fn plain_decay(graph: &mut Graph, nodes: &[usize]) -> Vec<WeightId> {
    let mut nodes = nodes.to_vec();
    nodes.sort_unstable();
    let mut rates = Vec::new();
    for n in nodes.into_iter().rev() {
        let Some((rate, offset)) = graph.nodes.get(n).and_then(|node| decay(graph, node)) else {
            continue;
        };
        let from = graph.nodes[n].inputs[0];
        let Value { shape, .. } = &graph.values[from.0];
        let shape = shape.clone();
        let sizes = shape.iter().filter_map(|size| i64::try_from(*size).ok());
        let of = [("shape", Scalar::List(sizes.map(Scalar::Int).collect()))];
        let sum = insert(graph, n, WEIGHT_ADD, vec![from], shape, &of);
        graph.nodes[n].weights.insert("weight".to_owned(), offset);
        graph.values[sum.0].dtype = DtypeRule::Fixed(Dtype::F32);
        let node = &mut graph.nodes[n + 1];
        node.op = WEIGHT_SCALE.into();
        node.inputs = vec![sum];
        node.weights = [("weight".to_owned(), rate)].into();
        node.attrs = of.map(|(key, value)| (key.to_owned(), value)).into();
        rates.push(rate);
    }
    rates
}

/// Puts an op before a node and returns its result, of the dtype of its first input.
fn insert(
    graph: &mut Graph,
    at: usize,
    op: &str,
    inputs: Vec<ValueId>,
    shape: Vec<usize>,
    attrs: &[(&str, Scalar)],
) -> ValueId {
    let result = ValueId(graph.values.len());
    let first = inputs.first().map(|input| &graph.values[input.0]);
    let (name, dtype) = first
        .map_or((String::new(), DtypeRule::Activation), |value| (value.name.clone(), value.dtype));
    graph.values.push(Value { name, shape, dtype, tap: None });
    let before = &graph.nodes[at];
    let node = Node {
        op: op.into(),
        inputs,
        weights: BTreeMap::new(),
        state: None,
        rope: None,
        attrs: attrs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect(),
        outputs: vec![result],
        layer: before.layer,
        at: before.at.clone(),
    };
    graph.nodes.insert(at, node);
    for layer in &mut graph.layers {
        let (from, to) = &mut layer.nodes;
        *from += usize::from(*from > at);
        *to += usize::from(*to > at);
    }
    graph.head += usize::from(graph.head > at);
    result
}

/// Returns edits of f32 runs in which ops compute in fewer bits: their results, and their inputs too.
pub(super) fn narrow(graph: &Graph, suspects: &Suspects, clues: &Clues) -> Vec<Candidate> {
    if !clues.foreign || clues.dtype != Some(Dtype::F32) {
        return Vec::new();
    }
    let mut all = Vec::new();
    for (op, nodes) in kinds(graph, |node| !node.op.is(Trait::Chooses)) {
        let all_scopes = scopes(graph, &nodes, suspects);
        let calls = all_scopes.into_iter().filter(|scope| {
            let first = scope.nodes.first().map(|n| call_range(graph, *n));
            let alike = nodes.iter().filter(|n| Some(call_range(graph, **n)) == first).count();
            scope.nodes.len() == nodes.len() || scope.nodes.len() == alike
        });
        for scope in calls {
            for dtype in NARROW {
                for (inputs, way) in [(false, "result of"), (true, "inputs and result of")] {
                    let words = format!("{way} `{op}` rounded to {dtype}");
                    let change = Change::Narrow { nodes: scope.nodes.clone(), dtype, inputs };
                    let place = scope.place.clone();
                    all.push(Candidate::Edit(Edit { words, place, change }));
                }
            }
        }
    }
    all
}

/// Returns the range of the call in the spec that a node is of.
fn call_range(graph: &Graph, n: usize) -> (usize, usize) {
    let at = &graph.nodes[n].at;
    (at.start, at.end)
}

/// Rounds the results of nodes, and their inputs if `with_inputs`.
pub(super) fn round(graph: &mut Graph, nodes: &[usize], dtype: Dtype, with_inputs: bool) {
    let rule = DtypeRule::Fixed(dtype);
    let mut nodes = nodes.to_vec();
    nodes.sort_unstable();
    for mut n in nodes.into_iter().rev() {
        let Some(node) = graph.nodes.get(n) else { continue };
        let inputs = node.inputs.clone();
        let outputs = node.outputs.clone();
        for value in outputs {
            graph.values[value.0].dtype = rule;
        }
        for (input, value) in inputs.into_iter().enumerate().filter(|_| with_inputs) {
            let shape = graph.values[value.0].shape.clone();
            let one = [("s", Scalar::Float(1.0)), ("round", Scalar::Str("none".to_owned()))];
            let rounded = insert(graph, n, SCALE, vec![value], shape, &one);
            graph.values[rounded.0].dtype = rule;
            n += 1;
            graph.nodes[n].inputs[input] = rounded;
        }
    }
}
