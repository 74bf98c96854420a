//! Checks that a model and a checkpoint match: every tensor is used exactly once.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use checkpoints::Checkpoint;
use registry::check::{check_weights, has_head, head_weights, pairs};
use registry::diag::{Finding, Severity};
use registry::model::Model;
use registry::weight_map::WeightRule;

use crate::error::{Error, FindingSubject};

/// Pairing of a model's weights with a checkpoint's tensors.
#[derive(Debug, Clone, serde::Serialize)]
pub struct TensorCoverage {
    /// Number of tensors in the checkpoint.
    pub tensors: usize,
    /// Number of tensors that weights are made of.
    pub used: usize,
    /// Copies of a weight that the spec ties to another one; the other one is used.
    pub tied: Vec<String>,
    /// Tensors that the spec ignores.
    pub ignored: Vec<String>,
    /// Number of weights of the multi-token prediction head, which the model runs without.
    pub head: usize,
    /// Weights and tensors without a counterpart of the same name and shape.
    #[serde(skip)]
    pub gaps: usize,
    /// Mismatches and remarks.
    #[serde(skip)]
    pub findings: Vec<Finding>,
    /// Unsupported quantization method of the weights, if any.
    #[serde(skip)]
    pub foreign: Option<String>,
}

/// True if a tensor has the name of a weight, or a rule gives it one.
fn names_weight(model: &Model, weights: &BTreeSet<&str>, tensor: &str) -> bool {
    weights.contains(tensor)
        || model
            .rules
            .iter()
            .filter_map(|rule: &WeightRule| rule.renamed(tensor))
            .any(|name| weights.contains(name.as_str()))
}

impl TensorCoverage {
    /// Pairs the weights of a model with the tensors of a checkpoint, and checks its scales.
    pub fn of(model: &Model, checkpoint: &Checkpoint) -> Self {
        let mut coverage = Self::of_headers(model, checkpoint);
        // Unreadable bytes are reported by the code that needs them.
        for (name, number) in checkpoint.senseless_scales().unwrap_or_default() {
            let finding = Finding::unplaced(format!("the scale `{name}` is {number}"));
            coverage.findings.push(finding.help("expected a number above 0: the file is damaged"));
        }
        coverage
    }

    /// Pairs the weights of a model with the tensors of a checkpoint, from headers alone.
    pub fn of_headers(model: &Model, checkpoint: &Checkpoint) -> Self {
        let mut tensors = checkpoint.shapes();
        let all_weights: BTreeSet<&str> = model
            .graph
            .weights
            .iter()
            .chain(head_weights(model))
            .map(|w| w.name.as_str())
            .collect();
        tensors
            .retain(|name, _| !checkpoint.is_idle(name) || names_weight(model, &all_weights, name));
        let head = if has_head(model, &tensors) { head_weights(model) } else { Vec::new() };
        let weights: BTreeSet<&str> = model
            .graph
            .weights
            .iter()
            .chain(head.iter().copied())
            .map(|weight| weight.name.as_str())
            .collect();
        let (matched, gaps) = pairs(model, &tensors);
        let spare = tensors.keys().filter(|name| !weights.contains(name.as_str()));
        let (tied, other): (Vec<&String>, Vec<&String>) =
            spare.partition(|name| model.tied_owner(name).is_some());
        let tied: Vec<String> = tied.into_iter().cloned().collect();
        let ignored: Vec<String> =
            other.into_iter().filter(|name| model.passes_over(name)).cloned().collect();
        let passed = tied.len() + ignored.len();
        let mut coverage = Self {
            tensors: tensors.len(),
            used: matched,
            gaps,
            findings: check_weights(model, &tensors),
            foreign: checkpoint.foreign_method(),
            head: head.len(),
            tied,
            ignored,
        };
        if coverage.is_whole() {
            // Rules make weights from tensors with other names; no tensor remains.
            coverage.used = coverage.tensors - passed;
        }
        coverage
    }

    /// True if all weights and tensors match.
    pub fn is_whole(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity == Severity::Warning)
    }

    /// Returns a summary line: `74 of 74 tensors used, each once`.
    pub fn summary(&self) -> String {
        let mut line = format!("{} of {} tensors used, each once", self.used, self.tensors);
        for (count, what) in [(self.ignored.len(), "ignored"), (self.tied.len(), "tied copies")] {
            if count > 0 {
                write!(line, ", {count} {what}").expect("a string");
            }
        }
        line
    }

    /// Returns an error with all findings unless all weights and tensors match; then all findings are warnings.
    pub fn refuse(&self, dir: &Path) -> Result<(), Error> {
        if self.is_whole() {
            return Ok(());
        }
        let folder = dir.to_owned();
        let used = self.used;
        let tensors = self.tensors;
        if let Some(method) = self.foreign.clone() {
            let known = Checkpoint::methods();
            return Err(Error::QuantMethod { folder, method, used, tensors, known });
        }
        Err(FindingSubject::Coverage { folder, used, tensors }.of(self.findings.clone()))
    }
}
