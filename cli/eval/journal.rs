//! Items that an interrupted evaluation has scored already, in `OUTPUT.part`.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use parity::evals::ScoredItem;
use registry::file;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::term;

/// First word of a journal.
const SCHEMA: &str = "onboard-eval-journal/1";

/// Returns the first line of the journal of an evaluation: a journal with another one is not used.
fn head(identity: &impl Debug) -> String {
    format!("{SCHEMA} {:x}\n", Sha256::digest(format!("{identity:?}")))
}

/// Journal beside an output; none for standard output.
pub(super) struct EvalJournal {
    path: PathBuf,
    file: fs_err::File,
}

/// Line of a journal: a record as written, and the bits of its scores.
fn line(scored: &ScoredItem) -> String {
    let scores: BTreeMap<&str, u64> =
        scored.scores.iter().map(|(metric, score)| (metric.as_str(), score.to_bits())).collect();
    json!({ "record": scored.record.to_string(), "scores": scores, "dropped": scored.dropped })
        .to_string()
}

/// Parses a line of a journal into the record's text and the scores; none if it is incomplete.
fn parse(line: &str) -> Option<(String, ScoredItem)> {
    let value: Value = serde_json::from_str(line).ok()?;
    let scores = value["scores"].as_object()?.iter();
    let scores =
        scores.map(|(metric, bits)| Some((metric.clone(), f64::from_bits(bits.as_u64()?))));
    let item = ScoredItem {
        record: Value::Null,
        scores: scores.collect::<Option<_>>()?,
        dropped: usize::try_from(value["dropped"].as_u64()?).ok()?,
    };
    Some((value["record"].as_str()?.to_owned(), item))
}

impl EvalJournal {
    /// Opens the journal of an output, and returns the records and scores of at most `most` items that it
    /// holds of the same evaluation. `identity` holds everything that the scores depend on.
    pub(super) fn open(
        output: &Path,
        identity: &impl Debug,
        most: usize,
    ) -> Result<(Self, Vec<(String, ScoredItem)>)> {
        let mut path = output.as_os_str().to_owned();
        path.push(".part");
        let (path, head) = (PathBuf::from(path), head(identity));
        let text = file::read_text(&path, file::REPORT).unwrap_or_default();
        let (mut found, mut kept) = (Vec::new(), 0);
        if let Some(lines) = text.strip_prefix(&head) {
            kept = head.len();
            for line in lines.split_inclusive('\n').take(most) {
                // A line without its end was being written.
                let Some(item) = line.strip_suffix('\n').and_then(parse) else { break };
                found.push(item);
                kept += line.len();
            }
        } else if !text.is_empty() {
            let part = path.display();
            term::note(&format!("`{part}` is of another evaluation and is replaced"));
        }
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs_err::create_dir_all(parent)?;
        }
        let mut file =
            fs_err::OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
        file.set_len(kept as u64)?;
        file.seek(SeekFrom::End(0))?;
        let mut journal = Self { path, file };
        if kept == 0 {
            journal.write(head.trim_end())?;
        }
        Ok((journal, found))
    }

    fn write(&mut self, line: &str) -> Result<()> {
        writeln!(self.file, "{line}")
            .with_context(|| format!("cannot write the journal `{}`", self.path.display()))
    }

    /// Adds a scored item.
    pub(super) fn add(&mut self, scored: &ScoredItem) -> Result<()> {
        self.write(&line(scored))
    }

    /// Removes the journal of a finished evaluation.
    pub(super) fn finish(self) {
        drop(self.file);
        fs_err::remove_file(&self.path).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(score: f64) -> ScoredItem {
        let scores = BTreeMap::from([("acc".to_owned(), score)]);
        ScoredItem { record: json!({ "id": "a", "x": 0.1 }), scores, dropped: 3 }
    }

    #[test]
    fn scored_items_are_found_again_unless_the_evaluation_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("out.jsonl");
        let (mut journal, found) = EvalJournal::open(&output, &"a", 9).unwrap();
        assert!(found.is_empty());
        journal.add(&item(0.1 + 0.2)).unwrap();
        journal.add(&item(1.0)).unwrap();
        // Killed in the middle of a line.
        write!(journal.file, "{{\"record\": \"").unwrap();
        drop(journal);
        let (journal, found) = EvalJournal::open(&output, &"a", 9).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].0, item(0.0).record.to_string());
        assert_eq!(found[0].1.scores["acc"].to_bits(), (0.1_f64 + 0.2).to_bits());
        drop(journal);
        assert_eq!(EvalJournal::open(&output, &"a", 1).unwrap().1.len(), 1);
        assert_eq!(EvalJournal::open(&output, &"b", 9).unwrap().1.len(), 0);
        let (journal, found) = EvalJournal::open(&output, &"a", 9).unwrap();
        assert!(found.is_empty(), "another evaluation began anew");
        journal.finish();
        assert!(fs_err::read_dir(folder.path()).unwrap().next().is_none());
    }
    /// Damages bytes of a journal at random places. Lines up to the first damaged one are kept.
    #[test]
    fn a_damaged_journal_gives_the_items_before_the_damage() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("out.jsonl");
        let (mut journal, _) = EvalJournal::open(&output, &"a", 9).unwrap();
        for n in 0..4 {
            journal.add(&item(f64::from(n))).unwrap();
        }
        let path = journal.path.clone();
        drop(journal);
        let sound = fs_err::read(&path).unwrap();
        let mut state = 1_u32;
        let mut random = |below: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as usize % below
        };
        for _ in 0..2000 {
            let mut bytes = sound.clone();
            let at = random(bytes.len());
            bytes[at] = b"\0\n\"{}[]-9ex\xff"[random(12)];
            if random(4) == 0 {
                bytes.truncate(at);
            }
            fs_err::write(&path, &bytes).unwrap();
            let (_, found) = EvalJournal::open(&output, &"a", 9).unwrap();
            let lines = sound[..at].split(|byte| *byte == b'\n').count() - 1;
            let utf8 = std::str::from_utf8(&bytes).is_ok();
            assert!(found.len() <= 5 && (!utf8 || found.len() >= lines.saturating_sub(1)), "{at}");
        }
    }
}
