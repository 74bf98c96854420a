//! `parity check --chat`: the chat template and the tokenizer of a model, against a dump's record.

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use chat::check::{ChatRecord, ChatReport, ModelChatCheck};

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
        let record = ChatRecord::of_model(model, self.reference.as_deref())?;
        let ModelChatCheck { report, without_tokens } = record.check_model(model)?;
        if let Some(why) = without_tokens {
            term::note(&format!("note: tokens are not compared: {why}"));
        }
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
