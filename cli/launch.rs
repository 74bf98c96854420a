//! Implements `onboard launch`: the command that starts an engine, with a reason for each flag.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use chat::{Template, TemplateError};
use clap::{Args, ValueEnum};
use endpoints::launch::{self, EngineVersion, PlannedLaunch, parse_mib, read_settings};
use models::config::ConfigFile;
use models::local_model::LocalModel;
use registry::diag::SourceText;
use registry::dtype::Dtype;
use registry::model::Model;
use registry::sheet::apply::{LaunchRequest, apply};
use registry::sheet::facts::{ChatFacts, FactInputs, ModelFacts, facts};
use registry::sheet::gpus::{self, Gpu};
use registry::sheet::{self, Sheet};

use crate::findings::{model_error, reported_error};
use crate::specs;
use crate::target::{self, ModelArgs, SpecArgs, parse_dtype};
use crate::{CommandOutcome, engines, term};

/// Prints the command that starts an engine, with reasons and a plan of the memory
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard launch MODEL --engine sglang --gpu b200 --tp 2
  onboard launch MODEL --engine vllm --gpu h100 --context 32768 --sequences 64
  onboard launch MODEL --engine sglang --gpu-memory 16GB --dtype f16 --set page_size=1
  onboard launch MODEL --engine vllm --gpu h100 --as compose > compose.yaml
  onboard launch MODEL --engine sglang --gpu h100 --verify http://localhost:30000
  onboard launch owner/name --config config.json --engine vllm --gpu l4    no weights needed

A launch that an engine would refuse, or change in silence, ends with exit code 2 and the rule.
`onboard help launch` explains sheets, settings and the memory plan.")]
pub(crate) struct LaunchArgs {
    #[command(flatten)]
    which: ModelArgs,
    /// The engine: the name of a sheet, or a sheet of yours (a .yaml file)
    #[arg(long, value_name = "ENGINE")]
    engine: String,
    /// The GPU of each rank, by name
    #[arg(long, value_name = "NAME", required_unless_present = "gpu_memory")]
    gpu: Option<String>,
    /// Memory of a GPU that has no name here: 16GB, 24564MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_mib, conflicts_with = "gpu")]
    gpu_memory: Option<i64>,
    /// Compute capability of a GPU that has no name here: 90, 100
    #[arg(long, value_name = "DIGITS", requires = "gpu_memory", value_parser = clap::value_parser!(i64).range(10..=1000))]
    gpu_sm: Option<i64>,
    /// Ranks that share out the matrices, one GPU each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(i64).range(1..=4096))]
    tp: i64,
    /// The dtype of activations; default: what the checkpoint says
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    dtype: Option<Dtype>,
    /// Draft with the model's own head
    #[arg(long)]
    mtp: bool,
    /// Tokens of the longest sequence
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=1 << 40))]
    context: Option<i64>,
    /// Sequences at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=1 << 30))]
    sequences: Option<i64>,
    /// A setting of the engine's sheet: page_size=16 (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The engine's version; default: the one that its sheet was read from
    #[arg(long, value_name = "VERSION")]
    engine_version: Option<String>,
    /// Form of the output
    #[arg(long = "as", value_name = "FORM", value_enum, default_value_t = LaunchFormat::Text)]
    form: LaunchFormat,
    /// Ask a running server what is in force, and compare
    #[arg(long, value_name = "URL")]
    verify: Option<String>,
    /// Use this config.json and no weights; MODEL is then only passed on
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Use this spec (a file, or the name of a known one), whatever architecture it matches
    #[arg(long, value_name = "SPEC")]
    spec: Option<PathBuf>,
    /// Look for specs in this folder too. Default: ONBOARD_SPECS
    #[arg(long, value_name = "DIR")]
    specs: Option<PathBuf>,
}

/// Forms of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LaunchFormat {
    /// A command for a shell, reasons as comments
    Text,
    /// Everything, for programs
    Json,
    /// A unit of systemd
    Systemd,
    /// A file of Docker Compose
    Compose,
    /// A deployment and a service of Kubernetes
    K8s,
}

impl LaunchArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let sheet = open_sheet(&self.engine)?;
        ensure!(
            !sheet.command.is_empty(),
            "engine `{}` has no command: its sheet names none, since it runs in this process",
            sheet.engine
        );
        let launched = self.plan_launch(sheet)?;
        if !launched.version.verified {
            term::note(&format!("warning: {}", launched.unverified()));
        }
        let refused = !launched.outcome.refusals.is_empty();
        if self.form == LaunchFormat::Json && self.verify.is_none() {
            term::print(&serde_json::to_string_pretty(&launch::json(&launched))?)?;
            return Ok(if refused { CommandOutcome::CouldNotRun } else { CommandOutcome::Ok });
        }
        if refused {
            for message in &launched.outcome.refusals {
                term::note(&launch::refusal(message));
            }
            return Ok(CommandOutcome::CouldNotRun);
        }
        if let Some(url) = &self.verify {
            return self.verify(&launched, url);
        }
        let text = match self.form {
            LaunchFormat::Systemd => launch::systemd(&launched),
            LaunchFormat::Compose => launch::compose(&launched)?,
            LaunchFormat::K8s => launch::kubernetes(&launched)?,
            LaunchFormat::Text | LaunchFormat::Json => launch::text(&launched),
        };
        // Output files for other programs have no room for warnings.
        if self.form != LaunchFormat::Text {
            for message in &launched.outcome.warnings {
                term::note(&format!("warning: {}", launch::message_text(message)));
            }
        }
        term::print(text.trim_end())?;
        Ok(CommandOutcome::Ok)
    }

    /// Compares a server with the launch; exits with 1 if something differs.
    fn verify(&self, launched: &PlannedLaunch, url: &str) -> Result<CommandOutcome> {
        let compared = launch::verify(launched, url, engines::api_key()?, &|reason| {
            term::note(&format!("warning: {reason}"));
        })?;
        if self.form == LaunchFormat::Json {
            term::print(&serde_json::to_string_pretty(&compared.json())?)?;
        } else {
            term::print(compared.text().trim_end())?;
        }
        Ok(if compared.differs() { CommandOutcome::Differs } else { CommandOutcome::Ok })
    }

    fn plan_launch(&self, sheet: Sheet) -> Result<PlannedLaunch> {
        let (model, config, local, gguf) = self.model()?;
        let dtype = self.dtype.or(config.dtype()).unwrap_or(Dtype::Bf16);
        let stored = local.as_ref().and_then(|target| stored_bytes(target, gguf));
        let chat = local.as_ref().map(|target| chat_facts(target, &sheet.engine));
        let chat = chat.unwrap_or_default();
        let mtp = self.mtp;
        let about = FactInputs { dtype: Some(dtype), tp: self.tp, stored, gguf, mtp, chat };
        let facts: ModelFacts = facts(&model, &about);
        let version = EngineVersion::read(&sheet, self.engine_version.as_ref())?;
        let request = LaunchRequest {
            dtype: (dtype, self.dtype.is_some()),
            tp: self.tp,
            mtp: self.mtp,
            context: self.context,
            sequences: self.sequences,
            gpu: self.gpu()?,
            version: version.version.clone(),
            asked: read_settings(&sheet, &self.set)?,
        };
        let outcome = apply(&sheet, &facts, config.parsed(), &request).map_err(|findings| {
            reported_error(&findings, "the sheet cannot be applied to this model")
        })?;
        Ok(PlannedLaunch {
            sheet,
            model: self.which.model.display().to_string(),
            local: self.which.model.exists(),
            architecture: model.architecture.clone(),
            asked: request,
            version,
            outcome,
        })
    }

    /// Returns the model, its config, the checkpoint if available, and true if that is a GGUF file.
    fn model(&self) -> Result<(Arc<Model>, ConfigFile, Option<LocalModel>, bool)> {
        let Some(path) = &self.config else {
            let spec = self.spec.clone();
            let specs = self.specs.clone();
            let choice = SpecArgs { spec, specs, ..SpecArgs::default() };
            let target = target::open(&self.which, &choice)?;
            let gguf = target.is_gguf();
            return Ok((target.model.clone(), target.config.clone(), Some(target), gguf));
        };
        let mut specs = specs::open(self.specs.as_deref())?;
        let config = ConfigFile::read(path).map_err(model_error)?;
        let spec = match &self.spec {
            Some(spec) => specs.named(spec).map_err(model_error)?,
            None => specs.matching(&config).map_err(model_error)?.with_context(|| {
                format!(
                    "no spec matches the architecture `{}`; --spec SPEC names one",
                    config.architecture()
                )
            })?,
        };
        let model = specs::resolve(&specs, &spec, &config, &[])?;
        Ok((Arc::new(model), config, None, false))
    }

    fn gpu(&self) -> Result<Gpu> {
        match (&self.gpu, self.gpu_memory) {
            (Some(name), _) => Ok(gpus::find(name)?),
            (None, Some(memory)) => Ok(Gpu {
                name: "a GPU".to_owned(),
                memory,
                sm: self.gpu_sm,
                source: "--gpu-memory".to_owned(),
            }),
            (None, None) => bail!("which GPU? --gpu NAME, or --gpu-memory SIZE"),
        }
    }
}

/// Returns the format of the model's chat template, and the engine's parsers for that format.
fn chat_facts(target: &LocalModel, engine: &str) -> ChatFacts {
    let template = match Template::of_model(&target.dir) {
        Ok(template) => template,
        Err(TemplateError::Missing { .. }) => return ChatFacts::default(),
        Err(error) => {
            term::note(&format!("warning: the chat template cannot be read: {error}"));
            return ChatFacts::default();
        }
    };
    let Some(format) = template.format() else { return ChatFacts::default() };
    let reasons = template.variants().iter().any(|variant| format.has_reasoning(&variant.text));
    let parsers = format.engine(engine).cloned().unwrap_or_default();
    ChatFacts {
        format: Some(format.name().to_owned()),
        tools: parsers.tools,
        reasoning: parsers.reasoning.filter(|_| reasons),
    }
}

/// Returns the stored size of weights that stay in their stored form: quantized, or in a GGUF file.
fn stored_bytes(target: &LocalModel, gguf: bool) -> Option<u64> {
    let quantized = target.config.parsed().peek("quantization_config").is_some();
    // If the size cannot be read, it is computed from the spec.
    (gguf || quantized).then(|| target.extent().ok()).flatten().map(|extent| extent.0)
}

/// Finds a sheet by the engine's or the file's name, or reads the user's own.
pub(crate) fn open_sheet(word: &str) -> Result<Sheet> {
    let path = PathBuf::from(word);
    if path.extension().is_some_and(|end| end == "yaml") {
        let text = registry::file::read_text(&path, registry::file::SPEC)?;
        return read_sheet(&Arc::new(SourceText { path: word.to_owned(), text }));
    }
    let mut names = Vec::new();
    for (file, source) in sheet::builtin() {
        let sheet = read_sheet(&source)?;
        if sheet.engine == word || file == word {
            return Ok(sheet);
        }
        names.push(sheet.engine);
    }
    bail!(
        "there is no engine `{word}`; there are {}, or give a sheet of yours, NAME.yaml",
        names.join(", ")
    )
}

fn read_sheet(source: &Arc<SourceText>) -> Result<Sheet> {
    Sheet::read(source).map_err(|findings| reported_error(&findings, "the sheet cannot be used"))
}
