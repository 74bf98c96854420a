//! Names and shapes of a model's weights in the checkpoint that transformers would save.
//!
//! The rules of a spec lead from any known layout to the weights. Of those about a weight, the first that only
//! renames or rearranges it is the saved layout; shortened names and stacks of experts are other ways to store
//! the same, except for experts that the spec lists as one tensor (`quant: keep`).

use std::collections::BTreeMap;

use registry::graph::Weight;
use registry::model::Model;
use registry::weight_map::{WeightRule, WeightStep, gather, inverse, shapes};

use crate::flow::Flow;
use crate::gguf_weights::WeightFault;
use formats::shown;

/// Tensor of a checkpoint, made of weights.
#[derive(Debug, Clone)]
pub(super) struct DiskTensor {
    /// Weights by number, in the order in which the steps give them.
    pub(super) weights: Vec<usize>,
    /// Steps from the tensors of the rule to the weights, with the shapes of those tensors.
    steps: Vec<WeightStep>,
    inputs: Vec<Vec<usize>>,
    /// Index of this tensor among those of the rule.
    part: usize,
}

impl DiskTensor {
    /// Makes the tensor of the values of its weights.
    pub(super) fn made_of<'f>(&self, flows: Vec<Flow<'f>>) -> Result<Flow<'f>, WeightFault> {
        let tensors = match &self.inputs[..] {
            [one] => vec![Flow::undo(&self.steps, one.clone(), flows)?],
            several => Flow::run(&inverse(&self.steps, several.to_vec())?, flows)?,
        };
        tensors
            .into_iter()
            .nth(self.part)
            .ok_or_else(|| WeightFault::NoPart { tensor: format!("number {}", self.part) })
    }
}

/// Returns the tensors of a checkpoint that holds the weights whose numbers are `stored`.
pub(super) fn disk_tensors(
    model: &Model,
    model_weights: &[Weight],
    stored: &[usize],
) -> Result<BTreeMap<String, DiskTensor>, WeightFault> {
    // Weights that one rule makes of the same tensors, by their place among its results.
    let mut together: BTreeMap<(usize, Vec<String>), BTreeMap<usize, usize>> = BTreeMap::new();
    let mut alone = Vec::new();
    for &n in stored {
        match saved_by(model, &model_weights[n]) {
            Some((rule, names, output)) => {
                together.entry((rule, names)).or_default().insert(output, n);
            }
            None => alone.push(n),
        }
    }
    let mut tensors = BTreeMap::new();
    for ((number, names), members) in together {
        let weights: Vec<usize> = members.values().copied().collect();
        let shapes: Vec<_> = weights.iter().map(|&n| model_weights[n].shape.clone()).collect();
        let rule = &model.rules[number];
        let is_complete = members.keys().copied().eq(0..members.len());
        let Some(inputs) = inputs_of(rule, names.len(), &shapes).filter(|_| is_complete) else {
            alone.extend(weights);
            continue;
        };
        for (part, name) in names.into_iter().enumerate() {
            let tensor = DiskTensor {
                weights: weights.clone(),
                steps: rule.steps.clone(),
                inputs: inputs.clone(),
                part,
            };
            insert(&mut tensors, name, tensor, model_weights)?;
        }
    }
    for n in alone {
        let name = &model_weights[n].name;
        let name = model.module_of(name).unwrap_or_else(|| name.clone());
        let weights = vec![n];
        let inputs = vec![model_weights[n].shape.clone()];
        let tensor = DiskTensor { weights, steps: Vec::new(), inputs, part: 0 };
        insert(&mut tensors, name, tensor, model_weights)?;
    }
    Ok(tensors)
}

fn insert(
    tensors: &mut BTreeMap<String, DiskTensor>,
    name: String,
    tensor: DiskTensor,
    model_weights: &[Weight],
) -> Result<(), WeightFault> {
    let weight =
        tensor.weights.first().map_or_else(String::new, |&n| shown(&model_weights[n].name));
    let label = shown(&name);
    match tensors.insert(name, tensor) {
        None => Ok(()),
        Some(_) => Err(WeightFault::SameName { tensor: label, weight }),
    }
}

/// Returns the rule by which a weight is saved, the names of the rule's tensors, and the weight's place among the
/// results; none if the weight is saved under its own name.
fn saved_by(model: &Model, weight: &Weight) -> Option<(usize, Vec<String>, usize)> {
    if model.wrapped.is_some() {
        return None;
    }
    let stacked = model.quant.keep_reason(&weight.name).is_some();
    model.rules.iter().enumerate().find_map(|(number, rule)| {
        let gathered = gather(rule, &weight.name, |_| std::iter::empty())?;
        let first = gathered.names.first()?;
        let shortened = rule.steps.is_empty() && weight.name.ends_with(&format!(".{first}"));
        let decodes = rule.steps.first() == Some(&WeightStep::Mxfp4);
        let saved = !shortened && !decodes && (stacked || !stacks(rule, &weight.name));
        saved.then_some((number, gathered.names, gathered.output))
    })
}

/// True if a rule takes a weight from a tensor of several experts: a number of the name is in the weight's alone.
fn stacks(rule: &WeightRule, weight: &str) -> bool {
    let holes = rule.weight.fit(weight).unwrap_or_default();
    let on_disk = rule.disk.holes();
    holes
        .keys()
        .filter(|hole: &&String| !hole.contains('|') && !hole.starts_with('*'))
        .any(|hole| !on_disk.contains(hole))
}

/// Returns the shapes of the tensors from which a rule makes weights of these shapes; none if no usual layout fits.
fn inputs_of(rule: &WeightRule, count: usize, weights: &[Vec<usize>]) -> Option<Vec<Vec<usize>>> {
    let first = weights.first()?;
    let mut layouts = vec![first.clone()];
    if let [size] = first[..] {
        layouts.push(vec![1, size]);
    }
    let all = weights.len();
    if let [rows, row] = first[..] {
        layouts.push(vec![row, rows]);
        layouts.push(vec![rows / count.max(1), row]);
        layouts.push(vec![rows * all, row]);
        for parts in 1..=4 {
            if all.is_multiple_of(parts) {
                let outer = all / parts;
                layouts.push(vec![outer, rows * parts, row]);
                layouts.push(vec![outer, row, rows * parts]);
            }
        }
    } else if let [rows, ..] = first[..] {
        let inner = &first[1..];
        layouts.push([&[rows / count.max(1)], inner].concat());
        for parts in 1..=4 {
            if all.is_multiple_of(parts) {
                layouts.push([&[all / parts, rows * parts], inner].concat());
            }
        }
    }
    layouts
        .into_iter()
        .find(|layout: &Vec<usize>| {
            shapes(&rule.steps, vec![layout.clone(); count]).is_ok_and(|outputs| outputs == weights)
        })
        .map(|layout| vec![layout; count])
}
