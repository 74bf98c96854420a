//! A model as a GGUF file: its keys, its tensors, and how they are made of the model's weights.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;

use crate::diag::Finding;
use crate::graph::Weight;
use crate::scalar::Scalar;
use crate::spec::AbsentKey;
use crate::weight_map::{
    Pattern, StepError, WeightRule, WeightStep, gather, names_with_prefix, natural_order_key,
    shapes, without_numbers,
};

mod absent;
pub(crate) mod compare;
pub(crate) mod config;
pub(crate) mod differences;
mod file_metadata;
pub(crate) mod head;
mod idle;
mod known;

pub(crate) use config::AHEAD;
pub use config::{KeyTree, config_of, may_have_arch};
pub use differences::{differences, key_differences};
pub use file_metadata::FileMetadata;
pub use idle::IdleWeight;
pub(crate) use idle::split_at_layer;
pub use known::{applies_scale, is_known, knows_tensor};

/// The `gguf:` section of a spec, resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    /// `general.architecture`.
    pub arch: String,
    /// The pre-tokenizer, by llama.cpp's name for it.
    pub pre: Option<String>,
    /// Special tokens by kind and text, where the tokenizer's files leave a kind open.
    pub special: Vec<(String, String)>,
    /// Whole keys and what they hold, in order.
    pub metadata: Vec<(String, Scalar)>,
    /// Whole keys whose lists of integers have 64 bits each, without a sign.
    pub wide: BTreeSet<String>,
    /// Values that llama.cpp assumes for keys a file lacks, by the key's name below `arch.`.
    pub absent: IndexMap<String, AbsentKey>,
    /// Rules from weights to tensors. The rule's disk side is the model; the first match wins.
    pub rules: Vec<TensorRule>,
    /// Tensors of computed numbers: one axis, f32.
    pub tensors: Vec<(String, Vec<f32>)>,
    /// Whole keys that hold the numbers of weights: of those that fit a pattern, by number.
    pub scalars: Vec<(String, Pattern)>,
    /// Patterns of weights that the file leaves out.
    pub drop: Vec<Pattern>,
    /// Patterns of weights that layers compute without, `{i}` for the layer, and whether the file
    /// has zeros for those that a checkpoint lacks.
    pub idle: Vec<(Pattern, bool)>,
    /// The number of `nextn` layers that the file has behind the layers of the model.
    pub ahead: usize,
    /// Beginnings of the names of the head's weights that rules know as those of a layer, and how.
    pub aliases: Vec<(String, String)>,
    /// Properties that llama.cpp assumes of the architecture and this model lacks. llama.cpp would compute
    /// such a model otherwise than the reference does.
    pub doubts: Vec<String>,
    /// The first difference from the model that the inherited `arch` names, as a warning.
    pub unlike: Option<Box<Finding>>,
}

/// A rule that makes GGUF tensors from weights.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorRule {
    /// `disk` are the model's names, `weight` the file's.
    pub rule: WeightRule,
    /// The name of the type that it is kept in whatever the file is made for.
    pub ty: Option<String>,
}

/// Tensors that are made together.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorGroup {
    /// Places of the weights in the graph, in the order in which the steps take them.
    pub weights: Vec<usize>,
    /// Steps from weights to tensors.
    pub steps: Vec<WeightStep>,
    /// The tensors that the steps produce, by name and shape.
    pub tensors: Vec<(String, Vec<usize>)>,
    /// A fixed type.
    pub ty: Option<String>,
}

/// Reason that weights do not make the tensors of a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum TensorGroupError {
    #[error("`{tensor}` needs weights that the model lacks: {}", weights.join(", "))]
    MissingWeights { tensor: String, weights: Vec<String> },
    #[error("two weights would become `{tensor}`, one of them `{weight}`")]
    DuplicateTensor { tensor: String, weight: String },
    #[error("the steps for `{tensor}` give {found} tensors, and its pattern names {expected}")]
    TensorCount { tensor: String, found: usize, expected: usize },
    #[error("`{tensor}` cannot be made: {why}")]
    Steps { tensor: String, why: StepError },
    #[error(
        "weight `{weight}` has no place in the file{}; add a rule to `gguf: weights:` of the spec, or write \
         `gguf: ~` if llama.cpp has no such model",
        if *others == 0 { String::new() } else { format!(", nor have {others} of other layers,") }
    )]
    UnmappedWeight { weight: String, others: usize },
}

impl Gguf {
    /// Returns the tensors of the file with the weights that make them, or every fault that prevents that.
    pub fn groups(&self, weights: &[Weight]) -> Result<Vec<TensorGroup>, Vec<TensorGroupError>> {
        let known: Vec<_> = weights.iter().map(|weight| self.alias(&weight.name)).collect();
        let places: BTreeMap<String, usize> =
            known.iter().enumerate().map(|(n, name)| (name.to_string(), n)).collect();
        let mut groups = Vec::new();
        let mut faults = Vec::new();
        let mut homeless: IndexMap<String, Vec<&str>> = IndexMap::new();
        let mut used = BTreeSet::new();
        let mut names = BTreeSet::new();
        for (weight, name) in weights.iter().zip(&known) {
            if used.contains(name.as_ref()) || self.is_dropped(name) {
                continue;
            }
            let mapped = self.rules.iter().find_map(|rule| {
                let tensors = spread(&rule.rule, name)?;
                let gathered =
                    gather(&rule.rule, &tensors[0], |text| names_with_prefix(&places, text))?;
                Some((rule, tensors, gathered.names))
            });
            let Some((rule, tensors, sources)) = mapped else {
                homeless.entry(without_numbers(&weight.name)).or_default().push(&weight.name);
                continue;
            };
            let members: Option<Vec<usize>> =
                sources.iter().map(|name| places.get(name.as_str()).copied()).collect();
            let Some(members) = members else {
                let lacks = sources.iter().filter(|name| !places.contains_key(*name));
                let tensor = tensors[0].clone();
                let weights = lacks.cloned().collect();
                faults.push(TensorGroupError::MissingWeights { tensor, weights });
                used.insert(name.as_ref());
                continue;
            };
            used.extend(members.iter().map(|&n| known[n].as_ref()));
            let inputs = members.iter().map(|&n| weights[n].shape.clone()).collect();
            match shapes(&rule.rule.steps, inputs) {
                Ok(outputs) if outputs.len() == tensors.len() => {
                    for name in &tensors {
                        if !names.insert(name.clone()) {
                            let tensor = name.clone();
                            let weight = weight.name.clone();
                            faults.push(TensorGroupError::DuplicateTensor { tensor, weight });
                        }
                    }
                    let tensors = tensors.into_iter().zip(outputs).collect();
                    let steps = rule.rule.steps.clone();
                    groups.push(TensorGroup {
                        weights: members,
                        steps,
                        tensors,
                        ty: rule.ty.clone(),
                    });
                }
                Ok(outputs) => {
                    let expected = tensors.len();
                    let tensor = tensors[0].clone();
                    faults.push(TensorGroupError::TensorCount {
                        tensor,
                        found: outputs.len(),
                        expected,
                    });
                }
                Err(why) => {
                    faults.push(TensorGroupError::Steps { tensor: tensors[0].clone(), why });
                }
            }
        }
        faults.extend(homeless.values().map(|names| {
            let weight = names[0].to_owned();
            TensorGroupError::UnmappedWeight { weight, others: names.len() - 1 }
        }));
        if faults.is_empty() { Ok(groups) } else { Err(faults) }
    }

    /// Returns the keys that hold numbers of weights, and the places of those weights in order. Their
    /// numbers, one weight after the other, are a list of f32.
    pub fn scalar_weights(&self, weights: &[Weight]) -> Vec<(&str, Vec<usize>)> {
        let scalars = self.scalars.iter();
        scalars.map(|(key, pattern)| (key.as_str(), places_of(pattern, weights))).collect()
    }

    /// Returns the name that rules know a weight by.
    fn alias<'n>(&self, name: &'n str) -> Cow<'n, str> {
        let renamed = self.aliases.iter().find_map(|(from, to)| {
            name.strip_prefix(from.as_str()).map(|suffix| Cow::Owned(format!("{to}{suffix}")))
        });
        renamed.unwrap_or(Cow::Borrowed(name))
    }

    /// True if a weight is no tensor of the file.
    fn is_dropped(&self, name: &str) -> bool {
        let scalars = self.scalars.iter().map(|(_, pattern)| pattern);
        self.drop.iter().chain(scalars).any(|pattern| pattern.fit(name).is_some())
    }
}

/// Returns the places of the weights that fit a pattern, in the natural order of their names.
fn places_of(pattern: &Pattern, weights: &[Weight]) -> Vec<usize> {
    let places = weights.iter().enumerate();
    let fits = places.filter(|(_, weight)| pattern.fit(&weight.name).is_some());
    let mut places: Vec<usize> = fits.map(|(place, _)| place).collect();
    places.sort_by_key(|&place| natural_order_key(&weights[place].name));
    places
}

/// Returns the names in the file of everything that is made together with a weight.
fn spread(rule: &WeightRule, weight: &str) -> Option<Vec<String>> {
    let holes = rule.disk.fit(weight)?;
    rule.weight.spread(&holes)
}

#[cfg(test)]
mod tests;
