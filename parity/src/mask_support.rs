//! Prompts with a mask besides causality, and engines that lack one.

use engine::capability::Feature;
use engine::{Engine, SessionOptions};
use registry::diag::Finding;

use crate::dump::{self, Dump, Prompt};

/// Returns the ability that a prompt needs besides causal attention.
fn needed(prompt: &Prompt) -> Option<Feature> {
    let prefix = (prompt.prefix > 1).then_some(Feature::Prefix);
    prefix.or_else(|| (prompt.documents.len() > 1).then_some(Feature::Documents))
}

/// Returns options that also demand the masks of the prompts, so that a model without them is refused.
pub(crate) fn masked(prompts: &[Prompt], options: SessionOptions) -> SessionOptions {
    SessionOptions {
        prefix: prompts.iter().any(|prompt| needed(prompt) == Some(Feature::Prefix)),
        documents: prompts.iter().any(|prompt| needed(prompt) == Some(Feature::Documents)),
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
    for feature in [Feature::Prefix, Feature::Documents] {
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
    needed(prompt).filter(|feature| !engine.has(*feature))
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
