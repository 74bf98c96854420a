//! Whether a model and a checkpoint explain each other: every tensor used exactly once.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use converters::Checkpoint;
use converters::weights::{self, Weights};
use registry::config::matches;
use registry::diag::Finding;
use registry::graph::Weight;
use registry::model::Model;

use crate::specs::tell;

/// What a model makes of a checkpoint's tensors, from headers alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Coverage {
    /// Tensors in the checkpoint.
    pub tensors: usize,
    /// Tensors that a weight of the model is.
    pub used: usize,
    /// Copies of a weight that the spec ties to another; the other one is used.
    pub tied: Vec<String>,
    /// Tensors that the spec passes over.
    pub ignored: Vec<String>,
    /// Tensors that nothing explains.
    pub unused: Vec<String>,
    /// Weights that the checkpoint lacks, with the shape the spec gives them.
    pub missing: Vec<(String, Vec<usize>)>,
    /// Weights of another shape: name, on disk, in the spec.
    pub misshapen: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// Weights that a rule of the spec cannot make, in words.
    pub faults: Vec<String>,
}

/// The tensors that weights are made of.
fn used(checkpoint: &Checkpoint, wanted: &[Weight], model: &Model) -> Result<BTreeSet<String>, weights::Error> {
    let again = Checkpoint::open(checkpoint.root())?;
    let found = Weights::with_rules(again, wanted, &model.rules)?;
    let unused: BTreeSet<&str> = found.unused().collect();
    let names = checkpoint.tensors().keys().filter(|name| !unused.contains(name.as_str()));
    Ok(names.cloned().collect())
}

impl Coverage {
    /// Pairs the weights of a model with the tensors of a checkpoint.
    pub(crate) fn of(model: &Model, checkpoint: &Checkpoint) -> Self {
        let mut coverage = Self { tensors: checkpoint.tensors().len(), ..Self::default() };
        let explained = coverage.pair(model, checkpoint);
        for name in checkpoint.tensors().keys().filter(|name| !explained.contains(*name)) {
            let list = if model.graph.tied.contains_key(name) {
                &mut coverage.tied
            } else if model.ignore.iter().any(|pattern| matches(pattern, name)) {
                &mut coverage.ignored
            } else {
                &mut coverage.unused
            };
            list.push(name.clone());
        }
        coverage
    }

    /// Finds each weight as an engine would; gives the tensors that weights are made of,
    /// also where the shape is wrong.
    fn pair(&mut self, model: &Model, checkpoint: &Checkpoint) -> BTreeSet<String> {
        let weights = &model.graph.weights;
        // Most often all is well, and one look is enough.
        let mut explained = match used(checkpoint, weights, model) {
            Ok(explained) => explained,
            Err(_) => {
                let mut explained = BTreeSet::new();
                for weight in weights {
                    match used(checkpoint, std::slice::from_ref(weight), model) {
                        Ok(more) => explained.extend(more),
                        Err(error) => self.fault(error),
                    }
                }
                explained
            }
        };
        self.used = explained.len();
        explained.extend(self.misshapen.iter().map(|(name, _, _)| name.clone()));
        explained
    }

    fn fault(&mut self, error: weights::Error) {
        match error {
            weights::Error::Missing { tensor, shape, .. } => self.missing.push((tensor, shape)),
            weights::Error::Shape { weight, found, expected, .. } => {
                self.misshapen.push((weight, found, expected));
            }
            other => self.faults.push(other.to_string()),
        }
    }

    /// Whether everything is explained.
    pub(crate) fn is_whole(&self) -> bool {
        self.gaps() == 0
    }

    /// How many things are not explained.
    pub(crate) fn gaps(&self) -> usize {
        self.unused.len() + self.missing.len() + self.misshapen.len() + self.faults.len()
    }

    /// One line: `74 of 74 tensors used, each once`.
    pub(crate) fn summary(&self) -> String {
        let mut line = format!("{} of {} tensors used, each once", self.used, self.tensors);
        for (count, what) in [(self.ignored.len(), "ignored"), (self.tied.len(), "tied copies")] {
            if count > 0 {
                line.push_str(&format!(", {count} {what}"));
            }
        }
        line
    }

    /// What is not explained, as findings.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (name, shape) in &self.missing {
            let message = format!(
                "the checkpoint has no tensor `{name}`; the spec expects it with shape {shape:?}"
            );
            findings.push(
                Finding::unplaced(message)
                    .help("correct the path in the spec, or the condition that makes it exist"),
            );
        }
        for (name, found, expected) in &self.misshapen {
            let message =
                format!("tensor `{name}` has shape {found:?}; the spec expects {expected:?}");
            findings
                .push(Finding::unplaced(message).help("correct the dims or the op that names it"));
        }
        findings.extend(self.faults.iter().map(Finding::unplaced));
        for name in &self.unused {
            let message = format!("tensor `{name}` of the checkpoint is not used by the spec");
            findings.push(Finding::unplaced(message).help("name it where it is used, or list it under `ignore: weights:` if the reference does not use it"));
        }
        findings
    }

    /// Stops the command with all findings if something is not explained.
    pub(crate) fn refuse(&self, dir: &Path) -> Result<()> {
        if self.is_whole() {
            return Ok(());
        }
        let said = format!(
            "the spec and the checkpoint `{}` do not explain each other: {} of {} tensors used",
            dir.display(),
            self.used,
            self.tensors
        );
        Err(tell(&self.findings(), &said))
    }
}
