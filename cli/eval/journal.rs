//! Items that an interrupted evaluation has scored already, in `OUTPUT.part`.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use parity::evals::ScoredItem;
use registry::file;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// First word of a journal's key.
const SCHEMA: &str = "onboard-eval-journal/1";

/// Identity of an evaluation: a journal of another one is not used.
#[derive(Default)]
pub(super) struct JournalKey(Sha256);

impl JournalKey {
    /// Adds a setting.
    pub(super) fn add(&mut self, setting: &impl Debug) {
        self.0.update(format!("{setting:?}\n"));
    }

    /// Adds name, length and time of a file, or of the weights in a folder.
    pub(super) fn add_file(&mut self, path: &Path) -> Result<()> {
        let mut files = vec![path.to_owned()];
        if path.is_dir() {
            let entries = fs_err::read_dir(path)?.map(|entry| entry.map(|entry| entry.path()));
            files = entries.collect::<Result<_, _>>()?;
            files.retain(|path| path.extension().is_some_and(|end| end == "safetensors"));
            files.sort();
        }
        for path in files {
            let metadata = fs_err::metadata(&path)?;
            let time = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            self.add(&(path, metadata.len(), time));
        }
        Ok(())
    }

    /// Adds the files beside the weights that decide tokens and the model, as far as there are any.
    pub(super) fn add_settings_of(&mut self, home: &Path) -> Result<()> {
        let names =
            ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];
        names
            .iter()
            .map(|name| home.join(name))
            .filter(|path| path.is_file())
            .try_for_each(|path| self.add_file(&path))
    }

    fn line(self) -> String {
        format!("{SCHEMA} {:x}", self.0.finalize())
    }
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
    /// holds of the same evaluation.
    pub(super) fn open(
        output: &Path,
        key: JournalKey,
        most: usize,
    ) -> Result<(Self, Vec<(String, ScoredItem)>)> {
        let mut path = output.as_os_str().to_owned();
        path.push(".part");
        let path = PathBuf::from(path);
        let key = key.line();
        let text = file::read_text(&path, file::REPORT).unwrap_or_default();
        let mut found = Vec::new();
        if let Some(lines) = text.strip_prefix(&key).and_then(|rest| rest.strip_prefix('\n')) {
            // A line without its end was being written.
            let whole = lines.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
            found.extend(whole.map_while(parse).take(most));
        } else if !text.is_empty() {
            let part = path.display();
            crate::term::note(&format!("`{part}` is of another evaluation and is replaced"));
        }
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs_err::create_dir_all(parent)?;
        }
        let mut journal = Self { file: fs_err::File::create(&path)?, path };
        journal.write(&key)?;
        for line in text.lines().skip(1).take(found.len()) {
            journal.write(line)?;
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

    fn key(setting: &str) -> JournalKey {
        let mut key = JournalKey::default();
        key.add(&setting);
        key
    }

    #[test]
    fn scored_items_are_found_again_unless_the_evaluation_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("out.jsonl");
        let (mut journal, found) = EvalJournal::open(&output, key("a"), 9).unwrap();
        assert!(found.is_empty());
        journal.add(&item(0.1 + 0.2)).unwrap();
        journal.add(&item(1.0)).unwrap();
        // Killed in the middle of a line.
        write!(journal.file, "{{\"record\": \"").unwrap();
        drop(journal);
        let (journal, found) = EvalJournal::open(&output, key("a"), 9).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].0, item(0.0).record.to_string());
        assert_eq!(found[0].1.scores["acc"].to_bits(), (0.1_f64 + 0.2).to_bits());
        drop(journal);
        assert_eq!(EvalJournal::open(&output, key("a"), 1).unwrap().1.len(), 1);
        assert_eq!(EvalJournal::open(&output, key("b"), 9).unwrap().1.len(), 0);
        let (journal, found) = EvalJournal::open(&output, key("a"), 9).unwrap();
        assert!(found.is_empty(), "another evaluation began anew");
        journal.finish();
        assert!(fs_err::read_dir(folder.path()).unwrap().next().is_none());
    }
}
