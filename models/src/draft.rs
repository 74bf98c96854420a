//! Drafts a spec for an architecture that no spec matches, based on the nearest known spec.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use checkpoints::Checkpoint;
use registry::diag::{Finding, Severity};

use crate::config::ConfigFile;
use crate::coverage::TensorCoverage;
use crate::error::Error;
use crate::spec_text::sections;
use crate::specs::Specs;

mod rename;
pub mod summary;

use rename::Renames;

/// Draft of a spec, with its open findings.
#[derive(Debug)]
pub struct SpecDraft {
    /// File of the draft.
    pub path: PathBuf,
    /// Name of the spec.
    pub name: String,
    /// Spec that it extends.
    pub base: String,
    /// Next nearest specs, with the number of tensors that each explains.
    pub others: Vec<(String, usize)>,
    /// Number of tensors that it explains.
    pub used: usize,
    /// Number of tensors in the checkpoint.
    pub tensors: usize,
    /// Open findings.
    pub findings: Vec<Finding>,
    /// Text of the spec.
    pub body: String,
}

/// Match of one known spec with a checkpoint.
struct SpecCandidate {
    name: String,
    coverage: Option<TensorCoverage>,
    /// Tensors under other names that have the shape and role of a weight.
    renames: Renames,
    findings: usize,
    /// Number of settings of the spec that the config does not have.
    absent: usize,
    /// Number of specs that extend it.
    heirs: usize,
}

impl SpecCandidate {
    fn of(
        name: String,
        specs: &Specs,
        config: &ConfigFile,
        checkpoint: &Checkpoint,
        extended: &[String],
    ) -> Self {
        let absent = specs.absent_keys(&name, config);
        let heirs = extended.iter().filter(|parent| **parent == name).count();
        let (coverage, renames, findings) = match specs.try_resolve(&name, config, &[]) {
            Ok((model, findings)) => {
                let coverage = TensorCoverage::of_headers(&model, checkpoint);
                let renames = if coverage.gaps == 0 {
                    Renames::default()
                } else {
                    Renames::propose(&model, &checkpoint.shapes())
                };
                (Some(coverage), renames, findings)
            }
            Err(findings) => (None, Renames::default(), findings),
        };
        Self { name, coverage, renames, findings: findings.len(), absent, heirs }
    }

    /// Returns the number of tensors that the spec explains, including renamed ones.
    fn explained(&self) -> usize {
        let used = self.coverage.as_ref().map_or(0, |coverage| coverage.used);
        used + self.renames.tensors()
    }

    /// Returns the sort key of candidates, the nearest first. A candidate that resolves comes first, then
    /// the most tensors explained (renamed ones by their weight as evidence), the fewest weights and
    /// tensors without a counterpart, and the fewest findings. In a tie, the spec with the most heirs is
    /// preferred.
    fn distance(&self) -> (bool, Reverse<usize>, usize, usize, Reverse<usize>, usize) {
        let gaps = self.coverage.as_ref().map_or(usize::MAX, |coverage| coverage.gaps);
        let gaps = gaps.saturating_sub(2 * self.renames.tensors());
        let none = self.coverage.is_none();
        let used = self.coverage.as_ref().map_or(0, |coverage| coverage.used);
        (
            none,
            Reverse(used + self.renames.evidence()),
            gaps,
            self.findings,
            Reverse(self.heirs),
            self.absent,
        )
    }
}

/// Settings of [`draft`].
#[derive(Debug, Clone, Copy)]
pub struct DraftOptions<'a> {
    /// Spec to extend, by name or by file; default: the nearest.
    pub like: Option<&'a Path>,
    /// Folder in which the caller will write the file, so that findings name the file.
    pub out: &'a Path,
}

/// Drafts a spec that extends the nearest known one, and adds it to the specs.
pub fn draft(
    specs: &mut Specs,
    config: &ConfigFile,
    checkpoint: &Checkpoint,
    options: DraftOptions<'_>,
) -> Result<SpecDraft, Error> {
    let names: Vec<String> = match options.like {
        Some(name) => vec![specs.named(name)?],
        None => specs.all().map(|spec| spec.name).collect(),
    };
    let extended: Vec<String> = specs.all().filter_map(|spec| spec.extends).collect();
    let mut candidates: Vec<SpecCandidate> = names
        .into_iter()
        .map(|name| SpecCandidate::of(name, specs, config, checkpoint, &extended))
        .collect();
    candidates.sort_by_key(SpecCandidate::distance);
    let Some(best) = candidates.first() else { return Err(Error::NoBase) };
    // A similar model may have the type of the known one: a spec cannot extend itself.
    let name = free_name(config, specs, "draft");
    let path = options.out.join(format!("{name}.yaml"));
    let body = body(&name, config, best, specs);
    // The draft itself is checked, so that findings name its file and its renames apply.
    specs.add_text(&path, &body);
    let (used, findings) = match specs.try_resolve(&name, config, &[]) {
        Ok((model, mut findings)) => {
            let coverage = TensorCoverage::of(&model, checkpoint);
            findings.extend(coverage.findings);
            (coverage.used, findings)
        }
        Err(findings) => (0, findings),
    };
    let tensors = checkpoint.tensors().len();
    let base = best.name.clone();
    let next = candidates.iter().skip(1).filter(|other| other.coverage.is_some()).take(3);
    let next = next.map(|other| (other.name.clone(), other.explained())).collect();
    Ok(SpecDraft { path, name, base, others: next, used, tensors, findings, body })
}

/// Returns the text of the spec.
fn body(name: &str, config: &ConfigFile, best: &SpecCandidate, specs: &Specs) -> String {
    let mut text = format!(
        "spec: 1\nname: {name}\nmatches: [{}]\nextends: {}\n",
        plain(&config.architecture()),
        best.name
    );
    if best.renames.is_empty() {
        return text;
    }
    text.push_str("weights:\n");
    // A list replaces the inherited one, so the inherited entries are repeated.
    let inherited = specs.origins(&best.name).0.into_iter().find_map(|spec| {
        let source = specs.source(&spec)?;
        sections(source).into_iter().find(|section| section.key == "weights")
    });
    for line in inherited.iter().flat_map(|section| &section.lines) {
        if line.starts_with(' ') {
            let _ = writeln!(text, "{line}");
        }
    }
    text.push_str(&best.renames.yaml());
    text
}

/// Makes text from a file safe for one line of a comment.
fn line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Quotes a word for YAML if needed.
fn plain(word: &str) -> String {
    word.chars().filter(|c: &char| c.is_ascii_alphanumeric() || *c == '_').collect()
}

/// Returns a name for a spec of a config; the ending tells it from a known spec of the same name.
pub fn free_name(config: &ConfigFile, specs: &Specs, ending: &str) -> String {
    let name = draft_name(config);
    if specs.has(&name) { format!("{name}_{ending}") } else { name }
}

/// Returns the config's `model_type` if it is a valid file name; else a name made from the class name.
fn draft_name(config: &ConfigFile) -> String {
    let word = config.text("model_type").unwrap_or_else(|| config.architecture());
    let word = plain(&word.replace('-', "_")).to_lowercase();
    if word.is_empty() || word.starts_with(|c: char| c.is_ascii_digit()) {
        format!("draft_{word}")
    } else {
        word
    }
}

impl SpecDraft {
    /// True if no finding prevents the model from running.
    pub fn is_whole(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity == Severity::Warning)
    }

    /// Returns the comment for the top of the file: the origin of the draft, and the open findings.
    /// `folder` names the checkpoint, and `advice` tells the reader how to continue.
    pub fn comment(&self, folder: &str, advice: &str) -> String {
        let Self { base, used, tensors, findings, .. } = self;
        let mut lines = vec![
            format!("Drafted from the config and the headers of {folder}."),
            format!("`{base}` is the nearest known spec: it explains {used} of {tensors} tensors."),
        ];
        if !self.others.is_empty() {
            let next = self.others.iter().map(|(name, count)| format!("{name} ({count})"));
            lines.push(format!("Next nearest: {}.", next.collect::<Vec<_>>().join(", ")));
        }
        if findings.is_empty() {
            let sentence = "Nothing is left unexplained; a reference says if the numbers agree.";
            lines.push(sentence.to_owned());
        } else {
            lines.push(format!("\nNot explained yet ({}):", findings.len()));
            lines.extend(findings.iter().map(|finding| format!("  - {}", line(&finding.message))));
            lines.push(format!("\n{advice}"));
        }
        let mut text = String::new();
        for part in lines.iter().flat_map(|text| text.split('\n')) {
            let _ = writeln!(text, "{}", format!("# {}", line(part)).trim_end());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(name: &str, used: usize, gaps: usize) -> SpecCandidate {
        let coverage = TensorCoverage {
            tensors: 40,
            used,
            gaps,
            tied: Vec::new(),
            ignored: Vec::new(),
            head: 0,
            findings: Vec::new(),
            foreign: None,
        };
        SpecCandidate {
            name: name.to_owned(),
            coverage: Some(coverage),
            renames: Renames::default(),
            findings: 0,
            absent: 0,
            heirs: 0,
        }
    }

    #[test]
    fn the_one_that_explains_most_is_nearest() {
        let mut all = [candidate("passes over", 25, 10), candidate("explains", 31, 18)];
        all.sort_by_key(SpecCandidate::distance);
        assert_eq!(all[0].name, "explains");
        // Renames that leave as many weights missing are no evidence; those that leave fewer are.
        for (lacking, nearest) in [(8, "plain"), (2, "renamed")] {
            let renames = Renames::made_up(8, lacking);
            let mut all = [
                SpecCandidate { renames, ..candidate("renamed", 30, 24) },
                SpecCandidate { heirs: 5, ..candidate("plain", 30, 8) },
            ];
            all.sort_by_key(SpecCandidate::distance);
            assert_eq!(all[0].name, nearest);
        }
    }
}
