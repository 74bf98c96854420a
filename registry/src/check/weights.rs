//! A model's weights against the tensors that a checkpoint has: each there, each used.

use std::collections::{BTreeMap, BTreeSet};

use crate::diag::{Finding, Span};
use crate::graph::Weight;
use crate::graph::show;
use crate::model::Model;
use crate::suggest;
use crate::weight_map::{find_rule, names_with_prefix, shapes};

use super::fold::fold;

/// Names and shapes of a checkpoint's tensors.
type TensorShapes = BTreeMap<String, Vec<usize>>;

/// A mismatch of one weight; layers with the same mismatch are reported together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum WeightMismatch {
    Missing { expected: Vec<usize> },
    Shape { found: Vec<usize>, expected: Vec<usize> },
    Rule { why: String },
}

/// Checks that every weight exists with its shape, and that every tensor with data is used or ignored.
pub fn check_weights(model: &Model, checkpoint: &BTreeMap<String, Vec<usize>>) -> Vec<Finding> {
    let mut used = BTreeSet::new();
    let mut troubles = Vec::new();
    let mut places = BTreeMap::new();
    let head = if has_head(model, checkpoint) { head_weights(model) } else { Vec::new() };
    for weight in model.graph.weights.iter().chain(head) {
        if let Err((name, trouble)) = find(model, weight, checkpoint, &mut used) {
            places.entry(name.clone()).or_insert(&weight.at);
            troubles.push((name, trouble));
        }
    }
    let unused: Vec<&str> = checkpoint
        .keys()
        .map(String::as_str)
        .filter(|name| !used.contains(*name) && !model.passes_over(name))
        .filter(|name| !checkpoint[*name].contains(&0))
        .collect();
    // Of the names that differ by a layer's number, one is enough to compare with.
    let families = fold(unused.iter().map(|name| ((*name).to_owned(), ())));
    let spare: Vec<&str> = families.iter().map(|(names, ())| names.first.as_str()).collect();
    let mut findings: Vec<Finding> = fold(troubles)
        .into_iter()
        .map(|(names, trouble)| {
            let several = if names.count() > 1 {
                format!(" ({} tensors)", names.count())
            } else {
                String::new()
            };
            let close = match &trouble {
                WeightMismatch::Missing { expected } => {
                    nearest(&names.first, expected, &spare, checkpoint)
                }
                _ => None,
            };
            mismatch_finding(&trouble, &format!("`{names}`{several}"), places[&names.first], close)
        })
        .collect();
    findings.extend(unused_findings(model, &unused));
    findings
}

/// Counts the tensors that become weights of the right shape, and the weights and tensors without a
/// counterpart.
pub fn pairs(model: &Model, checkpoint: &BTreeMap<String, Vec<usize>>) -> (usize, usize) {
    let (used, lacking, spare) = matched(model, checkpoint);
    (used.len(), lacking.len() + spare.len())
}

/// Weights that no tensor is found for, and tensors that no weight is made of.
pub fn unmatched<'m>(
    model: &'m Model,
    checkpoint: &'m BTreeMap<String, Vec<usize>>,
) -> (Vec<&'m Weight>, Vec<&'m str>) {
    let (_, lacking, spare) = matched(model, checkpoint);
    (lacking, spare)
}

fn matched<'m>(
    model: &'m Model,
    checkpoint: &'m TensorShapes,
) -> (BTreeSet<String>, Vec<&'m Weight>, Vec<&'m str>) {
    let mut used = BTreeSet::new();
    let mut lacking = Vec::new();
    let head = if has_head(model, checkpoint) { head_weights(model) } else { Vec::new() };
    for weight in model.graph.weights.iter().chain(head) {
        let mut names = BTreeSet::new();
        match find(model, weight, checkpoint, &mut names) {
            Ok(()) => used.append(&mut names),
            Err(_) => lacking.push(weight),
        }
    }
    let names = checkpoint.keys().map(String::as_str);
    let spare = names.filter(|name| is_spare(name, model, checkpoint, &used)).collect();
    (used, lacking, spare)
}

/// True if a tensor has data that no weight uses, though nothing says to pass it over.
fn is_spare(name: &str, model: &Model, checkpoint: &TensorShapes, used: &BTreeSet<String>) -> bool {
    let counts = !used.contains(name) && !checkpoint[name].contains(&0);
    counts && model.tied_owner(name).is_none() && !model.passes_over(name)
}

/// Weights of the `nextn` head that the model itself does not have.
pub fn head_weights(model: &Model) -> Vec<&Weight> {
    let model_names: BTreeSet<&str> = model.graph.weights.iter().map(|w| w.name.as_str()).collect();
    let layers = model.nextn.iter().flat_map(|nextn| &nextn.layers);
    let mut weights = BTreeMap::new();
    for weight in layers.flat_map(|layer| &layer.graph.weights) {
        if !model_names.contains(weight.name.as_str()) {
            weights.entry(weight.name.as_str()).or_insert(weight);
        }
    }
    weights.into_values().collect()
}

/// True if a checkpoint has any weight of the `nextn` head. Many checkpoints are shipped without the head,
/// whatever their config says. A checkpoint with a part of the head must have all of it.
pub fn has_head(model: &Model, checkpoint: &BTreeMap<String, Vec<usize>>) -> bool {
    head_weights(model).into_iter().any(|weight| !is_missing(model, weight, checkpoint))
}

/// True if the checkpoint has no tensor for a weight.
fn is_missing(model: &Model, weight: &Weight, checkpoint: &TensorShapes) -> bool {
    let result = find(model, weight, checkpoint, &mut BTreeSet::new());
    matches!(result, Err((_, WeightMismatch::Missing { .. })))
}

/// Looks a weight up by the first rule that names it and of whose tensors there are any, or
/// under its own name.
fn find(
    model: &Model,
    weight: &Weight,
    checkpoint: &TensorShapes,
    used: &mut BTreeSet<String>,
) -> Result<(), (String, WeightMismatch)> {
    let chosen = find_rule(
        &model.rules,
        weight,
        |text: &str| names_with_prefix(checkpoint, text),
        |name| checkpoint.get(name).cloned(),
    );
    let gathered = chosen.map(|(number, gathered)| (&model.rules[number], gathered));
    let shape = match gathered {
        None => {
            let stored =
                checkpoint.get(&weight.name).ok_or_else(|| missing(&weight.name, weight))?;
            used.insert(weight.name.clone());
            stored.clone()
        }
        Some((rule, gathered)) => {
            let mut inputs = Vec::new();
            for name in &gathered.names {
                inputs.push(checkpoint.get(name).ok_or_else(|| missing(name, weight))?.clone());
            }
            let mut outputs =
                shapes(&rule.steps, inputs).map_err(|e| broken_rule(weight, e.to_string()))?;
            if gathered.output >= outputs.len() {
                let why = format!(
                    "its steps give {} tensors, and this is number {}",
                    outputs.len(),
                    gathered.output + 1
                );
                return Err(broken_rule(weight, why));
            }
            used.extend(gathered.names);
            outputs.swap_remove(gathered.output)
        }
    };
    if shape == weight.shape {
        return Ok(());
    }
    let expected = weight.shape.clone();
    Err((weight.name.clone(), WeightMismatch::Shape { found: shape, expected }))
}

/// Returns the mismatch of a weight whose tensor `name` is not in the checkpoint.
fn missing(name: &str, weight: &Weight) -> (String, WeightMismatch) {
    (name.to_owned(), WeightMismatch::Missing { expected: weight.shape.clone() })
}

/// Returns the mismatch of a weight whose rule cannot make it.
fn broken_rule(weight: &Weight, why: String) -> (String, WeightMismatch) {
    (weight.name.clone(), WeightMismatch::Rule { why })
}

fn mismatch_finding(
    trouble: &WeightMismatch,
    names: &str,
    at: &Span,
    close: Option<&str>,
) -> Finding {
    match trouble {
        WeightMismatch::Missing { expected } => {
            let finding = Finding::error(at, format!("the checkpoint has no tensor {names}"))
                .label(format!("named here, expected as {}", show(expected)));
            let suffix = if at.source.is_builtin() { " of your spec" } else { "" };
            finding.help(match close {
                Some(close) if suffix.is_empty() => format!("it has `{close}`, which nothing uses; rename it here, or add a rule to `weights:`"),
                Some(close) => format!("it has `{close}`, which nothing uses; add a rule to `weights:`{suffix}"),
                None if suffix.is_empty() => "correct the name, or add a rule to `weights:`".to_owned(),
                None => format!("override the function that names it, or add a rule to `weights:`{suffix}"),
            })
        }
        WeightMismatch::Shape { found, expected } => {
            Finding::error(at, format!("the tensor {names} has the shape {}", show(found)))
                .label(format!("the spec makes it {}", show(expected)))
                .help(if at.source.is_builtin() {
                    "override in your spec the dims that the sizes of this call are made of, or the function it is in"
                } else {
                    "correct the sizes of this call, or the dims they are made of"
                })
        }
        WeightMismatch::Rule { why } => Finding::error(
            at,
            format!("the weight {names} cannot be made by its rule in `weights:`"),
        )
        .label(why.clone()),
    }
}

/// Returns an unused tensor that is likely meant: the same name under another prefix, or a misspelled one.
fn nearest<'c>(
    name: &str,
    shape: &[usize],
    unused: &[&'c str],
    checkpoint: &'c TensorShapes,
) -> Option<&'c str> {
    let same_shape = unused.iter().copied().filter(|other| checkpoint[*other] == shape);
    let suffix = unused.iter().copied().find(|other| {
        other.strip_suffix(name).is_some_and(|prefix| prefix.ends_with('.'))
            || name.strip_suffix(other).is_some_and(|prefix| prefix.ends_with('.'))
    });
    suffix
        .or_else(|| suggest::closest(name, same_shape.clone()))
        .or_else(|| same_shape.clone().find(|other| last_two(other) == last_two(name)))
        .or_else(|| suggest::closest(name, unused.iter().copied()))
}

/// Returns the last two segments of a tensor's name, in reverse order.
fn last_two(name: &str) -> String {
    name.rsplit('.').take(2).collect::<Vec<_>>().join(".")
}

/// Findings about tensors that nothing uses. A tied weight that is stored as well is common,
/// and passed over by the reference too.
fn unused_findings(model: &Model, unused: &[&str]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = unused
        .iter()
        .filter_map(|name| Some((name, model.tied_owner(name)?)))
        .map(|(name, owner)| {
            Finding::unplaced(format!("the checkpoint stores `{name}`, which the config ties to `{owner}`"))
                .warning()
                .help("the stored tensor is passed over; if the two differ, the config is wrong about the tie")
        })
        .collect();
    let untied = unused.iter().filter(|name| model.tied_owner(name).is_none());
    let untied = untied.map(|name| ((*name).to_owned(), ()));
    findings.extend(fold(untied).into_iter().map(|(names, ())| {
        let several =
            if names.count() > 1 { format!(" ({} tensors)", names.count()) } else { String::new() };
        Finding::unplaced(format!("nothing uses the tensor `{names}`{several} of the checkpoint"))
            .help(format!(
                "use it in the spec of `{}`, or list it under `ignore: weights:`",
                model.name
            ))
    }));
    findings
}
