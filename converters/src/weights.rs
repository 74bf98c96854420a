//! The weights of a model, found in a checkpoint.
//!
//! Most are a tensor of the same name, or a stretch of one, and are read straight from the map.
//! Where the spec's weight map reorders numbers, a buffer is made when the checkpoint is opened.

pub(crate) mod compute;
mod flows;
mod steps;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::PathBuf;

use registry::graph::{Weight, WeightId};
use registry::weight_map::{Rule, gather};

use crate::checkpoint::{self, Checkpoint};
use crate::load::WeightView;
use crate::safetensors::FileDtype;
use crate::shown;
pub use flows::{Sourced, flows};
use steps::Tensor;

/// Why a weight cannot be had from a checkpoint.
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
    Rule { root: PathBuf, weight: String, rule: String, why: String },
}

fn purpose(tensor: &str, weight: &str) -> String {
    if tensor == weight { String::new() } else { format!(", which weight `{weight}` is made of") }
}

/// Where a weight's bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A stretch of a tensor's bytes.
    View {
        /// The tensor's name in the checkpoint.
        tensor: String,
        /// The file: an index into [`Checkpoint::files`].
        file: usize,
        /// The weight's bytes in that file, `begin..end`.
        range: (u64, u64),
    },
    /// Made by the weight map.
    Made(Vec<u8>),
}

/// One weight, found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What its numbers are kept in.
    pub dtype: FileDtype,
    /// Its shape in the model.
    pub shape: Vec<usize>,
    /// Where its bytes are.
    pub source: Source,
}

/// The weights of a model, in the order of its graph.
#[derive(Debug)]
pub struct Weights {
    checkpoint: Checkpoint,
    found: Vec<Found>,
    used: BTreeSet<String>,
}

impl Weights {
    /// Finds every weight under its own name. No bytes are read.
    pub fn new(checkpoint: Checkpoint, wanted: &[Weight]) -> Result<Self, Error> {
        Self::with_rules(checkpoint, wanted, &[])
    }

    /// Finds every weight by the first rule that names it and of whose tensors the checkpoint has
    /// any, or else under its own name. Bytes are read only where a rule reorders them.
    pub fn with_rules(
        checkpoint: Checkpoint,
        wanted: &[Weight],
        rules: &[Rule],
    ) -> Result<Self, Error> {
        let mut used = BTreeSet::new();
        let mut found = Vec::with_capacity(wanted.len());
        for weight in wanted {
            let one = find(&checkpoint, weight, rules, &mut used)?;
            if one.shape != weight.shape {
                return Err(Error::Shape {
                    root: checkpoint.root().into(),
                    weight: shown(&weight.name),
                    found: one.shape,
                    expected: weight.shape.clone(),
                });
            }
            found.push(one);
        }
        Ok(Self { checkpoint, found, used })
    }

    /// A weight, ready to be read.
    ///
    /// # Panics
    ///
    /// If the id is not of the graph whose weights were wanted.
    pub fn view(&self, id: WeightId) -> Result<WeightView<'_>, Error> {
        let found = &self.found[id.0];
        let bytes = match &found.source {
            Source::View { file, range, .. } => self.checkpoint.slice(*file, *range)?,
            Source::Made(bytes) => bytes,
        };
        Ok(WeightView { dtype: found.dtype, shape: &found.shape, bytes })
    }

    /// Where a weight comes from.
    ///
    /// # Panics
    ///
    /// If the id is not of the graph whose weights were wanted.
    pub fn found(&self, id: WeightId) -> &Found {
        &self.found[id.0]
    }

    /// Tensors of the checkpoint that no weight is made of, in order of their names.
    pub fn unused(&self) -> impl Iterator<Item = &str> {
        let names = self.checkpoint.tensors().keys().map(String::as_str);
        names.filter(|&name| !self.used.contains(name))
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }
}

fn find(
    checkpoint: &Checkpoint,
    weight: &Weight,
    rules: &[Rule],
    used: &mut BTreeSet<String>,
) -> Result<Found, Error> {
    let tensors = || checkpoint.tensors().keys().map(String::as_str);
    let rule = rules.iter().find_map(|rule| {
        let gathered = gather(rule, &weight.name, tensors())?;
        gathered
            .names
            .iter()
            .any(|name| checkpoint.info(name).is_some())
            .then_some((rule, gathered))
    });
    let missing = |name: &str| Error::Missing {
        root: checkpoint.root().into(),
        tensor: shown(name),
        weight: shown(&weight.name),
        shape: weight.shape.clone(),
    };
    let Some((rule, gathered)) = rule else {
        let name = &weight.name;
        let info = checkpoint.info(name).ok_or_else(|| missing(name))?;
        used.insert(name.clone());
        let source = Source::View { tensor: name.clone(), file: info.file, range: info.range };
        return Ok(Found { dtype: info.dtype, shape: info.shape.clone(), source });
    };
    let mut inputs = Vec::with_capacity(gathered.names.len());
    for name in &gathered.names {
        let info = checkpoint.info(name).ok_or_else(|| missing(name))?;
        let bytes = Cow::Borrowed(checkpoint.bytes(name)?);
        inputs.push(Tensor { dtype: info.dtype, shape: info.shape.clone(), bytes });
    }
    let broken = |why: String| Error::Rule {
        root: checkpoint.root().into(),
        weight: shown(&weight.name),
        rule: format!("{} -> {}", rule.disk.text, rule.weight.text),
        why,
    };
    let mut outputs = steps::run(&rule.steps, inputs).map_err(broken)?;
    if gathered.output >= outputs.len() {
        let (wanted, given) = (gathered.output + 1, outputs.len());
        return Err(broken(format!("its steps give {given} tensors, and this is number {wanted}")));
    }
    let Tensor { dtype, shape, bytes } = outputs.swap_remove(gathered.output);
    let source = match bytes {
        Cow::Owned(bytes) => Source::Made(bytes),
        Cow::Borrowed(bytes) => locate(checkpoint, &gathered.names, bytes)?,
    };
    used.extend(gathered.names);
    Ok(Found { dtype, shape, source })
}

/// Finds which stretch of which tensor borrowed bytes are.
fn locate(checkpoint: &Checkpoint, names: &[String], bytes: &[u8]) -> Result<Source, Error> {
    let stretch = bytes.as_ptr_range();
    for name in names {
        let (Some(info), whole) = (checkpoint.info(name), checkpoint.bytes(name)?) else {
            continue;
        };
        let tensor = whole.as_ptr_range();
        if !bytes.is_empty() && tensor.start <= stretch.start && stretch.end <= tensor.end {
            let begin = info.range.0 + (stretch.start.addr() - tensor.start.addr()) as u64;
            let range = (begin, begin + bytes.len() as u64);
            return Ok(Source::View { tensor: name.clone(), file: info.file, range });
        }
    }
    // Only a tensor without numbers is in none.
    Ok(Source::Made(bytes.to_vec()))
}

#[cfg(test)]
type ShapedNumbers = (Vec<usize>, Vec<f32>);

/// Carries out steps on f32 tensors at once, for tests of what does so piece by piece.
#[cfg(test)]
pub(crate) fn run_steps(
    steps: &[registry::weight_map::Step],
    shapes: &[Vec<usize>],
    bytes: &[Vec<u8>],
) -> Result<Vec<ShapedNumbers>, String> {
    let tensor = |(shape, bytes): (&Vec<usize>, _)| Tensor {
        dtype: FileDtype::F32,
        shape: shape.clone(),
        bytes: Cow::Borrowed(bytes),
    };
    let inputs = shapes.iter().zip(bytes.iter().map(Vec::as_slice)).map(tensor).collect();
    let outputs = steps::run(steps, inputs)?;
    let numbers =
        |bytes: &[u8]| bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    Ok(outputs.into_iter().map(|tensor| (tensor.shape, numbers(&tensor.bytes))).collect())
}

#[cfg(test)]
mod tests;
