//! `--to fp8` and similar formats: writes a checkpoint as a folder of safetensors that engines load.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use checkpoints::Checkpoint;
use checkpoints::checkpoint::INDEX;
use checkpoints::weights::flows;
use conversion::folder::{self, CalibratedScales, FolderFormat, FolderItem, ListingOptions, peaks};
use conversion::{OutFolder, SideFile, Work};
use engine::Engine;
use formats::python_json::texts_as_words;
use models::config::long_name;
use models::coverage::TensorCoverage;
use models::local_model::LocalModel;
use registry::dtype::Dtype;

use super::folder_plan::FolderPlan;
use super::{ConvertArgs, gguf_source, set_id, several};
use crate::target::{self, ModelArgs};
use crate::{CommandOutcome, term};

mod show;
mod side_files;
mod target_kl;

/// File that engines read first.
const CONFIG: &str = "config.json";

/// Writes one folder, or prints the plan.
pub(super) fn run(
    args: &ConvertArgs,
    which: &ModelArgs,
    format: FolderFormat,
) -> Result<CommandOutcome> {
    let [output] = &args.output[..] else {
        bail!("where to? give one folder: -o DIR");
    };
    let format = args.calibration.format(format)?;
    ensure!(!output.is_file(), "`{}` is a file; `{}` is a folder", output.display(), format.name());
    let target = target::open(which, &args.choice)?;
    let checkpoint = target.checkpoint()?;
    target::covered(&TensorCoverage::of(&target.model, &checkpoint), &target.dir)?;
    gguf_source::refuse_twice(&target, &checkpoint, format.quantizes(), args.requantize)?;
    if target.is_gguf() {
        gguf_source::note_encoders(&target);
    }
    let format = format.of_source(&checkpoint);
    let mut plan = plan(&target, &checkpoint, format, output, args.quantize_output)?;
    plan.compat = args.compat;
    plan.copy_code = args.copy_code;
    plan.scales = args.calibration.planned(&plan)?;
    ensure!(
        format.quantizes() || !args.goal.is_set(),
        "--target-kl: `{}` loses nothing",
        format.name()
    );
    args.calibration.refuse_lost(Some(format), &checkpoint)?;
    if !args.plan {
        refuse_taken(args, output)?;
    }
    let goal = args.goal.goal(args, &target, output)?;
    for note in plan.unchanged().into_iter().chain(plan.wider()).chain(plan.loaders()) {
        term::note(&note);
    }
    let mut seen = None;
    if let Some(goal) = &goal {
        plan.scales = args.calibration.measure(&plan, &mut seen, args.threads())?;
        target_kl::choose(goal, args, &mut plan)?;
        plan.scales = args.calibration.planned(&plan)?;
    }
    plan.items = folder::items(format, &plan.tensors, &plan.choices, None, &plan.scales);
    let set_id = args.set_key(|| set_id::of_folder(&plan))?;
    plan.files = folder::lay_out(output, &plan.items, plan.limit(args), &set_id)?;
    if args.plan {
        term::print(&if args.json { show::json(&plan)? } else { show::text(&plan) })?;
        return Ok(CommandOutcome::Ok);
    }
    ensure!(
        plan.quantized() > 0 || !format.quantizes(),
        "no matrix of `{}` can become {}; `--plan` says why for each",
        target.dir.display(),
        format.name()
    );
    args.note_fewer(plan.files.len())?;
    if args.shard.is_some_and(|(no, _)| no >= plan.files.len()) {
        if let Some(goal) = goal {
            goal.end();
        }
        return Ok(CommandOutcome::Ok);
    }
    let beside = side_files::files(&plan)?;
    side_files::note_code(&plan)?;
    plan.scales = args.calibration.measure(&plan, &mut seen, args.threads())?;
    plan.items = items(args.threads(), &plan)?;
    let ended = write(args, &plan, beside)?;
    match goal {
        Some(goal) => {
            let engine = goal.engine.clone();
            goal.confirm(args, &target, &plan.folder, |_: &Path| {
                Ok(Box::new(engine) as Box<dyn Engine>)
            })
        }
        None => Ok(ended),
    }
}

/// Returns the items to write. If scales are shared, the weights are read to compute them.
pub(super) fn items<'c>(threads: usize, plan: &FolderPlan<'c>) -> Result<Vec<FolderItem<'c>>> {
    let tensors = &plan.tensors;
    let choices = &plan.choices;
    let peaks = if plan.format.shares() {
        Some(peaks::peaks(tensors, choices, &plan.target.model.quant, threads)?)
    } else {
        None
    };
    Ok(folder::items(plan.format, tensors, choices, peaks.as_deref(), &plan.scales))
}

pub(super) fn plan<'c>(
    target: &'c LocalModel,
    checkpoint: &'c Checkpoint,
    format: FolderFormat,
    into: &Path,
    output: bool,
) -> Result<FolderPlan<'c>> {
    let model = &target.model;
    let (weights, _) = flows(checkpoint, &model.graph.weights, &model.rules)
        .map_err(|errors| several(errors.iter().map(ToString::to_string)))?;
    let options = ListingOptions { apart: format.quantizes(), output };
    let tensors = folder::tensors(checkpoint, model, &weights, options)?;
    let choices = format.choose(&tensors, &model.quant);
    Ok(FolderPlan {
        format,
        target,
        checkpoint,
        tensors,
        choices,
        scales: CalibratedScales::default(),
        items: Vec::new(),
        files: Vec::new(),
        folder: into.to_owned(),
        compat: false,
        copy_code: false,
    })
}

/// Returns the work of a whole folder, or that of one of its shards.
pub(super) fn work<'c>(
    plan: &FolderPlan<'c>,
    shard: Option<usize>,
    beside: Vec<SideFile>,
) -> Result<Work<'c>> {
    let folder = &plan.folder;
    fs_err::create_dir_all(folder)?;
    let mut work = folder::work(&plan.items, &plan.files, shard, set_id::of_folder_run(plan)?);
    work.stale = side_files::stale_files(plan, &beside, shard.is_some())?;
    work.beside = beside;
    // Engines start with the config; programs that read only tensors start with the index.
    work.gates = vec![folder.join(INDEX), folder.join(CONFIG)];
    work.folder = Some(OutFolder { path: folder.clone(), shared: shard.is_some() });
    Ok(work)
}

fn write(
    args: &ConvertArgs,
    plan: &FolderPlan<'_>,
    beside: Vec<SideFile>,
) -> Result<CommandOutcome> {
    let shard = args.shard.map(|(no, _)| no);
    let mut work = work(plan, shard, beside)?;
    work.hashed = true;
    let same = fs_err::canonicalize(&plan.folder)? == fs_err::canonicalize(&plan.target.dir)?;
    ensure!(!same, "`{}` is what is read; choose another folder", plan.folder.display());
    args.execute(&work, plan.checkpoint, plan.target, || {
        if shard.is_none() { reopen(plan) } else { Ok(()) }
    })
}

/// Returns an error for a folder that holds a checkpoint, before anything is measured for it.
fn refuse_taken(args: &ConvertArgs, folder: &Path) -> Result<()> {
    ensure!(
        args.force || args.resume || args.shard.is_some() || !folder.join(CONFIG).exists(),
        "`{}` holds a checkpoint already; remove it, choose another folder, or allow it with --force",
        folder.display()
    );
    Ok(())
}

/// Opens the output as any reader would, and checks its tensors against the plan.
fn reopen(plan: &FolderPlan<'_>) -> Result<()> {
    let written = Checkpoint::open(&plan.folder)
        .with_context(|| format!("`{}` was written and cannot be read", plan.folder.display()))?;
    let outs = plan.items.iter().flat_map(|item| &item.outs);
    let mut count = 0;
    for out in outs {
        let declared = &out.declared;
        let info = written.stored(&declared.name);
        let fits = info.is_some_and(|i| i.dtype == declared.dtype && i.shape == declared.shape);
        ensure!(fits, "`{}` lacks the tensor `{}`", plan.folder.display(), declared.name);
        count += 1;
    }
    let stored = written.stored_len();
    ensure!(stored == count, "`{}` has {stored} tensors, expected {count}", plan.folder.display());
    Ok(())
}

/// Returns the config of the new checkpoint.
pub(super) fn config_text(plan: &FolderPlan<'_>) -> Result<String> {
    let mut json = if plan.target.is_gguf() {
        gguf_source::config(plan.target)?
    } else {
        plan.target.config.value()?
    };
    let map = json.as_object_mut().context("the config is no object")?;
    for key in ["quantization_config", "compression_config"] {
        map.remove(key);
        if let Some(inner) = map.get_mut("text_config").and_then(|inner| inner.as_object_mut()) {
            inner.remove(key);
        }
    }
    if let Some(quantization) = plan.format.quantization(&plan.listed(), plan.scales.asked) {
        map.insert("quantization_config".to_owned(), quantization);
    } else {
        let key = if map.contains_key("torch_dtype") { "torch_dtype" } else { "dtype" };
        let dtype = plan.format.dtype().unwrap_or(Dtype::Bf16);
        map.insert(key.to_owned(), long_name(dtype).into());
    }
    if plan.compat {
        crate::launch::extend(plan.target, &mut json)?;
    }
    // As transformers writes it, and whatever crates make of the order of keys.
    json.sort_all_objects();
    Ok(texts_as_words(format!("{json:#}\n")))
}
