//! Files beside the weights: config, index, tokenizer, generation settings, card.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use checkpoints::checkpoint::outside;
use conversion::SideFile;
use conversion::folder::index;
use conversion::hashes;
use registry::listing;

use super::config_text;
use crate::error::{Result, bail, ensure};
use crate::folder_plan::{CONFIG, FolderPlan};
use crate::gguf_source;
use crate::loaded_files::{
    TEMPLATES, entries, is_foreign, is_shard, is_side_file, is_template, templates,
};
use crate::observer::ConversionObserver;

/// Renders the files, before anything is written; the config is the last.
pub(super) fn files(
    observer: &dyn ConversionObserver,
    plan: &FolderPlan<'_>,
) -> Result<Vec<SideFile>> {
    let folder = &plan.folder;
    // The folder's old files are removed, and new ones written.
    if folder.join(TEMPLATES).is_symlink() {
        bail!(
            "`{}` is a link; expected a folder of the output or nothing: remove the link",
            folder.join(TEMPLATES).display()
        );
    }
    let mut files = of_source(observer, plan)?;
    files.push(card(plan));
    files.extend(of_format(plan));
    files.extend(of_files(plan));
    let bytes = config_text(observer, plan)?.into_bytes();
    files.push(SideFile { path: folder.join(CONFIG), bytes });
    Ok(files)
}

/// Returns the file that describes the format to engines, if the format has one.
pub(crate) fn of_format(plan: &FolderPlan<'_>) -> Option<SideFile> {
    let mut json = plan.format.beside(&plan.ignored(), plan.scales.asked)?;
    json.sort_all_objects();
    let bytes = format!("{json:#}\n").into_bytes();
    Some(SideFile { path: plan.folder.join("hf_quant_config.json"), bytes })
}

/// Returns the index of the files, if there are several.
pub(crate) fn of_files(plan: &FolderPlan<'_>) -> Option<SideFile> {
    let (path, text) = index(&plan.folder, &plan.items, &plan.files)?;
    Some(SideFile { path, bytes: text.into_bytes() })
}

/// Reads the files that the folder takes over from the checkpoint: tokenizer, settings, templates, and code if wanted.
pub(crate) fn of_source(
    observer: &dyn ConversionObserver,
    plan: &FolderPlan<'_>,
) -> Result<Vec<SideFile>> {
    let folder = &plan.folder;
    let source = &plan.target.dir;
    let mut files = if plan.target.is_gguf() {
        gguf_source::side_files(observer, plan.target, folder)?
    } else {
        let code =
            if plan.copy_code { read_files(source, source, folder, is_code)? } else { Vec::new() };
        [read_files(source, source, folder, carried)?, code].concat()
    };
    let templates = source.join(TEMPLATES);
    if templates.is_dir() {
        files.extend(read_files(source, &templates, &folder.join(TEMPLATES), is_template)?);
    }
    Ok(files)
}

/// Names the code of the checkpoint that is left out. Loaders run code that stands beside weights when they are told
/// to trust a folder, so it gets there only if the user wants it.
pub(super) fn note_code(observer: &dyn ConversionObserver, plan: &FolderPlan<'_>) -> Result<()> {
    if plan.target.is_gguf() {
        return Ok(());
    }
    let paths = entries(&plan.target.dir)?;
    let names = paths.iter().filter_map(|path| path.file_name()?.to_str());
    let code: Vec<&str> = names.filter(|name| is_code(name)).collect();
    if !plan.copy_code && !code.is_empty() {
        observer.note(&format!(
            "warning: the code of the checkpoint is left out ({}): read it, then copy it with the option `copy-code` if a loader \
             needs it",
            listing::items(code)
        ));
    }
    Ok(())
}

/// True for files with code that loaders run.
fn is_code(name: &str) -> bool {
    name.to_lowercase().ends_with(".py")
}

/// Reads the wanted files of a folder of the checkpoint `root`.
fn read_files(
    root: &Path,
    from: &Path,
    to: &Path,
    is_read: fn(&str) -> bool,
) -> Result<Vec<SideFile>> {
    let mut files = Vec::new();
    for path in entries(from)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() || !is_read(&name) {
            continue;
        }
        ensure!(
            path.is_file(),
            "`{}` is no regular file; expected a file beside the weights: remove it",
            path.display()
        );
        if let Some(leads) = outside(root, &path)? {
            bail!(
                "`{}` is a link to `{}` outside the checkpoint; expected a file beside the \
                 weights: copy it there if it is to be carried over, or remove the link",
                path.display(),
                leads.display()
            );
        }
        let bytes = registry::file::read(&path, registry::file::COPIED)?;
        files.push(SideFile { path: to.join(&name), bytes });
    }
    Ok(files)
}

/// Lists files of another checkpoint in the folder that readers would take for files of this one. These are
/// weights, and optional files that loaders read by name. Weights of another program are an error.
pub(super) fn stale_files(
    plan: &FolderPlan<'_>,
    beside: &[SideFile],
    is_shared: bool,
) -> Result<Vec<PathBuf>> {
    let mut stale = entries(&plan.folder)?;
    for path in stale.iter().filter(|path| !is_planned(plan, beside, path)) {
        ensure!(
            !is_foreign(&path.file_name().unwrap_or_default().to_string_lossy()),
            "`{}` holds weights of another model; expected an output folder without: move it away, or give \
             another folder",
            path.display()
        );
    }
    stale.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let of_planned =
            is_shared && plan.files.iter().any(|file| hashes::path_for(&file.path) == *path);
        let is_hashes = hashes::is_hashes(name.as_ref().as_ref()) && !of_planned;
        is_shard(&name) || is_side_file(&name) || (is_hashes && is_ours(&name))
    });
    stale.extend(templates(&plan.folder)?);
    stale.retain(|path| !is_planned(plan, beside, path) && !path.is_dir());
    Ok(stale)
}

/// True if the conversion writes a file of this path.
fn is_planned(plan: &FolderPlan<'_>, beside: &[SideFile], path: &Path) -> bool {
    plan.files.iter().any(|file| file.path == *path) || beside.iter().any(|side| side.path == *path)
}

/// True for the names of hashes that this program writes in a folder.
fn is_ours(name: &str) -> bool {
    name == hashes::FOLDER || name.strip_suffix(hashes::END).is_some_and(is_shard)
}

/// True if a file of the source folder belongs to the new one: texts, except those about the old weights.
fn carried(name: &str) -> bool {
    const OWN: [&str; 5] = [
        "config.json",
        "hf_quant_config.json",
        "quantize_config.json",
        "quant_config.json",
        "README.md",
    ];
    let lower = name.to_lowercase();
    let text = ["json", "txt", "model", "jinja", "tiktoken"];
    let kind = text.iter().any(|end| lower.ends_with(&format!(".{end}")));
    let named = ["license", "notice", "use_policy"].iter().any(|start| lower.starts_with(start));
    (kind || named) && !OWN.contains(&name) && !lower.ends_with(".index.json")
}

/// Describes the conversion, without time or path: the same inputs give the same card.
pub(crate) fn card(plan: &FolderPlan<'_>) -> SideFile {
    let name = &plan.target.name;
    let format = plan.format.name();
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
    SideFile { path: plan.folder.join("README.md"), bytes: text.into_bytes() }
}
