//! Implements `onboard convert`, which writes a checkpoint in another format, in one pass.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use checkpoints::Checkpoint;
use checkpoints::weights::{WeightFlow, flows, idle};
use clap::{Args, Subcommand};
use conversion::Work;
use conversion::gguf::{self as plan, Arithmetic, GgufOutput, GgufPlan, PlannedTensor};
use formats::FileDtype;
use formats::gguf::Metadata;
use formats::output::part_path;
use models::coverage::TensorCoverage;
use models::local_model::LocalModel;
use models::specs::SpecId;
use registry::check::has_head;
use registry::diag::{Finding, Severity};
use registry::gguf::Gguf;
use registry::gguf_head::with_head;
use tokenizer::TokenizerOptions;

use crate::findings::reported_error;
use crate::target::{self, ModelArgs, SpecArgs};
use crate::{CommandOutcome, products, term};

mod calibration;
mod compat;
mod draft;
mod folder;
mod folder_plan;
mod folder_verify;
mod format;
mod gguf_source;
mod goal;
mod measured;
mod merge;

mod progress;
mod raise;
mod set_id;
mod show_plan;
mod summary;
mod trial_folder;
mod verify;

use format::GgufFormat;
pub(crate) use format::parse_shard;
pub(crate) use verify::{TensorDeviation, distances};

/// Writes a checkpoint in another format, in one pass and bounded memory
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  convert MODEL --to gguf:q4_k_m -o model.gguf          straight from the checkpoint, no file between
  convert MODEL --to gguf:q4_k_m --to gguf:q8_0 -o out  several files from one read: out/MODEL-q4_k_m.gguf, ...
  convert MODEL --to gguf:q4_k_m -o model.gguf --plan   what would be written, without writing
  convert MODEL --to gguf:q4_k_m -o model.gguf --resume go on where a stopped conversion was
  convert MODEL --to gguf:q8_0 -o model.gguf --shard 2/8    one of eight files; each machine writes its own
  convert MODEL --to gguf:q4_k_m -o model.gguf --target-kl 1e-2 --text FILE
                                                        the same, finer types where that costs more
  convert MODEL --to fp8 -o DIR                         a checkpoint of 8 bits that serving engines load
  convert MODEL --to fp8 -o DIR --target-kl 5e-3        the same, some matrices kept so that it costs no more
  convert MODEL --to fp8:tensor -o DIR --static-activations --kv-scales --calibrate text.txt
                                                        the same with scales for activations and the KV cache
  convert FILE.gguf --to hf -o DIR                      a folder for transformers, of a GGUF file
  convert FILE.gguf --to gguf:q4_k_m -o model.gguf      a GGUF file of f32, bf16 or f16 in another type
  convert MODEL --compat -o DIR/config.json             the config alone, with the keys that every engine reads
  convert merge-check model-00001-of-00008.gguf         whether a set of files is complete
  convert MODEL --verify model.gguf                     compare a file with the checkpoint, block by block
  onboard verify model.gguf                             compare a file with the hashes that were written with it

Files appear under their name when they are whole and were read back; until then there are
NAME.part and its journal, which --resume goes on with. The bytes do not depend on threads or slabs.
Their hashes are written beside them: NAME.hashes, or onboard.hashes in a folder."
)]
pub(crate) struct ConvertArgs {
    #[command(subcommand)]
    command: Option<ConvertCommand>,
    #[command(flatten)]
    weights: Option<ModelArgs>,
    #[command(flatten)]
    choice: SpecArgs,
    /// The format, gguf:TYPE (repeatable), fp8, nvfp4, ...; `convert --to help` lists them
    #[arg(long, value_name = "FORMAT", value_parser = format::FormatParser)]
    to: Vec<String>,
    /// Output path: a file for GGUF, a folder for several formats and for checkpoints
    #[arg(short, long, value_name = "PATH")]
    output: Vec<PathBuf>,
    /// Print what would be written and stop
    #[arg(long)]
    plan: bool,
    /// With --plan and --verify: as JSON
    #[arg(long)]
    json: bool,
    /// Go on with a conversion that was stopped
    #[arg(long)]
    resume: bool,
    /// Write over files that are there
    #[arg(long)]
    force: bool,
    /// Quantize the weights of a GGUF file again, which rounds them twice
    #[arg(long, conflicts_with = "verify")]
    requantize: bool,
    /// Compare a file or folder with the checkpoint, and write nothing; one made with --identity or
    /// --imatrix, with the same
    #[arg(long, value_name = "FILE|DIR", conflicts_with_all = ["to", "output", "plan", "resume"])]
    verify: Option<PathBuf>,
    /// Several files of at most so much each: 4G, 500M
    #[arg(long, value_name = "SIZE", value_parser = format::parse_size)]
    split_max_size: Option<u64>,
    /// Write file I of a set of N, and no other
    #[arg(long, value_name = "I/N", value_parser = format::parse_shard, conflicts_with = "split_max_size")]
    shard: Option<(usize, usize)>,
    /// With a checkpoint format: quantize the output matrix too, which stays as it is otherwise
    #[arg(long)]
    quantize_output: bool,
    /// Write the config keys too that engines read and transformers 5 leaves out (block_dim,
    /// rope_theta, ...); without --to, write that config and nothing else
    #[arg(long, conflicts_with = "verify")]
    compat: bool,
    /// With a checkpoint format: copy the code of the checkpoint too (`.py` files), which is left out otherwise
    #[arg(long, conflicts_with = "verify")]
    copy_code: bool,
    #[command(flatten)]
    goal: goal::DivergenceArgs,
    #[command(flatten)]
    calibration: calibration::CalibrationArgs,
    #[command(flatten)]
    types: format::TypeArgs,
    /// Worker threads; default: one per core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Numbers that a worker holds at a time, in thousands
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    slab: u32,
}

#[derive(Debug, Subcommand)]
enum ConvertCommand {
    /// Checks that a set of split files is complete and sound
    MergeCheck(merge::MergeCheckArgs),
}

impl ConvertArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        if let Some(ConvertCommand::MergeCheck(check)) = &self.command {
            return check.run();
        }
        let Some(which) = &self.weights else {
            bail!("which checkpoint? give its folder: convert MODEL --to gguf:q4_k_m -o FILE");
        };
        if let Some(file) = &self.verify {
            return if file.is_dir() {
                folder_verify::run(&self, which, file)
            } else {
                verify::run(which, &self.choice, file, &self.types, self.json)
            };
        }
        if self.compat && self.to.is_empty() {
            return self.config_alone(which);
        }
        ensure!(self.plan || !self.json, "--json goes with --plan or --verify");
        ensure!(
            !self.to.is_empty(),
            "to which format? for example --to gguf:q4_k_m; `--to help` lists them"
        );
        self.output.iter().try_for_each(|output| crate::write::refuse_stdout(output))?;
        if let [to] = &self.to[..]
            && let Some(format) = conversion::folder::FolderFormat::parse(to)
        {
            self.types.refuse()?;
            return folder::run(&self, which, format);
        }
        ensure!(
            !self.compat,
            "--compat is about a config.json, and GGUF files have keys of their own"
        );
        ensure!(
            !self.quantize_output,
            "--quantize-output is for checkpoints (--to fp8 and its kin); in GGUF files the output matrix has a type, \
             which --output-tensor-type chooses"
        );
        self.calibration.refuse()?;
        self.goal.refuse_eight_bits()?;
        let formats: Vec<GgufFormat> =
            self.to.iter().map(|to| GgufFormat::parse(to)).collect::<Result<_>>()?;
        if self.goal.is_set() {
            let [format] = &formats[..] else {
                bail!("--target-kl chooses the types of one file; give one --to at a time");
            };
            let name = &format.name;
            ensure!(
                format.quantizes(),
                "--target-kl: `gguf:{name}` has nothing that could be finer"
            );
        }
        let target = target::open(which, &self.choice)?;
        let checkpoint = target.checkpoint()?;
        let coverage = TensorCoverage::of(&target.model, &checkpoint);
        target::covered(&coverage, &target.dir)?;
        self.calibration.refuse_lost(None, &checkpoint)?;
        let quantizes = formats.iter().any(GgufFormat::quantizes);
        gguf_source::refuse_twice(&target, &checkpoint, quantizes, self.requantize)?;
        let outputs = format::paths(&formats, &self.output, &target.name)?;
        let source = GgufModel::new(&target, &checkpoint, self.types.arithmetic())?;
        if coverage.head > 0 && source.gguf.ahead == 0 {
            term::note(&format!(
                "warning: the head that predicts further tokens ({} weights) is left out: files of \
                 `{}` have no place for it",
                coverage.head, source.gguf.arch
            ));
        }
        for warning in &source.warnings {
            term::note(&format!("warning: {warning}"));
        }
        let mut planned = Vec::with_capacity(formats.len());
        let imatrix = self.types.read_imatrix()?;
        let mut goal = None;
        for (format, path) in formats.iter().zip(outputs) {
            let mut draft = self.draft(&source, format, path, imatrix.as_ref())?;
            if self.goal.is_set() {
                self.refuse_taken(&self.lay_out(&source, &mut draft)?)?;
                goal = raise::choose(&self, &source, &target, &mut draft)?;
            }
            let files = self.lay_out(&source, &mut draft)?;
            planned.push((draft.output, files));
        }
        if self.plan {
            let text = if self.json {
                show_plan::json(&source, &planned)?
            } else {
                show_plan::text(&source, &planned)
            };
            term::print(&text)?;
            return Ok(CommandOutcome::Ok);
        }
        let ended = self.write(&source, &target, &planned)?;
        match (goal, planned.first().and_then(|(_, files)| files.first())) {
            (Some(goal), Some(file)) => goal.confirm(&self, &target, &file.path, |path| {
                Ok(Box::new(raise::written(goal.engine.clone(), &target, path)?))
            }),
            (Some(goal), None) => {
                goal.end();
                Ok(ended)
            }
            (None, _) => Ok(ended),
        }
    }

    fn threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or(cores).clamp(1, 1024)
    }

    /// Returns the text that identifies a set in its files. A plan does not read the weights, so it uses a
    /// text of the same length.
    fn set_key(&self, set_id: impl FnOnce() -> Result<String>) -> Result<String> {
        if self.plan { Ok("0".repeat(64)) } else { set_id() }
    }

    fn write(
        &self,
        source: &GgufModel<'_>,
        target: &LocalModel,
        planned: &[(GgufOutput, Vec<GgufPlan>)],
    ) -> Result<CommandOutcome> {
        let fingerprint = set_id::of_gguf_run(source, planned, self.types.identity())?;
        for (output, _) in planned {
            plan::measure(&source.tensors, output, self.threads())?;
        }
        let mut work = plan::work(&source.tensors, planned, fingerprint);
        work.hashed = true;
        for (_, files) in planned {
            self.note_fewer(files.len())?;
        }
        if work.files.is_empty() {
            return Ok(CommandOutcome::Ok);
        }
        self.execute(&work, source.checkpoint, target, || {
            work.files.iter().try_for_each(|file| verify::loader_rules(&file.path))
        })
    }

    /// Notes that there are fewer files than `--shard` counts: a set has no file without tensors.
    fn note_fewer(&self, files: usize) -> Result<()> {
        if let Some((no, count)) = self.shard.filter(|(_, count)| files < *count) {
            let suffix = if no < files { "" } else { "; nothing is left to write for this one" };
            term::print(&format!(
                "the tensors make {files} files, so file {} of {count} is counted of {files}{suffix}",
                no + 1
            ))?;
        }
        Ok(())
    }

    /// Runs the work, then a final step, and reports the result.
    fn execute(
        &self,
        work: &Work<'_>,
        checkpoint: &Checkpoint,
        target: &LocalModel,
        then: impl FnOnce() -> Result<()>,
    ) -> Result<CommandOutcome> {
        let mut inputs = checkpoint.files().to_vec();
        inputs.extend(target.inputs()?);
        inputs.extend(self.types.imatrix().map(Into::into));
        inputs.extend(self.calibration.text().map(Into::into));
        inputs.extend(self.goal.text().map(Into::into));
        let settings = conversion::RunOptions {
            threads: self.threads(),
            slab: self.slab as usize * 1000,
            resume: self.resume,
            force: self.force,
            inputs,
            sources: checkpoint.stamps().to_vec(),
            read_back: true,
            disk: crate::write::disk(),
        };
        let numbers = work.tasks.iter().map(|task| task.flow.len() as u64).sum();
        let begun = work.files.first().map(|file| part_path(&file.path));
        if let Some(part) = begun.filter(|part| part.exists() && !self.resume) {
            term::note(&format!(
                "note: `{}` of an earlier run is begun anew; --resume would go on with it",
                part.display()
            ));
        }
        let watch = progress::ConversionBar::new(numbers);
        let started = std::time::Instant::now();
        crate::interrupt::hint("; the same command with --resume goes on from here");
        let done = conversion::run(work, &settings, &watch)?;
        crate::interrupt::hint("");
        watch.finish();
        then()?;
        let beside = work.beside.iter().map(|side| side.path.clone());
        let files = work.files.iter().map(|file| file.path.clone());
        let hashes = work.hash_paths();
        files.chain(beside).chain(hashes).for_each(|path| products::note(&path));
        if done.already {
            term::print(&summary::finished_before(work))?;
            return Ok(CommandOutcome::Ok);
        }
        term::print(&summary::text(work, &done, started.elapsed()))?;
        if let Some(warning) = summary::lost_tensors(work, &done) {
            term::note(&warning);
        }
        Ok(CommandOutcome::Ok)
    }
}

/// Model with its tensors in GGUF form.
pub(crate) struct GgufModel<'c> {
    pub(crate) name: String,
    pub(crate) gguf: Gguf,
    pub(crate) tensors: Vec<PlannedTensor<'c>>,
    pub(crate) tokenizer: Metadata,
    pub(crate) config: String,
    /// Dtype of the matrices.
    pub(crate) matrices: FileDtype,
    pub(crate) checkpoint: &'c Checkpoint,
    pub(crate) warnings: Vec<String>,
    pub(crate) spec: SpecId,
}

impl<'c> GgufModel<'c> {
    pub(crate) fn new(
        target: &LocalModel,
        checkpoint: &'c Checkpoint,
        arithmetic: Arithmetic,
    ) -> Result<Self> {
        Self::with_or_without(target, checkpoint, arithmetic, true)
    }

    /// Reads the model and its tensors; `head` is true to include the multi-token prediction head, if there
    /// is one.
    pub(crate) fn with_or_without(
        target: &LocalModel,
        checkpoint: &'c Checkpoint,
        arithmetic: Arithmetic,
        head: bool,
    ) -> Result<Self> {
        let model = &target.model;
        let (gguf, mut file_weights) = match with_head(model) {
            Some(gguf_and_weights) if head && has_head(model, &checkpoint.shapes()) => {
                gguf_and_weights
            }
            _ => {
                let gguf = model.gguf.clone().unwrap_or_else(|| checkpoints::own_names(model));
                (gguf, model.graph.weights.clone())
            }
        };
        if let Some(unlike) = gguf.unlike.as_deref() {
            let refused = Finding { severity: Severity::Error, ..unlike.clone() };
            return Err(reported_error(&[refused], "the model does not become a GGUF file"));
        }
        let (mut weights, _) = flows(checkpoint, &file_weights, &model.rules)
            .map_err(|errors| several(errors.iter().map(ToString::to_string)))?;
        let beside = idle(checkpoint, gguf.idle(&file_weights), &model.rules)
            .map_err(|errors| several(errors.iter().map(ToString::to_string)))?;
        for (weight, sourced) in beside {
            file_weights.push(weight);
            weights.push(sourced);
        }
        let gguf = plan::with_scalars(gguf, &file_weights, &weights)
            .map_err(|faults| several(faults).context("the model does not become a GGUF file"))?;
        let tensors = plan::tensors(&gguf, &file_weights, &weights, arithmetic)
            .map_err(|faults| several(faults).context("the model does not become a GGUF file"))?;
        let mut warnings = plan::unknown(&gguf, &tensors);
        warnings.extend(gguf.doubts.iter().map(|doubt: &String| {
            format!("llama.cpp will not run the file as it is meant: {doubt}")
        }));
        // Arithmetic in the source's dtype belongs to --identity.
        let identity = arithmetic == Arithmetic::OfSource;
        let tokenizer = if target.is_gguf() {
            gguf_source::carried_keys(target)?
        } else {
            tokenizer(target, &gguf, identity, &mut warnings)?
        };
        Ok(Self {
            name: if target.is_gguf() { gguf_source::name(target)? } else { target.name.clone() },
            matrices: matrices(&weights),
            config: target.config.json()?,
            gguf,
            tensors,
            tokenizer,
            checkpoint,
            warnings,
            spec: target.spec.clone(),
        })
    }
}

/// Returns the dtype of the first matrix, which is the default for the matrices of a converted file.
fn matrices(weights: &[WeightFlow<'_>]) -> FileDtype {
    match weights
        .iter()
        .filter(|weight: &&WeightFlow<'_>| weight.flow.shape().len() >= 2)
        .find_map(|weight| weight.flow.dtype())
    {
        Some(dtype @ (FileDtype::F16 | FileDtype::F32)) => dtype,
        _ => FileDtype::Bf16,
    }
}

/// Returns the keys of the tokenizer beside the weights, checked against the tokenizer itself.
fn tokenizer(
    target: &LocalModel,
    gguf: &Gguf,
    identity: bool,
    warnings: &mut Vec<String>,
) -> Result<Metadata> {
    let pre = gguf.pre.clone();
    let special = gguf.special.clone();
    let options = TokenizerOptions { pre, special, identity, ..TokenizerOptions::default() };
    let mut loaded = match tokenizer::read(&target.dir, target.model.vocab, &options) {
        Ok(loaded) => loaded,
        Err(tokenizer::Error::Missing { .. }) => {
            let parts = ["vocab.json", "merges.txt", "vocab.txt", "tiktoken.model"];
            let present: Vec<&str> =
                parts.into_iter().filter(|name| target.dir.join(name).is_file()).collect();
            ensure!(
                present.is_empty(),
                "`{}` has {} and no tokenizer.json, which is what is read; save one with \
                 transformers' AutoTokenizer.save_pretrained",
                target.dir.display(),
                present.join(", ")
            );
            warnings.push(format!(
                "`{}` has no tokenizer: the file will have none, and can only be fed token ids",
                target.dir.display()
            ));
            let mut keys = Metadata::new();
            keys.set("tokenizer.ggml.model", "none");
            // llama.cpp takes the number of rows of the embedding from here where there is no list of tokens.
            let rows = u32::try_from(target.model.vocab)?;
            keys.set(format!("{}.vocab_size", gguf.arch), rows);
            return Ok(keys);
        }
        Err(error) => return Err(error.into()),
    };
    warnings.extend(loaded.warnings.iter().cloned());
    tokenizer::complete(&target.name, &mut loaded.keys, warnings);
    for note in &loaded.notes {
        term::note(&format!("note: {note}"));
    }
    match tokenizer::self_check(&loaded, &target.dir) {
        Ok(checked) => {
            if let Some(first) = checked.known.first() {
                warnings.push(format!(
                    "{} of {} texts of the check become other tokens in llama.cpp, as {first:?} does",
                    checked.known.len(),
                    checked.strings + checked.known.len()
                ));
            }
        }
        Err(tokenizer::Mismatch::NoReference { .. }) => warnings.push(
            "the tokenizer could not be checked: there is no tokenizer.json to compare with"
                .to_owned(),
        ),
        Err(error) => {
            return Err(error).context("the file's tokenizer would not be the checkpoint's");
        }
    }
    Ok(loaded.keys)
}

/// Combines several faults into one error.
pub(crate) fn several(faults: impl IntoIterator<Item = impl ToString>) -> anyhow::Error {
    let lines: Vec<String> = faults.into_iter().map(|fault| fault.to_string()).collect();
    anyhow::anyhow!("{}", lines.join("\n"))
}

/// Opens the checkpoint of a target, with an error message for conversions.
pub(crate) fn checkpoint(target: &LocalModel) -> Result<Checkpoint> {
    target.checkpoint().context("there is nothing to convert")
}
