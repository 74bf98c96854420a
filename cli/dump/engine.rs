//! Implements `parity dump --engine`: a dump of any engine, in the format of a reference.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use engine::{Engine, ModelSource, SessionOptions};
use models::config::ConfigFile;
use models::is_gguf;
use parity::Dump;
use parity::beside::beside;
use parity::dump::Prompt;
use parity::record::{RecordingPlan, record};
use registry::dtype::Dtype;
use registry::file;
use registry::model::Model;
use serde_json::{Value, json};

use crate::engines::{self, EngineArgs, ResolvedEngine, parse_seconds};
use crate::findings::{check_error, model_error};
use crate::specs;
use crate::target::{self, ModelArgs, SpecArgs};
use crate::{CommandOutcome, term, write};

/// Positions past the longest prompt, for greedy tokens and for positions that an engine reserves.
const MORE: usize = 64;

/// The engine that is recorded in place of the reference.
#[derive(Debug, Args)]
pub(super) struct EngineDumpArgs {
    /// Record this engine instead of transformers: a name that `onboard engine list` shows, or a path
    #[arg(long, value_name = "ENGINE")]
    pub engine: Option<String>,
    /// A setting of the engine (repeatable)
    #[arg(long = "engine-option", value_name = "KEY=VALUE", requires = "engine")]
    options: Vec<String>,
    /// Seconds that the engine may take for one answer
    #[arg(long = "engine-timeout", value_name = "SECONDS", default_value = "600", value_parser = parse_seconds)]
    timeout: Duration,
    /// Take the prompts of this dump; default: of MODEL/reference, if it is there
    #[arg(long, value_name = "DUMP", conflicts_with = "prompts")]
    like: Option<PathBuf>,
    /// Run a spec whose state dtypes an op refuses, to see the effect
    #[arg(long, requires = "engine")]
    allow_dtype_mismatch: bool,
    #[command(flatten)]
    choice: SpecArgs,
}

impl EngineDumpArgs {
    /// Returns an error for settings that require an engine.
    pub(super) fn refuse_without_engine(&self) -> Result<()> {
        let choice = &self.choice;
        for (flag, given) in [
            ("--like", self.like.is_some()),
            ("--spec", choice.spec.is_some()),
            ("--specs", choice.specs.is_some()),
            ("--set", !choice.set.is_empty()),
            ("--model-config", choice.model_config.is_some()),
        ] {
            ensure!(
                !given,
                "{flag} is for an engine that is recorded; give --engine NAME, or leave {flag} out"
            );
        }
        Ok(())
    }

    /// Records the engine `name` on a model.
    pub(super) fn run(
        &self,
        name: &str,
        model: &Path,
        output: &Path,
        dtypes: &[Dtype],
        prompts: Option<&str>,
    ) -> Result<CommandOutcome> {
        write::refuse_stdout(output)?;
        let dtypes = if dtypes.is_empty() { &[Dtype::F32] } else { dtypes };
        let args = EngineArgs {
            engine: name.to_owned(),
            options: self.options.clone(),
            timeout: self.timeout,
            ..EngineArgs::default()
        };
        let which = ModelArgs::at(model.to_owned());
        match args.find()? {
            ResolvedEngine::Child(child) => {
                ensure!(
                    !is_gguf(model),
                    "a dump of engine `{name}` is made from the folder of a checkpoint; `{}` is a GGUF file",
                    model.display()
                );
                let dir = target::folder(&which)?.dir;
                let (model, _) = model_of(&which, &self.choice, &dir, None)?;
                let prompts = self.prompts(&dir, prompts, &model)?;
                let engine = child.engine(room(&prompts));
                let source = ModelSource { model: Arc::new(model), dir: &dir };
                self.record(&engine, &source, prompts, dtypes, output)
            }
            ResolvedEngine::Server(url) => bail!(
                "`{url}` is a server: `parity check` compares one, and a dump is written of engines that run here"
            ),
            ResolvedEngine::InProcess(driver) if driver.describe.is_some() => {
                let opened = engines::describe(driver, model)?;
                let prompts = self.prompts(model, prompts, &opened.model)?;
                let engine = engines::start(driver, room(&prompts))?;
                let source = ModelSource { model: Arc::new(opened.model), dir: model };
                self.record(engine.as_ref(), &source, prompts, dtypes, output)
            }
            ResolvedEngine::InProcess(driver) => {
                let target = target::open(&which, &self.choice)?;
                if !self.allow_dtype_mismatch {
                    target::check_dtypes(&target, dtypes)?;
                }
                let prompts = self.prompts(&target.dir, prompts, &target.model)?;
                let engine = engines::start(driver, 0)?;
                self.record(engine.as_ref(), &target::source(&target), prompts, dtypes, output)
            }
        }
    }

    fn record(
        &self,
        engine: &dyn Engine,
        source: &ModelSource<'_>,
        prompts: Vec<Prompt>,
        dtypes: &[Dtype],
        output: &Path,
    ) -> Result<CommandOutcome> {
        term::note(&format!(
            "running {} prompts with {} in {}",
            prompts.len(),
            engine.name(),
            dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ")
        ));
        let subject = RecordingPlan {
            prompts,
            dtypes,
            producer: &|| {
                let version = env!("CARGO_PKG_VERSION");
                json!({"name": engine.name(), "onboard": version, "engine": engine.facts(), "options": self.options})
            },
        };
        let allow_dtype_mismatch = self.allow_dtype_mismatch;
        let options = SessionOptions { allow_dtype_mismatch, ..SessionOptions::default() };
        let recording = record(engine, source, subject, &options).map_err(check_error)?;
        for note in &recording.notes {
            term::note(&format!("note: {note}"));
        }
        fs_err::create_dir_all(output)?;
        let manifest = output.join("manifest.json");
        // An overwritten dump is invalid until the new one is complete.
        if manifest.exists() {
            fs_err::remove_file(&manifest)?;
        }
        let tensors = output.join("reference.safetensors");
        let _watched = crate::interrupt::watch(&formats::output::part_path(&tensors));
        let text = recording.write(&tensors).map_err(check_error)?;
        write::atomic(&manifest, &text)?;
        term::note(&format!("wrote {}", output.display()));
        Ok(CommandOutcome::Ok)
    }

    /// Returns the prompts: given, from a dump, from the dump beside the model, or derived.
    fn prompts(&self, model: &Path, given: Option<&str>, about: &Model) -> Result<Vec<Prompt>> {
        if let Some(path) = given {
            return read_prompts(Path::new(path), about.input_vocab);
        }
        if let Some(dump) = self.like.clone().or_else(|| beside(model)) {
            let dump = Dump::open(&dump)
                .with_context(|| format!("cannot read the prompts of `{}`", dump.display()))?;
            ensure!(
                dump.manifest.vocab == about.vocab,
                "the dump `{}` has a vocabulary of {} tokens and the model of {}; give prompts with --prompts FILE",
                dump.dir.display(),
                dump.manifest.vocab,
                about.vocab
            );
            let mut prompts = dump.manifest.prompts;
            // A dump of an engine has prompts of tokens alone.
            prompts.retain(|prompt| !prompt.has_rows());
            ensure!(
                !prompts.is_empty(),
                "all prompts of the dump `{}` have rows in the place of embeddings, which no dump of an engine has; give \
                 prompts with --prompts FILE",
                dump.dir.display()
            );
            return Ok(prompts);
        }
        Ok(parity::record::derived(about))
    }
}

/// Returns the positions that prompts need.
fn room(prompts: &[Prompt]) -> usize {
    prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0) + MORE
}

/// Resolves a model for an engine that builds its own graph. Without a spec only rows can be compared.
pub(crate) fn model_of(
    which: &ModelArgs,
    choice: &SpecArgs,
    dir: &Path,
    vocab: Option<usize>,
) -> Result<(Model, Option<models::specs::SpecId>)> {
    let config = ConfigFile::of_folder(dir).map_err(model_error)?;
    let known = specs::open(choice.specs.as_deref())?.matching(&config)?;
    if choice.spec.is_some() || known.is_some() {
        let target = target::open(which, choice)?;
        return Ok((Arc::unwrap_or_clone(target.model), Some(target.spec)));
    }
    let architecture = config.architecture();
    term::note(&format!(
        "note: no spec matches the architecture `{architecture}`: taps and states have no places, and schedules do \
         not know its states"
    ));
    let Some(model) = config.opaque(vocab)? else {
        bail!("`{}` has no `vocab_size`, and no spec matches `{architecture}`", dir.display());
    };
    Ok((model, None))
}

/// Reads prompts: a list of objects with `name`, `tokens`, and optionally `split`, `taps` and `rows`.
fn read_prompts(path: &Path, vocab: usize) -> Result<Vec<Prompt>> {
    let shown = path.display();
    let bytes = file::read(path, file::MANIFEST)?;
    let json: Value = serde_json::from_slice(&bytes)
        .with_context(|| format!("`{shown}` is not JSON; expected a list of prompts"))?;
    let list = json.get("prompts").unwrap_or(&json).as_array();
    let list = list.with_context(|| {
        format!("`{shown}`: expected a list of objects with `name` and `tokens`")
    })?;
    let mut prompts = Vec::new();
    for (n, entry) in list.iter().enumerate() {
        let mut entry = entry.clone();
        let count = entry.get("tokens").and_then(Value::as_array).map_or(0, Vec::len);
        if let Some(object) = entry.as_object_mut() {
            let split = (count / 2).max(1);
            object.entry("split").or_insert(json!(split));
            object.entry("name").or_insert(json!(format!("prompt{n}")));
            match object.get("taps") {
                Some(Value::Bool(true)) => {
                    object.insert("taps".into(), json!(["prefill", "decode"]))
                }
                Some(Value::Bool(false)) => object.insert("taps".into(), json!([])),
                _ => None,
            };
        }
        let prompt: Prompt = serde_json::from_value(entry).with_context(|| {
            format!("`{shown}`: prompt {n} is not an object with `name` and `tokens`")
        })?;
        prompts.push(prompt);
    }
    if let Some(prompt) = prompts.iter().find(|prompt| prompt.has_rows()) {
        bail!(
            "`{shown}`: prompt `{}` has rows in the place of embeddings, which only a dump of the reference has; give tokens alone",
            prompt.name
        );
    }
    parity::dump::check_prompts(&prompts, vocab)
        .map_err(|why| anyhow::anyhow!("`{shown}`: {why}"))?;
    Ok(prompts)
}
