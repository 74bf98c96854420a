//! `--to fp8` and similar formats: writes a checkpoint as a folder of safetensors that engines load.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use checkpoints::Checkpoint;
use checkpoints::checkpoint::INDEX;
use checkpoints::weights::flows;
use conversion::folder::{
    self, CalibratedScales, DtypeChoice, FolderFile, FolderFormat, FolderItem, FolderTensor,
    ListingOptions, config, peaks,
};
use conversion::{OutFolder, SideFile, Work};
use engine::{Engine, NativeEngine};
use formats::python_json::texts_as_words;
use models::coverage::TensorCoverage;
use models::local_model::LocalModel;

use super::{ConvertArgs, set_id, several};
use crate::target::{self, ModelArgs};
use crate::{CommandOutcome, term, text};

mod show;
mod side_files;
mod target_kl;

/// File that engines read first.
const CONFIG: &str = "config.json";
/// Default size of a file in bytes.
const SHARD: u64 = 5_000_000_000;

/// Plan of a folder, complete before any value is written.
pub(super) struct FolderPlan<'c> {
    pub(super) format: FolderFormat,
    pub(super) target: &'c LocalModel,
    pub(super) checkpoint: &'c Checkpoint,
    pub(super) tensors: Vec<FolderTensor<'c>>,
    pub(super) choices: Vec<DtypeChoice>,
    /// Scales of activations: their names, and once measured their values.
    pub(super) scales: CalibratedScales,
    pub(super) items: Vec<FolderItem<'c>>,
    pub(super) files: Vec<FolderFile>,
    pub(super) folder: PathBuf,
    /// True if the config gets the keys of engines in addition to those of transformers.
    pub(super) compat: bool,
}

impl FolderPlan<'_> {
    /// Returns the modules with a matrix that is not quantized.
    pub(super) fn ignored(&self) -> Vec<String> {
        let module = |name: &str| name.strip_suffix(".weight").map(str::to_owned);
        let all = self.tensors.iter().zip(&self.choices);
        let kept = all.filter(|(_, choice)| choice.kept.is_some()).map(|(tensor, _)| tensor);
        let name = |tensor: &FolderTensor<'_>| match tensor.mixture {
            _ if tensor.shape.len() == 2 => module(&tensor.name),
            // Stacked experts are a parameter of their module, or its weight.
            Some(_) if tensor.shape.len() == 3 => module(&tensor.name)
                .or_else(|| tensor.name.rsplit_once('.').map(|(module, _)| module.to_owned())),
            _ => None,
        };
        let mut names: Vec<String> = kept.filter_map(name).collect();
        // A tied matrix is a module too, although it has no tensor of its own.
        names.extend(self.target.model.graph.tied.keys().filter_map(|name| module(name)));
        names.dedup();
        // Loaders match module names, which can differ in a multimodal model.
        let model = &self.target.model;
        let called = |name: &String| model.module_of(&format!("{name}.weight"));
        let called: Vec<String> = names.iter().filter_map(called).collect();
        names.extend(called.iter().filter_map(|name| module(name)));
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names
    }

    /// Returns the ignored modules as listed in a config. Encoders are listed by a pattern too, because
    /// their module names depend on the loader, if the format supports patterns.
    pub(super) fn listed(&self) -> Vec<String> {
        let mut listed = self.ignored();
        if self.format.knows_patterns() {
            let root = |name: &str| {
                let name = name.strip_prefix("model.").unwrap_or(name);
                name.split('.').next().map(|root| format!("re:(model\\.)?{root}\\..*"))
            };
            let model = &self.target.model;
            let beside = self.tensors.iter().filter(|tensor| model.is_beside(&tensor.name));
            listed.extend(beside.filter_map(|tensor| root(&tensor.name)).collect::<BTreeSet<_>>());
        }
        listed
    }

    /// Returns the number of quantized tensors.
    pub(super) fn quantized(&self) -> usize {
        self.choices.iter().filter(|choice| choice.kept.is_none()).count()
    }

    /// Returns a warning if many weights stay unquantized: experts that loaders expect in one tensor.
    fn unchanged(&self) -> Option<String> {
        if !self.format.quantizes() {
            return None;
        }
        let all = self.tensors.iter().zip(&self.choices);
        let stay: Vec<(&FolderTensor<'_>, &DtypeChoice)> = all
            .filter(|(tensor, choice)| choice.kept.is_some() && tensor.mixture.is_some())
            .collect();
        let (first, choice) = stay.first()?;
        let why = match first.shape.len() {
            2 => &choice.why,
            _ => "loaders know those of a layer as one tensor",
        };
        let kept: usize = stay.iter().map(|(tensor, _)| tensor.flow.len()).sum();
        let total: usize = self.tensors.iter().map(|tensor| tensor.flow.len()).sum();
        let share = 100.0 * kept as f64 / total.max(1) as f64;
        Some(format!(
            "warning: {share:.0} % of the numbers are experts that stay as they are: {why}"
        ))
    }

    /// Returns a note on tensors that are not rounded to plain bf16.
    fn wider(&self) -> Option<String> {
        if self.format.quantizes() {
            return None;
        }
        let all = self.tensors.iter().zip(&self.choices);
        let wide: Vec<&FolderTensor<'_>> =
            all.filter(|(_, choice)| !choice.why.is_empty()).map(|(tensor, _)| tensor).collect();
        let first = wide.first()?;
        let count = text::plural(wide.len(), "tensor");
        Some(format!(
            "note: {count} of f32 stay so, as they are wider than the rest on purpose, the first is `{}`",
            first.name
        ))
    }

    /// Returns a warning about loaders that do not support the folder.
    fn loaders(&self) -> Option<String> {
        let all = self.tensors.iter().zip(&self.choices);
        let mixture = all.clone().any(|(t, choice)| choice.kept.is_none() && t.mixture.is_some());
        self.format.unread_by(mixture).map(|why| format!("warning: {why}"))
    }

    fn limit(&self, args: &ConvertArgs) -> u64 {
        match args.shard {
            Some((_, count)) => folder::even_limit(&self.items, count),
            None => args.split_max_size.unwrap_or(SHARD),
        }
    }
}

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
    let mut plan = plan(&target, &checkpoint, format, output, args.quantize_output)?;
    plan.compat = args.compat;
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
        return Ok(CommandOutcome::Ok);
    }
    let beside = side_files::files(&plan)?;
    plan.scales = args.calibration.measure(&plan, &mut seen, args.threads())?;
    plan.items = items(args, &plan)?;
    let ended = write(args, &plan, beside)?;
    match goal {
        Some(goal) => {
            let native = |_: &Path| Ok(Box::new(NativeEngine::new()) as Box<dyn Engine>);
            goal.confirm(args, &target, &plan.folder, native)
        }
        None => Ok(ended),
    }
}

/// Returns the items to write. If scales are shared, the weights are read to compute them.
fn items<'c>(args: &ConvertArgs, plan: &FolderPlan<'c>) -> Result<Vec<FolderItem<'c>>> {
    let (tensors, choices) = (&plan.tensors, &plan.choices);
    let peaks = if plan.format.shares() {
        Some(peaks::peaks(tensors, choices, &plan.target.model.quant, args.threads())?)
    } else {
        None
    };
    Ok(folder::items(plan.format, tensors, choices, peaks.as_deref(), &plan.scales))
}

fn plan<'c>(
    target: &'c LocalModel,
    checkpoint: &'c Checkpoint,
    format: FolderFormat,
    into: &Path,
    output: bool,
) -> Result<FolderPlan<'c>> {
    let model = &target.model;
    let (weights, _) = flows(checkpoint, &model.graph.weights, &model.rules)
        .map_err(|errors| several(errors.iter().map(ToString::to_string)))?;
    let wanted = ListingOptions { apart: format.quantizes(), output };
    let tensors = folder::tensors(checkpoint, model, &weights, wanted)?;
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
    work.stale = side_files::stale_files(plan, &beside)?;
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
    let work = work(plan, shard, beside)?;
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
    let said = || format!("`{}` was written and cannot be read", plan.folder.display());
    let written = Checkpoint::open(&plan.folder).with_context(said)?;
    let outs = plan.items.iter().flat_map(|item| &item.outs);
    let mut count = 0;
    for out in outs {
        let declared = &out.declared;
        let info = written.stored(&declared.name);
        let fits = info.is_some_and(|i| i.dtype == declared.dtype && i.shape == declared.shape);
        ensure!(fits, "`{}` lacks the tensor `{}`", plan.folder.display(), declared.name);
        count += 1;
    }
    let found = written.stored_len();
    ensure!(found == count, "`{}` has {found} tensors, expected {count}", plan.folder.display());
    Ok(())
}

/// Returns the config of the new checkpoint.
pub(super) fn config_text(plan: &FolderPlan<'_>) -> Result<String> {
    let mut json = plan.target.config.value()?;
    let map = json.as_object_mut().context("the config is no object")?;
    for key in ["quantization_config", "compression_config"] {
        map.remove(key);
        if let Some(inner) = map.get_mut("text_config").and_then(|inner| inner.as_object_mut()) {
            inner.remove(key);
        }
    }
    if let Some(quantization) = config::quantization(plan.format, &plan.listed(), plan.scales.asked)
    {
        map.insert("quantization_config".to_owned(), quantization);
    } else {
        let key = if map.contains_key("torch_dtype") { "torch_dtype" } else { "dtype" };
        map.insert(key.to_owned(), "bfloat16".into());
    }
    if plan.compat {
        crate::launch::extend(plan.target, &mut json)?;
    }
    Ok(texts_as_words(format!("{json:#}\n")))
}
