//! Finds the weights of a model in a checkpoint.
//!
//! Most weights are a tensor of the same name, or a range of one, and are read from the memory map. A
//! weight that the spec's weight map reorders is computed on demand. It is either cached, or computed anew
//! each time, as for experts that would fill the memory.

mod flows;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::OnceLock;

use registry::dtype::Dtype;
use registry::graph::{Weight, WeightId};
use registry::weight_map::{self, GatheredTensors, WeightRule, names_with_prefix};

use crate::checkpoint::{self, Checkpoint, Rounding};
use crate::flow::{self, Flow};
use crate::load::WeightView;
pub use flows::{WeightFlow, flows, idle};
use formats::safetensors::FileDtype;
use formats::shown;

/// Reason why a weight cannot be read from a checkpoint.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    #[error(
        "`{}` has no tensor `{tensor}`{}; expected shape {shape:?}; \
         correct the name in the spec, or add a rule to its `weights:`",
        root.display(), purpose(tensor, weight)
    )]
    Missing { root: PathBuf, tensor: String, weight: String, shape: Vec<usize> },
    #[error(
        "weight `{weight}` from `{}` has shape {found:?}; the spec expects {expected:?}; \
         correct the dims or the op in the spec", root.display()
    )]
    Shape { root: PathBuf, weight: String, found: Vec<usize>, expected: Vec<usize> },
    #[error(
        "the rule `{rule}` cannot make weight `{weight}` from `{}`: {why}; \
         correct the rule in the spec", root.display()
    )]
    Rule { root: PathBuf, weight: String, rule: String, why: Box<flow::Error> },
    #[error(
        "`{}` has what `{tensors}` multiply rounded in different ways, and the model multiplies by \
         them as one; expected one way: run it without rounding", root.display()
    )]
    Rounded { root: PathBuf, tensors: String },
}

fn purpose(tensor: &str, weight: &str) -> String {
    if tensor == weight { String::new() } else { format!(", which weight `{weight}` is made of") }
}

/// Location of a weight's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WeightLocation {
    /// Range of a tensor's bytes.
    View {
        /// Name of the tensor in the checkpoint.
        tensor: String,
        /// Index of the file in [`Checkpoint::files`].
        file: usize,
        /// Byte range of the weight in that file, `begin..end`.
        range: (u64, u64),
    },
    /// Computed by the weight map.
    Computed(WeightRecipe),
}

/// Inputs and rule from which the weight map computes a weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightRecipe {
    /// Index of the rule; none for a tensor stored as codes and scales.
    rule: Option<usize>,
    /// Names of the input tensors, in order.
    tensors: Vec<String>,
    /// Index of the weight among the rule's outputs.
    output: usize,
}

/// Weight that was found in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocatedWeight {
    /// Dtype of the values.
    pub dtype: FileDtype,
    /// Shape of the weight in the model.
    pub shape: Vec<usize>,
    /// Location of the bytes.
    pub source: WeightLocation,
    /// Places of the values, if the weight is a computed matrix that is a part of a transposed tensor.
    pub strided: Option<StridedRange>,
}

/// Place of a matrix whose values lie at constant distances in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StridedRange {
    /// Index of the file in [`Checkpoint::files`].
    file: usize,
    /// Byte range from the first value to the last.
    range: (u64, u64),
    /// Number of values between rows, and between columns.
    strides: [usize; 2],
}

/// Matrix whose values lie at constant distances in memory.
#[derive(Debug, Clone, Copy)]
pub struct StridedMatrix<'a> {
    /// Dtype of the values.
    pub dtype: FileDtype,
    /// Bytes from the first value to the last.
    pub bytes: &'a [u8],
    /// Number of values between rows, and between columns.
    pub strides: [usize; 2],
}

/// Weights of a model, in the order of its graph.
#[derive(Debug)]
pub struct CheckpointWeights {
    checkpoint: Checkpoint,
    found: Vec<LocatedWeight>,
    /// Cached computed weights, by weight.
    made: Vec<OnceLock<Vec<u8>>>,
    rules: Vec<WeightRule>,
    used: BTreeSet<String>,
    /// The dtype that the reference loads each weight in, if it is known.
    loaded: Vec<Dtype>,
}

impl CheckpointWeights {
    /// Finds every weight under its own name. No bytes are read.
    pub fn new(checkpoint: Checkpoint, weights: &[Weight]) -> Result<Self, Error> {
        Self::with_rules(checkpoint, weights, &[])
    }

    /// Finds every weight by the first rule that names it and has a tensor in the checkpoint. Other weights
    /// are found under their own name. No bytes are read.
    pub fn with_rules(
        checkpoint: Checkpoint,
        weights: &[Weight],
        rules: &[WeightRule],
    ) -> Result<Self, Error> {
        let mut used = BTreeSet::new();
        let mut located = Vec::with_capacity(weights.len());
        for weight in weights {
            let one = find(&checkpoint, weight, rules, &mut used)?;
            if one.shape != weight.shape {
                return Err(Error::Shape {
                    root: checkpoint.root().into(),
                    weight: shown(&weight.name),
                    found: one.shape,
                    expected: weight.shape.clone(),
                });
            }
            located.push(one);
        }
        let computed = located.iter().map(|_| OnceLock::new()).collect();
        Ok(Self {
            checkpoint,
            found: located,
            made: computed,
            rules: rules.to_vec(),
            used,
            loaded: Vec::new(),
        })
    }

    /// Sets the dtypes that the reference loads the weights in, in which its class adds numbers to them.
    #[must_use]
    pub fn loaded_in(mut self, dtypes: Vec<Dtype>) -> Self {
        self.loaded = dtypes;
        self
    }

    /// Returns a weight, ready to be read. A weight that the weight map computes is cached.
    ///
    /// # Panics
    ///
    /// If the id is not of the graph whose weights were wanted.
    pub fn view(&self, id: WeightId) -> Result<WeightView<'_>, Error> {
        let weight = &self.found[id.0];
        let bytes = match &weight.source {
            WeightLocation::View { file, range, .. } => self.checkpoint.slice(*file, *range)?,
            WeightLocation::Computed(recipe) => {
                let held = &self.made[id.0];
                if held.get().is_none() {
                    let bytes = self.flow(id, recipe)?.bytes();
                    held.get_or_init(|| bytes);
                }
                held.get().map_or(&[][..], Vec::as_slice)
            }
        };
        Ok(WeightView { dtype: weight.dtype, shape: &weight.shape, bytes })
    }

    /// Computes the values of a weight that is not a range of a file, without caching them; none if it is a
    /// range. Only the required inputs are read.
    ///
    /// # Panics
    ///
    /// If the id is not of the graph whose weights were wanted.
    pub fn read(&self, id: WeightId) -> Result<Option<Vec<f32>>, Error> {
        let WeightLocation::Computed(recipe) = &self.found[id.0].source else { return Ok(None) };
        let flow = self.flow(id, recipe)?;
        flow.numeric().map_err(|why| self.broken(recipe, why))?;
        let mut numbers = vec![0.0; flow.len()];
        flow.read(0, &mut numbers);
        Ok(Some(numbers))
    }

    /// Returns a computed matrix in place, if it is a part of a transposed tensor of plain numbers.
    ///
    /// # Panics
    ///
    /// If the id is not of the graph whose weights were wanted.
    pub fn strided(&self, id: WeightId) -> Result<Option<StridedMatrix<'_>>, Error> {
        let weight = &self.found[id.0];
        let Some(StridedRange { file, range, strides }) = weight.strided else { return Ok(None) };
        let bytes = self.checkpoint.slice(file, range)?;
        Ok(Some(StridedMatrix { dtype: weight.dtype, bytes, strides }))
    }

    /// Returns the lazy result of a recipe.
    fn flow(&self, id: WeightId, recipe: &WeightRecipe) -> Result<Flow<'_>, Error> {
        let WeightRecipe { rule, tensors, output } = recipe;
        if let Some(rule) = rule.map(|rule| &self.rules[rule]) {
            return flows::computed_flow(
                &self.checkpoint,
                &rule.weight.text,
                rule,
                tensors,
                *output,
                self.loaded.get(id.0).copied(),
            );
        }
        let name = tensors.first().map_or("", String::as_str);
        Ok(self.checkpoint.flow(name)?)
    }

    fn broken(&self, recipe: &WeightRecipe, why: flow::Error) -> Error {
        let rule = recipe.rule.map(|rule| &self.rules[rule]);
        let weight = rule.map(|rule| &rule.weight.text).or(recipe.tensors.first());
        let text = rule.map_or_else(|| "codes and scales".to_owned(), flows::text);
        flows::broken(&self.checkpoint, weight.map_or("", String::as_str), &text, why)
    }

    /// Returns the input rounding of a weight, if the checkpoint defines one.
    ///
    /// # Panics
    ///
    /// If the id is not of the graph whose weights were wanted.
    pub fn rounding(&self, id: WeightId) -> Result<Option<Rounding>, Error> {
        let WeightLocation::Computed(recipe) = &self.found[id.0].source else { return Ok(None) };
        let all = recipe.tensors.iter().map(|name| self.checkpoint.rounding(name));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        let first = all.first().copied().flatten();
        if all.iter().all(|one| *one == first) {
            return Ok(first);
        }
        let root = self.checkpoint.root().into();
        Err(Error::Rounded { root, tensors: shown(&recipe.tensors.join("`, `")) })
    }

    /// Returns the location of a weight.
    ///
    /// # Panics
    ///
    /// If the id is not of the graph whose weights were wanted.
    pub fn found(&self, id: WeightId) -> &LocatedWeight {
        &self.found[id.0]
    }

    /// Returns the tensors of the checkpoint that no weight uses, sorted by name.
    pub fn unused(&self) -> impl Iterator<Item = &str> {
        let names = self.checkpoint.tensors().keys().map(String::as_str);
        names.filter(|&name| !self.used.contains(name))
    }

    /// Returns the checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }
}

/// Returns the rule that makes a weight, and the tensors it takes.
fn find_rule(
    checkpoint: &Checkpoint,
    weight: &Weight,
    rules: &[WeightRule],
) -> Option<(usize, GatheredTensors)> {
    weight_map::find_rule(
        rules,
        weight,
        |text: &str| names_with_prefix(checkpoint.tensors(), text),
        |name: &str| checkpoint.info(name).map(|info| info.shape.clone()),
    )
}

fn missing(checkpoint: &Checkpoint, weight: &Weight, name: &str) -> Error {
    Error::Missing {
        root: checkpoint.root().into(),
        tensor: shown(name),
        weight: shown(&weight.name),
        shape: weight.shape.clone(),
    }
}

fn find(
    checkpoint: &Checkpoint,
    weight: &Weight,
    rules: &[WeightRule],
    used: &mut BTreeSet<String>,
) -> Result<LocatedWeight, Error> {
    let Some((number, gathered)) = find_rule(checkpoint, weight, rules) else {
        let name = &weight.name;
        let info = checkpoint.info(name).ok_or_else(|| missing(checkpoint, weight, name))?;
        used.insert(name.clone());
        if checkpoint.is_quantized(name) || checkpoint.is_gguf() {
            let tensors = vec![name.clone()];
            let source = WeightLocation::Computed(WeightRecipe { rule: None, tensors, output: 0 });
            let dtype = info.dtype;
            let shape = info.shape.clone();
            return Ok(LocatedWeight { dtype, shape, source, strided: None });
        }
        let source =
            WeightLocation::View { tensor: name.clone(), file: info.file, range: info.range };
        let dtype = info.dtype;
        let shape = info.shape.clone();
        return Ok(LocatedWeight { dtype, shape, source, strided: None });
    };
    let rule = &rules[number];
    if let Some(name) = gathered.names.iter().find(|name| checkpoint.info(name).is_none()) {
        return Err(missing(checkpoint, weight, name));
    }
    used.extend(gathered.names.iter().cloned());
    let GatheredTensors { names: tensors, output } = gathered;
    let flow = flows::computed_flow(checkpoint, &weight.name, rule, &tensors, output, None)?;
    let dtype = flow.dtype().unwrap_or(FileDtype::F32);
    let shape = flow.shape().to_vec();
    if checkpoint.is_gguf() {
        let source = WeightLocation::Computed(WeightRecipe { rule: Some(number), tensors, output });
        return Ok(LocatedWeight { dtype, shape, source, strided: None });
    }
    if let Some(bytes) = flow.stretch() {
        let source = locate(checkpoint, &tensors, bytes)?;
        return Ok(LocatedWeight { dtype, shape, source, strided: None });
    }
    let strided = locate_strided(checkpoint, &tensors, &flow)?;
    let source = WeightLocation::Computed(WeightRecipe { rule: Some(number), tensors, output });
    Ok(LocatedWeight { dtype, shape, source, strided })
}

/// Finds the byte range of a matrix whose values lie at constant distances in one tensor.
fn locate_strided(
    checkpoint: &Checkpoint,
    names: &[String],
    flow: &Flow<'_>,
) -> Result<Option<StridedRange>, Error> {
    let Some(values) = flow.strided().filter(|values| values.dtype.is_float()) else {
        return Ok(None);
    };
    let (&[rows, columns], &[row, column]) = (flow.shape(), values.strides.as_slice()) else {
        return Ok(None);
    };
    let size = values.dtype.size();
    let last = values.first + (rows - 1) * row + (columns - 1) * column;
    let bytes = &values.bytes[values.first * size..(last + 1) * size];
    Ok(match locate(checkpoint, names, bytes)? {
        WeightLocation::View { file, range, .. } => {
            Some(StridedRange { file, range, strides: [row, column] })
        }
        WeightLocation::Computed(_) => None,
    })
}

/// Finds the tensor and the byte range that a borrowed slice comes from.
fn locate(
    checkpoint: &Checkpoint,
    names: &[String],
    bytes: &[u8],
) -> Result<WeightLocation, Error> {
    let stretch = bytes.as_ptr_range();
    for name in names {
        let (Some(info), tensor_bytes) = (checkpoint.info(name), checkpoint.bytes(name)?) else {
            continue;
        };
        let tensor = tensor_bytes.as_ptr_range();
        if !bytes.is_empty() && tensor.start <= stretch.start && stretch.end <= tensor.end {
            let begin = info.range.0 + (stretch.start.addr() - tensor.start.addr()) as u64;
            let range = (begin, begin + bytes.len() as u64);
            return Ok(WeightLocation::View { tensor: name.clone(), file: info.file, range });
        }
    }
    // Only a tensor without values lies in none of them.
    let (tensor, info) = names
        .first()
        .and_then(|name| Some((name.clone(), checkpoint.info(name)?)))
        .ok_or_else(|| Error::Missing {
            root: checkpoint.root().into(),
            tensor: String::new(),
            weight: String::new(),
            shape: Vec::new(),
        })?;
    Ok(WeightLocation::View { tensor, file: info.file, range: (info.range.0, info.range.0) })
}

#[cfg(test)]
mod tests;
