//! `parity check --chat`: the chat template and the tokenizer of a model, against a dump's record.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use chat::Template;
use chat::check::{ChatRecord, ChatReport, ChatTokensError, RecordError};
use formats::gguf::GgufFile;
use tokenizer::ReferenceTokenizer;
use tokenizer::check::LlamaTokenizer;

use super::ParityCheckArgs;
use crate::{CommandOutcome, term, write};

impl ParityCheckArgs {
    /// Compares, and prints the report.
    pub(super) fn run_chat(&self) -> Result<CommandOutcome> {
        ensure!(
            self.html.is_none() && self.junit.is_none(),
            "--chat writes text or --json; leave out --html and --junit"
        );
        let model = &self.which.model;
        let record = self.chat_record(model)?;
        let report = check_model(model, &record)?;
        let json = serde_json::to_string_pretty(&report)? + "\n";
        match &self.json {
            Some(path) if path.as_os_str() == "-" => term::print(&json)?,
            path => {
                if let Some(path) = path {
                    write::atomic(path, json.as_bytes())?;
                    term::note(&format!("wrote {}", path.display()));
                }
                term::print(&shown(&report, &record))?;
            }
        }
        Ok(if report.differs() { CommandOutcome::Differs } else { CommandOutcome::Ok })
    }

    /// Reads the record: of --reference, or of the model's own dump.
    fn chat_record(&self, model: &Path) -> Result<ChatRecord> {
        Ok(read_record(model, self.reference.as_deref())?)
    }
}

/// Reads the record of a dump, or of the model's own one.
pub(crate) fn read_record(
    model: &Path,
    reference: Option<&Path>,
) -> Result<ChatRecord, RecordError> {
    let home = if model.is_dir() { model } else { model.parent().unwrap_or(model) };
    let candidates: Vec<PathBuf> = match reference {
        Some(dump) => vec![dump.to_owned()],
        None => vec![home.join("reference"), home.join("dump")],
    };
    let recorded = candidates.iter().find(|dump| dump.join(chat::check::RECORD).is_file());
    ChatRecord::read(recorded.unwrap_or(&candidates[0]))
}

/// Compares a checkpoint or a GGUF file with a record.
pub(crate) fn check_model(model: &Path, record: &ChatRecord) -> Result<ChatReport> {
    if model.is_dir() { check_folder(model, record) } else { check_file(model, record) }
}

fn failure(error: impl std::fmt::Display) -> ChatTokensError {
    ChatTokensError(error.to_string())
}

/// Compares the files of a checkpoint.
fn check_folder(model: &Path, record: &ChatRecord) -> Result<ChatReport> {
    let template = match Template::open(model) {
        Ok(template) => Some(template),
        Err(chat::TemplateError::Missing { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let tokenizer = ReferenceTokenizer::read(model)?;
    let Some(tokenizer) = tokenizer else {
        term::note("note: there is no tokenizer.json, so tokens are not compared");
        return Ok(record.check(template.as_ref(), None));
    };
    let encode = |text: &str, around: bool| tokenizer.encode(text, around).map_err(failure);
    Ok(record.check(template.as_ref(), Some(&encode)))
}

/// Compares the keys of a GGUF file.
fn check_file(model: &Path, record: &ChatRecord) -> Result<ChatReport> {
    let file = GgufFile::open(model)
        .with_context(|| format!("cannot read `{}` as a GGUF file", model.display()))?;
    let template = Template::from_gguf(model, file.metadata());
    let tokenizer = match LlamaTokenizer::new(file.metadata()) {
        Ok(tokenizer) => tokenizer,
        Err(why) => {
            term::note(&format!("note: tokens are not compared: {why}"));
            return Ok(record.check(template.as_ref(), None));
        }
    };
    let encode = |text: &str, around: bool| {
        let ids = if around { tokenizer.prompt(text) } else { tokenizer.conversation(text) };
        ids.map_err(failure)
    };
    Ok(record.check(template.as_ref(), Some(&encode)))
}

/// Prints a report as text.
fn shown(report: &ChatReport, record: &ChatRecord) -> String {
    let made_by: Vec<String> =
        record.producer.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let mut out = format!("reference: {}\n", made_by.join(", "));
    for (name, count) in report.counts() {
        let _ = writeln!(out, "{name}: {} of {}", count.equal, count.of);
    }
    for finding in &report.findings {
        let level = if finding.differs { "differs" } else { "warning" };
        let _ = writeln!(
            out,
            "{level} [{}]: {}\n  remedy: {}",
            finding.kind, finding.text, finding.remedy
        );
    }
    out +=
        if report.differs() { "the chat template or the tokenizer differs\n" } else { "equal\n" };
    out
}
