//! What lies beside the weights: config, index, tokenizer, generation settings, card.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use converters::convert::folder::{config, index};

use super::{Plan, config_text};
use crate::write::atomic;

/// Writes the files; the config comes last, so that a folder without one is unfinished.
pub(super) fn write(plan: &Plan<'_>) -> Result<()> {
    let folder = &plan.folder;
    carry(&plan.target.dir, folder, carried)?;
    let templates = plan.target.dir.join(TEMPLATES);
    if templates.is_dir() {
        fs_err::create_dir_all(folder.join(TEMPLATES))?;
        carry(&templates, &folder.join(TEMPLATES), |name| {
            Path::new(name).extension().is_some_and(|end| end == "jinja")
        })?;
    }
    atomic(&folder.join("README.md"), card(plan).as_bytes())?;
    if let Some(json) = config::beside(plan.format, &plan.ignored(), plan.scales.asked) {
        atomic(&folder.join("hf_quant_config.json"), format!("{json:#}\n").as_bytes())?;
    }
    if let Some((path, text)) = index(folder, &plan.items, &plan.files) {
        atomic(&path, text.as_bytes())?;
    }
    atomic(&folder.join("config.json"), config_text(plan)?.as_bytes())
}

/// Folder of the chat templates that have names.
const TEMPLATES: &str = "additional_chat_templates";

/// Copies the files of a folder whose names are wanted.
fn carry(from: &Path, to: &Path, wanted: fn(&str) -> bool) -> Result<()> {
    for entry in fs_err::read_dir(from)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_file() && wanted(&name) {
            atomic(&to.join(&name), &registry::file::read(&path, registry::file::COPIED)?)?;
        }
    }
    Ok(())
}

/// Removes weights of another checkpoint that was in the folder: readers would take them for these.
pub(super) fn remove_older(plan: &Plan<'_>) -> Result<()> {
    for entry in fs_err::read_dir(&plan.folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let weights = name.starts_with("model") && name.ends_with(".safetensors");
        let index = name == "model.safetensors.index.json";
        // Engines go by it where a config says nothing.
        let said = name == "hf_quant_config.json";
        if (weights || index || said) && !plan.files.iter().any(|file| file.path == path) {
            fs_err::remove_file(path)?;
        }
    }
    Ok(())
}

/// Whether a file of the old folder belongs to the new one: texts, but none about the old weights.
fn carried(name: &str) -> bool {
    const OWN: [&str; 5] = [
        "config.json",
        "hf_quant_config.json",
        "quantize_config.json",
        "quant_config.json",
        "README.md",
    ];
    let lower = name.to_lowercase();
    let text = ["json", "txt", "model", "jinja", "tiktoken", "py"];
    let kind = text.iter().any(|end| lower.ends_with(&format!(".{end}")));
    let named = ["license", "notice", "use_policy"].iter().any(|start| lower.starts_with(start));
    (kind || named) && !OWN.contains(&name) && !lower.ends_with(".index.json")
}

/// What was made of what, in words. No time and no place: the same inputs give the same card.
fn card(plan: &Plan<'_>) -> String {
    let (name, format) = (&plan.target.name, plan.format.name());
    let mut text = format!("# {name}, {format}\n\n");
    let quantized = plan.quantized();
    let _ = writeln!(
        text,
        "Made of `{name}` ({}) by onboard {}: {quantized} of {} tensors are quantized.\n",
        plan.target.model.architecture,
        env!("CARGO_PKG_VERSION"),
        plan.tensors.len()
    );
    let ignored = plan.ignored();
    if plan.format.quantizes() && !ignored.is_empty() {
        text.push_str("Matrices that are kept as they were:\n\n");
        for module in ignored {
            let _ = writeln!(text, "* `{module}`");
        }
    }
    text
}
