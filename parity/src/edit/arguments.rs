//! Edits of op arguments.

use std::collections::BTreeSet;

use registry::graph::{Graph, Node};
use registry::model::Model;
use registry::ops::{OpSet, Param, ParamKind};
use registry::scalar::Scalar;

use super::apply::bias_of;
use super::knobs::{Knob, KnobTarget};
use super::number::text;
use super::scope::{EditScope, Suspects, kinds, scopes};
use super::{Candidate, Change, Clues, Edit};

/// Epsilons of norms in released models.
const EPSILONS: [f64; 8] = [1e-5, 1e-6, 1e-12, 1e-8, 1e-7, 1e-10, 1e-4, 0.0];

/// Caps of scores and logits in released models.
const CAPS: [f64; 4] = [50.0, 30.0, 20.0, 15.0];

/// Returns the edits of every argument of the suspects' ops.
pub(super) fn candidates(
    model: &Model,
    ops: &OpSet,
    suspects: &Suspects,
    clues: &Clues,
) -> Vec<Candidate> {
    let graph = &model.graph;
    let rounds = clues.dtype.is_some_and(|dtype| dtype != registry::dtype::Dtype::F32);
    let mut all = Vec::new();
    for (op, nodes) in kinds(graph, |_| true) {
        if !nodes.iter().any(|n| suspects.first.contains(n)) {
            continue;
        }
        let keys: BTreeSet<&str> =
            nodes.iter().flat_map(|n| graph.nodes[*n].attrs.keys().map(String::as_str)).collect();
        for key in keys {
            let param = param(ops, &op, key);
            if param.is_some_and(|param| param.neutral) && !rounds || key == "window" {
                continue;
            }
            let group: Vec<usize> = nodes
                .iter()
                .copied()
                .filter(|n| {
                    graph.nodes[*n].attrs.contains_key(key) && is_free(graph, *n, key, param)
                })
                .collect();
            let values = values(model, ops, &group, (&op, key), param);
            for scope in scopes(graph, &group, suspects) {
                let edits = values.iter().filter_map(|value| set(graph, &scope, key, value));
                all.extend(edits.map(Candidate::Edit));
                all.extend(steps(graph, &scope, key, param).into_iter().map(Candidate::Edit));
                all.extend(knobs(graph, &scope, key, param).into_iter().map(Candidate::Knob));
            }
        }
    }
    all
}

fn param<'a>(ops: &'a OpSet, op: &str, key: &str) -> Option<&'a Param> {
    ops.get(op).and_then(|rule| rule.signature().params.iter().find(|param| param.name == key))
}

/// True if an argument can have another value without other shapes or weights.
fn is_free(graph: &Graph, n: usize, key: &str, param: Option<&Param>) -> bool {
    let node = &graph.nodes[n];
    if key == "bias" && node.attrs.get(key) == Some(&Scalar::Bool(false)) {
        return bias_of(graph, node).is_some();
    }
    is_editable(graph, node, key, param)
}

/// False for arguments that name shapes or taps, and for those that require missing weights.
pub(crate) fn is_editable(graph: &Graph, node: &Node, key: &str, param: Option<&Param>) -> bool {
    let on = node.attrs.get(key) == Some(&Scalar::Bool(true));
    match key {
        "window" | "chunked" => {
            node.attrs.get("window").is_some_and(|w| *w != Scalar::Null) && key == "chunked"
        }
        "plus_one" => node.weights.contains_key("weight"),
        "bias" => on && node.weights.contains_key("bias"),
        "tap" | "weight" | "per_head" | "salience_bias" => false,
        "alpha" | "limit" | "scale" | "softcap" => true,
        _ if matches!(param.map(|p| p.kind), Some(ParamKind::Dim | ParamKind::Int)) => {
            let number = node.attrs.get(key).and_then(Scalar::as_usize);
            let values =
                node.inputs.iter().chain(&node.outputs).map(|value| &graph.values[value.0].shape);
            let weights = node.weights.values().map(|weight| &graph.weights[weight.0].shape);
            let states = node
                .state
                .iter()
                .flat_map(|s| graph.states[s.0].parts.iter().map(|part| &part.shape));
            let shapes: BTreeSet<usize> =
                values.chain(weights).chain(states).flatten().copied().collect();
            // A count of weights (those of experts) is a shape, too.
            let many = node.weights.len();
            number.is_some_and(|number| {
                !shapes.contains(&number) && (many < 3 || !many.is_multiple_of(number.max(1)))
            })
        }
        _ => true,
    }
}

/// Returns candidate values of an argument: those in released models, in this graph, or among the dims of
/// the config.
fn values(
    model: &Model,
    ops: &OpSet,
    group: &[usize],
    (op, key): (&str, &str),
    param: Option<&Param>,
) -> Vec<Scalar> {
    let mut all = Vec::new();
    let graph = &model.graph;
    let nullable = param.is_some_and(|param| param.default == Some(Scalar::Null));
    match param.map(|param| param.kind) {
        Some(ParamKind::Flag) => all.extend([Scalar::Bool(true), Scalar::Bool(false)]),
        Some(ParamKind::Word(words)) => {
            all.extend(words.iter().map(|word| Scalar::Str((*word).to_owned())));
        }
        Some(ParamKind::Float) | None => {
            let in_graph = graph.nodes.iter().filter_map(|node| node.attrs.get(key));
            let in_graph = in_graph.filter_map(Scalar::as_f64);
            let floats: Vec<f64> = if key == "eps" {
                EPSILONS.into_iter().chain(in_graph).collect()
            } else {
                let dims = model.dims.values().filter_map(|value| match value {
                    Scalar::Float(x) => Some(*x),
                    _ => None,
                });
                let caps = if nullable { &CAPS[..] } else { &[] };
                let one = if nullable { None } else { Some(neutral(ops, op, key)) };
                let sizes = if nullable { BTreeSet::new() } else { sizes(graph, group) };
                let sizes = sizes.into_iter().flat_map(|size| {
                    let size = size as f64;
                    [size.powf(-0.5), 1.0 / size, size.sqrt()]
                });
                one.into_iter()
                    .chain(in_graph)
                    .chain(dims.filter(|x| *x != 0.0))
                    .chain(caps.iter().copied())
                    .chain(sizes)
                    .collect()
            };
            for x in floats {
                if !all.contains(&Scalar::Float(x)) {
                    all.push(Scalar::Float(x));
                }
            }
        }
        _ => {}
    }
    if nullable {
        all.insert(0, Scalar::Null);
    }
    all
}

/// The value with which an op gives back its input, or 1.
fn neutral(ops: &OpSet, op: &str, key: &str) -> f64 {
    let identity = ops.get(op).and_then(|op| op.signature().identity).unwrap_or_default();
    identity.iter().find(|(name, _)| *name == key).map_or(1.0, |(_, value)| *value)
}

/// Returns the sizes of the rows that nodes read and make.
fn sizes(graph: &Graph, group: &[usize]) -> BTreeSet<usize> {
    let inputs = group.iter().filter_map(|n| graph.nodes[*n].inputs.first());
    let outputs = group.iter().flat_map(|n| &graph.nodes[*n].outputs);
    let shapes = inputs.chain(outputs).map(|value| &graph.values[value.0].shape);
    shapes.filter_map(|shape| shape.last()).copied().collect()
}

/// Sets an argument in a scope, unless it already has the value.
fn set(graph: &Graph, scope: &EditScope, key: &str, value: &Scalar) -> Option<Edit> {
    let values: Vec<(usize, Scalar)> = scope
        .nodes
        .iter()
        .filter(|n: &&usize| match (graph.nodes[**n].attrs.get(key), value) {
            (Some(old), Scalar::Float(x)) => old.as_f64() != Some(*x),
            (old, value) => old.is_some_and(|old| old != value),
        })
        .map(|n| (*n, value.clone()))
        .collect();
    let first = &graph.nodes[values.first()?.0];
    let was = first.attrs.get(key)?.clone();
    let op = first.op.as_str();
    let nodes: Vec<usize> = values.iter().map(|(n, _)| *n).collect();
    let words = words(op, key, &was, value);
    let place = super::scope::place(graph, &nodes);
    Some(Edit { words, place, change: Change::Argument { key: key.to_owned(), values } })
}

/// Describes the new and the old value of an argument.
fn words(op: &str, key: &str, was: &Scalar, value: &Scalar) -> String {
    let now = text(value);
    let old = text(was);
    match (key, value) {
        ("plus_one", Scalar::Bool(true)) => {
            format!("`{op}` with an offset of 1 on its weight (`plus_one`)")
        }
        ("plus_one", _) => format!("`{op}` without the offset of 1 on its weight (`plus_one`)"),
        (_, Scalar::Bool(true)) => format!("`{op}` with `{key}`"),
        (_, Scalar::Bool(false)) => format!("`{op}` without `{key}`"),
        (_, Scalar::Null) => format!("`{key}` of `{op}` left out (here {old})"),
        _ => format!("`{key}` of `{op}` = {now} instead of {old}"),
    }
}

/// Returns edits to the next larger and smaller integer.
fn steps(graph: &Graph, scope: &EditScope, key: &str, param: Option<&Param>) -> Vec<Edit> {
    if !matches!(param.map(|param| param.kind), Some(ParamKind::Dim | ParamKind::Int)) {
        return Vec::new();
    }
    [1, -1].into_iter().filter_map(|by| step(graph, scope, key, by)).collect()
}

/// Returns the edit that adds a number to an integer argument, in the nodes in which the sum is not negative.
fn step(graph: &Graph, scope: &EditScope, key: &str, by: i64) -> Option<Edit> {
    let values: Vec<(usize, Scalar)> = scope
        .nodes
        .iter()
        .filter_map(|n: &usize| match graph.nodes[*n].attrs.get(key) {
            Some(Scalar::Int(old)) if old + by >= 0 => Some((*n, Scalar::Int(old + by))),
            _ => None,
        })
        .collect();
    let (n, now) = values.first()?;
    let node = &graph.nodes[*n];
    let words = words(node.op.as_str(), key, node.attrs.get(key)?, now);
    let change = Change::Argument { key: key.to_owned(), values };
    Some(Edit { words, place: scope.place.clone(), change })
}

/// Returns families of edits with a factor on a value, on a whole list, or on its first value.
fn knobs(graph: &Graph, scope: &EditScope, key: &str, param: Option<&Param>) -> Vec<Knob> {
    let values: Vec<(usize, Scalar)> = scope
        .nodes
        .iter()
        .filter_map(|n| Some((*n, graph.nodes[*n].attrs.get(key)?.clone())))
        .filter(|(_, value)| match value {
            Scalar::List(items) => items.iter().any(|x| x.as_f64().is_some_and(|x| x != 0.0)),
            value => value.as_f64().is_some_and(|x| x != 0.0),
        })
        .collect();
    let Some((first, _)) = values.first() else { return Vec::new() };
    let op = graph.nodes[*first].op.to_string();
    match param.map(|param| param.kind) {
        Some(ParamKind::Float) | None => {
            let target = KnobTarget::Number { op, key: key.to_owned(), values };
            vec![Knob { place: scope.place.clone(), target }]
        }
        Some(ParamKind::Numbers) => [false, true]
            .map(|first| {
                let target = KnobTarget::List {
                    op: op.clone(),
                    key: key.to_owned(),
                    values: values.clone(),
                    first,
                };
                Knob { place: scope.place.clone(), target }
            })
            .into(),
        _ => Vec::new(),
    }
}
