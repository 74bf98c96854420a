//! Findings: one entry for all that look the same, with a case to reproduce it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use crate::child::Worker;
use crate::kinds::{KINDS, make};
use crate::seeds::Sources;
use crate::worker::{Order, Outcome, Place};

/// Case that went wrong.
#[derive(Debug, Clone)]
pub(crate) struct Finding {
    pub(crate) kind: &'static str,
    pub(crate) number: u64,
    pub(crate) text: String,
    pub(crate) apart: bool,
}

impl Finding {
    /// Returns a key that is equal for findings that look the same. Numbers are omitted, except those of a
    /// place in a source file.
    fn look(&self) -> String {
        if let Some((place, _)) =
            self.text.strip_prefix("panicked at ").and_then(|t| t.split_once(": "))
        {
            return format!("{} {place}", self.kind);
        }
        // Any control character is the same fault.
        let text = self.text.split_inclusive("control character").next().unwrap_or_default();
        let text: String = text.chars().take(200).collect();
        let words = text.split(|c: char| c.is_ascii_digit()).filter(|word| !word.is_empty());
        format!("{} {}", self.kind, words.collect::<Vec<_>>().join("#"))
    }
}

/// All findings by their key.
#[derive(Debug)]
pub(crate) struct Findings {
    keep: PathBuf,
    all: BTreeMap<String, (Finding, u64)>,
}

impl Findings {
    pub(crate) fn new(keep: &Path) -> Self {
        Self { keep: keep.to_owned(), all: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        let entry = self.all.entry(finding.look()).or_insert_with(|| (finding.clone(), 0));
        entry.1 += 1;
        // The smallest number is independent of the number of workers.
        if finding.number < entry.0.number {
            entry.0 = finding;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Keeps a minimized case for each finding, and describes the findings.
    pub(crate) fn keep(&self, place: &Place, sources: &Sources) -> io::Result<String> {
        let mut text = String::new();
        for (n, (finding, times)) in self.all.values().enumerate() {
            let Some(kind) = KINDS.iter().find(|kind| kind.name == finding.kind) else { continue };
            let seeds = (kind.seeds)(sources)?;
            let limit = least(finding, place)?;
            let case = make(kind, &seeds, place.seed, finding.number, limit);
            let dir = self.keep.join(format!("{}-{n}", finding.kind));
            case.keep(&dir)?;
            let shown: String = finding.text.chars().take(600).collect();
            let kind = finding.kind;
            let number = finding.number;
            let summary = format!("{kind} {number}, {times} times: {}", shown.escape_debug());
            fs_err::write(self.keep.join(format!("{kind}-{n}.txt")), format!("{summary}\n"))?;
            writeln!(text, "{summary}\n    kept in {}", dir.display()).ok();
        }
        Ok(text)
    }
}

/// Returns the fewest pieces of damage that give the same finding.
fn least(finding: &Finding, place: &Place) -> io::Result<usize> {
    // Minimizing a hang takes as long as the hang for every step.
    let tries = if finding.text == "hangs" { 0 } else { 6 };
    for limit in 0..tries {
        let mut worker = Worker::start(place)?;
        worker.order(&Order::Make {
            kind: finding.kind.to_owned(),
            from: finding.number,
            count: 1,
            most: limit,
            apart: finding.apart,
        })?;
        let same = match worker.report()?.map(|report| report.outcome) {
            Ok(Outcome::Wrong(text)) => {
                Finding { text, ..finding.clone() }.look() == finding.look()
            }
            Ok(_) => false,
            Err(_) => finding.text.starts_with("died"),
        };
        if same {
            return Ok(limit);
        }
    }
    Ok(usize::MAX)
}
