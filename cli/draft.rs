//! Drafts a spec for an architecture that no spec matches, from the nearest one that is known.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use converters::Checkpoint;
use registry::diag::{Finding, Severity};

use crate::coverage::Coverage;
use crate::specs::{Config, Specs, tell};
use crate::write;

/// A draft, and what it could not explain.
#[derive(Debug)]
pub(crate) struct Draft {
    /// Where it was written.
    pub path: PathBuf,
    /// The spec that it extends.
    pub base: String,
    findings: Vec<Finding>,
    used: usize,
    tensors: usize,
}

/// What one known spec makes of a checkpoint.
struct Candidate {
    name: String,
    coverage: Option<Coverage>,
    findings: Vec<Finding>,
    /// Settings of the spec that the config does not have.
    absent: usize,
    /// How many specs extend it.
    heirs: usize,
}

impl Candidate {
    /// Smaller is nearer: a spec that resolves before one that does not, then by what neither
    /// side explains, then by settings that the spec does not know. Of equal ones, what others
    /// extend is the plainest.
    fn distance(&self) -> (bool, usize, usize, Reverse<usize>, usize) {
        let gaps = self.coverage.as_ref().map_or(usize::MAX, |coverage| coverage.gaps);
        let unknown = self.findings.len();
        (self.coverage.is_none(), gaps, unknown, Reverse(self.heirs), self.absent)
    }
}

/// Finds the nearest known spec (or takes `like`) and writes a draft that extends it.
pub(crate) fn make(
    specs: &mut Specs,
    config: &Config,
    checkpoint: &Checkpoint,
    like: Option<&str>,
    dir: &Path,
    out: &Path,
) -> Result<Draft> {
    let names: Vec<String> = match like {
        Some(name) => vec![specs.named(name)?],
        None => specs.all().map(|spec| spec.name).collect(),
    };
    let extended: Vec<String> = specs.all().filter_map(|spec| spec.extends).collect();
    let mut candidates: Vec<Candidate> = names
        .into_iter()
        .map(|name| {
            let absent = specs.absent_keys(&name, config);
            let heirs = extended.iter().filter(|parent| **parent == name).count();
            match specs.try_resolve(&name, config, &[]) {
                Ok((model, findings)) => {
                    let coverage = Some(Coverage::of(&model, checkpoint));
                    Candidate { name, coverage, findings, absent, heirs }
                }
                Err(findings) => Candidate { name, coverage: None, findings, absent, heirs },
            }
        })
        .collect();
    candidates.sort_by_key(Candidate::distance);
    let Some(best) = candidates.first() else {
        bail!("the registry has no specs to draft from");
    };
    let mut findings = best.findings.clone();
    let (mut used, tensors) = (0, checkpoint.tensors().len());
    if let Some(coverage) = &best.coverage {
        findings.extend(coverage.findings.iter().cloned());
        used = coverage.used;
    }
    let mut name = draft_name(config);
    // A cousin may carry the type of its relative: a spec cannot extend itself.
    if specs.has(&name) {
        name.push_str("_draft");
    }
    let path = out.join(format!("{name}.yaml"));
    let text = write_draft(&name, config, dir, best, &candidates, used, tensors, &findings)?;
    write::atomic(&path, text.as_bytes()).context("cannot write the draft")?;
    Ok(Draft { path, base: best.name.clone(), findings, used, tensors })
}

#[expect(clippy::too_many_arguments, reason = "the facts of one comment, used once")]
fn write_draft(
    name: &str,
    config: &Config,
    dir: &Path,
    best: &Candidate,
    candidates: &[Candidate],
    used: usize,
    tensors: usize,
    findings: &[Finding],
) -> Result<String> {
    let mut text = String::new();
    let folder =
        dir.file_name().map_or_else(|| "a checkpoint".into(), |name| name.to_string_lossy());
    writeln!(text, "# Drafted from the config and the headers of {}.", comment(&folder))?;
    writeln!(
        text,
        "# `{}` is the nearest known spec: it explains {used} of {tensors} tensors.",
        best.name
    )?;
    let others: Vec<String> = candidates
        .iter()
        .skip(1)
        .take(3)
        .filter_map(|other| Some(format!("{} ({})", other.name, other.coverage.as_ref()?.used)))
        .collect();
    if !others.is_empty() {
        writeln!(text, "# Next nearest: {}.", others.join(", "))?;
    }
    if findings.is_empty() {
        writeln!(
            text,
            "# Nothing is left unexplained; whether the numbers agree, a reference says."
        )?;
    } else {
        writeln!(text, "#\n# Not explained yet ({}):", findings.len())?;
        for finding in findings {
            writeln!(text, "#   - {}", comment(&finding.message))?;
        }
        writeln!(
            text,
            "#\n# Override by name what differs (docs/spec.md): a dim, a function, a layer program."
        )?;
    }
    writeln!(
        text,
        "spec: 1\nname: {name}\nmatches: [{}]\nextends: {}",
        plain(&config.architecture()),
        best.name
    )?;
    Ok(text)
}

/// Text from a file, fit for one line of a comment.
fn comment(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A word that YAML reads as itself.
fn plain(word: &str) -> String {
    let good = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
    word.chars().filter(good).collect()
}

/// `model_type` of the config where it can be a file name; else made from the class name.
fn draft_name(config: &Config) -> String {
    let word = config.text("model_type").unwrap_or_else(|| config.architecture());
    let word = plain(&word.replace('-', "_")).to_lowercase();
    if word.is_empty() || word.starts_with(|c: char| c.is_ascii_digit()) {
        format!("draft_{word}")
    } else {
        word
    }
}

impl Draft {
    /// Whether nothing is left that stops it from running.
    pub(crate) fn is_whole(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity == Severity::Warning)
    }

    /// Says what the draft does not explain.
    pub(crate) fn refuse(&self, config: &Config) -> anyhow::Error {
        let said = format!(
            "no spec matches the architecture `{}`. The nearest is `{}`, which explains {} of {} tensors; the draft \
             `{}` extends it and lists what is left. Complete it (docs/spec.md), then: onboard add-model MODEL --spec {}",
            config.architecture(),
            self.base,
            self.used,
            self.tensors,
            self.path.display(),
            self.path.display()
        );
        tell(&self.findings, &said)
    }
}
