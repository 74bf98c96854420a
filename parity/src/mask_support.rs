//! Prompts with a mask besides causality, and engines that lack one.

use engine::capability::Feature;
use engine::{Engine, SessionOptions};
use registry::diag::Finding;

use crate::dump::{self, Dump, Prompt};

/// Returns the abilities that a prompt needs besides causal attention to tokens.
fn needed(prompt: &Prompt) -> Vec<Feature> {
    let all = [
        (prompt.prefix > 1, Feature::Prefix),
        (prompt.documents.len() > 1, Feature::Documents),
        (!prompt.spans.is_empty(), Feature::Spans),
        (prompt.has_rows(), Feature::Rows),
    ];
    all.into_iter().filter_map(|(needed, feature)| needed.then_some(feature)).collect()
}

/// Returns options that also demand what the prompts need, so that a model without it is refused.
pub(crate) fn masked(prompts: &[Prompt], options: SessionOptions) -> SessionOptions {
    let all: Vec<Feature> = prompts.iter().flat_map(needed).collect();
    SessionOptions {
        prefix: all.contains(&Feature::Prefix),
        documents: all.contains(&Feature::Documents),
        spans: all.contains(&Feature::Spans),
        rows: all.contains(&Feature::Rows),
        ..options
    }
}

/// Removes the prompts that an engine cannot run. Returns a note for each ability that it lacks. Returns an
/// error if no prompt remains.
pub(crate) fn retain_runnable(
    engine: &dyn Engine,
    prompts: &mut Vec<Prompt>,
) -> Result<Vec<String>, engine::Error> {
    let mut notes = Vec::new();
    for feature in [Feature::Prefix, Feature::Documents, Feature::Spans, Feature::Rows] {
        let names =
            prompts.iter().filter(|prompt| missing_feature(engine, prompt) == Some(feature));
        let names: Vec<String> = names.map(|prompt| format!("`{}`", prompt.name)).collect();
        if !names.is_empty() {
            notes.push(format!(
                "`{}` has no `{}`: of the dump, {} {} not run",
                engine.name(),
                feature.name(),
                names.join(", "),
                if names.len() == 1 { "was" } else { "were" }
            ));
        }
    }
    prompts.retain(|prompt| missing_feature(engine, prompt).is_none());
    if prompts.is_empty() && !notes.is_empty() {
        let findings = notes.into_iter().map(Finding::unplaced).collect();
        return Err(engine::Error::Refused(findings));
    }
    Ok(notes)
}

/// Returns what a prompt needs and the engine lacks.
fn missing_feature(engine: &dyn Engine, prompt: &Prompt) -> Option<Feature> {
    needed(prompt).into_iter().find(|feature| !engine.has(*feature))
}

/// Returns a dump without the prompts that an engine cannot run, with a note on them; none if it can run all.
pub(crate) fn runnable_part(
    engine: &dyn Engine,
    dump: &Dump,
) -> Result<Option<Dump>, crate::error::Error> {
    let mut prompts = dump.manifest.prompts.clone();
    let notes = retain_runnable(engine, &mut prompts)?;
    if notes.is_empty() {
        return Ok(None);
    }
    let reopened: Result<Dump, dump::Error> = Dump::open(&dump.dir);
    let mut part = reopened?;
    part.manifest = dump.manifest.clone();
    part.manifest.prompts = prompts;
    part.notes = dump.notes.iter().cloned().chain(notes).collect();
    Ok(Some(part))
}
