//! The list of a draft's findings.

use std::path::{Path, PathBuf};

use registry::render::{RenderStyle, count, render_one};

use super::SpecDraft;

/// Returns the file of the full list of findings: the draft's name with `.findings.txt`.
pub fn list_path(draft: &Path) -> PathBuf {
    draft.with_extension("findings.txt")
}

/// Returns all findings, however many; reports show the first of many.
pub fn list(draft: &SpecDraft) -> String {
    let findings = draft.findings.iter();
    let mut texts: Vec<String> =
        findings.map(|finding| render_one(finding, RenderStyle::Plain)).collect();
    texts.push(count(&draft.findings));
    texts.join("\n\n") + "\n"
}
