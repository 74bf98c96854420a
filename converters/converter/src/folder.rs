//! Checkpoint formats such as `fp8`: writes a checkpoint as a folder of safetensors that engines load.

use std::path::Path;

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
use serde_json::Value;

use crate::engine_keys;
use crate::error::{Context as _, Result, ensure, several};
use crate::folder_plan::{CONFIG, FolderPlan};
use crate::gguf_source;
use crate::observer::ConversionObserver;
use crate::options::ConvertOptions;
use crate::outcome::ConversionOutcome;
use crate::run::ConversionRun;
use crate::set_id;

mod show;
pub(crate) mod side_files;
mod target_kl;

/// Writes one folder, or hands its plan to the observer.
pub(crate) fn run(
    run: ConversionRun<'_>,
    target: &LocalModel,
    format: FolderFormat,
) -> Result<ConversionOutcome> {
    let options = run.options;
    let calibration = &options.calibration;
    let checkpoint = target.checkpoint()?;
    let coverage = TensorCoverage::of(&target.model, &checkpoint);
    coverage.refuse(&target.dir)?;
    run.observer.findings(&coverage.findings);
    gguf_source::refuse_twice(target, &checkpoint, format.quantizes(), options.requantize)?;
    if target.is_gguf() {
        gguf_source::note_encoders(run.observer, target);
    }
    let format = format.of_source(&checkpoint);
    let output = &options.output[0];
    let mut plan = plan(target, &checkpoint, format, output, options.quantize_output)?;
    plan.compat = options.compat;
    plan.copy_code = options.copy_code;
    plan.scales = calibration.planned(&plan)?;
    ensure!(
        format.quantizes() || !options.goal.is_set(),
        "the option `target-kl`: `{}` loses nothing",
        format.name()
    );
    calibration.refuse_lost(run.observer, Some(format), &checkpoint)?;
    if !options.plan {
        refuse_taken(options, output)?;
    }
    let goal = options.goal.goal(run, target, output)?;
    for note in plan.unchanged().into_iter().chain(plan.wider()).chain(plan.loaders()) {
        run.observer.note(&note);
    }
    let mut seen = None;
    if let Some(goal) = &goal {
        plan.scales = calibration.measure(&plan, &mut seen, run)?;
        target_kl::choose(goal, run, &mut plan)?;
        plan.scales = calibration.planned(&plan)?;
    }
    plan.items = folder::items(format, &plan.tensors, &plan.choices, None, &plan.scales);
    let set_id = run.set_key(|| set_id::of_folder(&plan))?;
    plan.files = folder::lay_out(output, &plan.items, plan.limit(options), &set_id)?;
    let files = options.of_shard(plan.files.iter().map(|file| file.path.clone()));
    let mut outcome = ConversionOutcome { files, divergence: None };
    if options.plan {
        run.observer.print(&if options.json { show::json(&plan)? } else { show::text(&plan) })?;
        return Ok(outcome);
    }
    ensure!(
        plan.quantized() > 0 || !format.quantizes(),
        "no matrix of `{}` can become {}; the option `plan` says why for each",
        target.dir.display(),
        format.name()
    );
    run.note_fewer(plan.files.len())?;
    if options.shard.is_some_and(|(no, _)| no >= plan.files.len()) {
        if let Some(goal) = goal {
            goal.end(run.observer);
        }
        return Ok(outcome);
    }
    let beside = side_files::files(run.observer, &plan)?;
    side_files::note_code(run.observer, &plan)?;
    plan.scales = calibration.measure(&plan, &mut seen, run)?;
    plan.items = items(options.threads(), &plan)?;
    write(run, &plan, beside)?;
    if let Some(goal) = goal {
        let engine = goal.engine.clone();
        outcome.divergence = goal.confirm(run, target, &plan.folder, |_: &Path| {
            Ok(Box::new(engine) as Box<dyn Engine>)
        })?;
    }
    Ok(outcome)
}

/// Returns the items to write. If scales are shared, the weights are read to compute them.
pub(crate) fn items<'c>(threads: usize, plan: &FolderPlan<'c>) -> Result<Vec<FolderItem<'c>>> {
    let tensors = &plan.tensors;
    let choices = &plan.choices;
    let peaks = if plan.format.shares() {
        Some(peaks::peaks(tensors, choices, &plan.target.model.quant, threads)?)
    } else {
        None
    };
    Ok(folder::items(plan.format, tensors, choices, peaks.as_deref(), &plan.scales))
}

pub(crate) fn plan<'c>(
    target: &'c LocalModel,
    checkpoint: &'c Checkpoint,
    format: FolderFormat,
    into: &Path,
    output: bool,
) -> Result<FolderPlan<'c>> {
    let model = &target.model;
    let (weights, _) = flows(checkpoint, &model.graph.weights, &model.rules).map_err(several)?;
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
pub(crate) fn work<'c>(
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

fn write(run: ConversionRun<'_>, plan: &FolderPlan<'_>, beside: Vec<SideFile>) -> Result<()> {
    let shard = run.options.shard.map(|(no, _)| no);
    let mut work = work(plan, shard, beside)?;
    work.hashed = true;
    let same = fs_err::canonicalize(&plan.folder)? == fs_err::canonicalize(&plan.target.dir)?;
    ensure!(!same, "`{}` is what is read; choose another folder", plan.folder.display());
    run.execute(&work, plan.checkpoint, plan.target, || {
        if shard.is_none() { reopen(plan) } else { Ok(()) }
    })
}

/// Returns an error for a folder that holds a checkpoint, before anything is measured for it.
fn refuse_taken(options: &ConvertOptions, folder: &Path) -> Result<()> {
    ensure!(
        options.force || options.resume || options.shard.is_some() || !folder.join(CONFIG).exists(),
        "`{}` holds a checkpoint already; remove it, choose another folder, or allow it with the option `force`",
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

/// Returns the text of the new checkpoint's config.
pub(crate) fn config_text(
    observer: &dyn ConversionObserver,
    plan: &FolderPlan<'_>,
) -> Result<String> {
    let json = config_value(observer, plan)?;
    Ok(texts_as_words(format!("{json:#}\n")))
}

/// Returns the config of the new checkpoint.
pub(crate) fn config_value(
    observer: &dyn ConversionObserver,
    plan: &FolderPlan<'_>,
) -> Result<Value> {
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
        engine_keys::extend(observer, plan.target, &mut json)?;
    }
    // As transformers writes it, and whatever crates make of the order of keys.
    json.sort_all_objects();
    Ok(json)
}
