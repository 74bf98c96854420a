//! Implements `onboard launch`: the command that starts an engine, with a reason for each flag.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use chat::TemplateError;
use clap::{Args, ValueEnum};
use models::config::ConfigFile;
use models::local_model::LocalModel;
use registry::diag::SourceText;
use registry::dtype::Dtype;
use registry::model::Model;
use registry::scalar::Scalar;
use registry::sheet::apply::{LaunchPlan, LaunchRequest as Asked, apply};
use registry::sheet::facts::{ChatFacts, FactInputs, ModelFacts, facts};
use registry::sheet::gpus::{self, Gpu};
use registry::sheet::versions::Version;
use registry::sheet::{self, Sheet};

use crate::findings::{model_error, reported_error};
use crate::specs;
use crate::target::{self, ModelArgs, SpecArgs, parse_dtype};
use crate::{CommandOutcome, chat_template, term};

mod command;
mod containers;
mod json;
mod show;
mod units;
mod verify;

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

/// Planned launch.
struct PlannedLaunch {
    sheet: Sheet,
    /// Value of the engine's model flag.
    model: String,
    /// True if the value is a local path.
    local: bool,
    architecture: String,
    asked: Asked,
    /// Version of the engine, and true if the sheet is verified for it.
    version: (String, bool),
    outcome: LaunchPlan,
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
        if !launched.version.1 {
            term::note(&format!("warning: {}", launched.unverified()));
        }
        let refused = !launched.outcome.refusals.is_empty();
        if self.form == LaunchFormat::Json && self.verify.is_none() {
            term::print(&serde_json::to_string_pretty(&json::show(&launched))?)?;
            return Ok(if refused { CommandOutcome::CouldNotRun } else { CommandOutcome::Ok });
        }
        if refused {
            for message in &launched.outcome.refusals {
                term::note(&show::refusal(message));
            }
            return Ok(CommandOutcome::CouldNotRun);
        }
        if let Some(url) = &self.verify {
            return verify::run(&launched, url, self.form == LaunchFormat::Json);
        }
        let text = match self.form {
            LaunchFormat::Systemd => units::systemd(&launched),
            LaunchFormat::Compose => containers::compose(&launched)?,
            LaunchFormat::K8s => containers::kubernetes(&launched)?,
            LaunchFormat::Text | LaunchFormat::Json => show::text(&launched),
        };
        // Output files for other programs have no room for warnings.
        if self.form != LaunchFormat::Text {
            for message in &launched.outcome.warnings {
                term::note(&format!("warning: {}", show::message_text(message)));
            }
        }
        term::print(text.trim_end())?;
        Ok(CommandOutcome::Ok)
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
        let (name, version, verified) = self.version(&sheet)?;
        let request = Asked {
            dtype: (dtype, self.dtype.is_some()),
            tp: self.tp,
            mtp: self.mtp,
            context: self.context,
            sequences: self.sequences,
            gpu: self.gpu()?,
            version,
            asked: self.settings(&sheet)?,
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
            version: (name, verified),
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

    fn settings(&self, sheet: &Sheet) -> Result<Vec<(String, Scalar)>> {
        let mut settings: Vec<(String, Scalar)> = Vec::new();
        for set in &self.set {
            let (key, value) = set
                .split_once('=')
                .with_context(|| format!("`--set {set}` has no `=`; write --set KEY=VALUE"))?;
            let Some(setting) = sheet.settings.get(key) else {
                let names = sheet.settings.keys().map(String::as_str);
                let help = registry::suggest::closest(key, names.clone());
                let help = help.map(|name| format!("; did you mean `{name}`?"));
                bail!(
                    "engine `{}` has no setting `{key}`{}",
                    sheet.engine,
                    help.unwrap_or_else(|| format!(
                        "; it has {}",
                        names.collect::<Vec<_>>().join(", ")
                    ))
                );
            };
            ensure!(settings.iter().all(|(name, _)| name != key), "setting `{key}` is given twice");
            settings.push((key.to_owned(), setting.read(value)?));
        }
        Ok(settings)
    }

    /// Returns the version as text and parsed, and true if the sheet is verified for it.
    fn version(&self, sheet: &Sheet) -> Result<(String, Option<Version>, bool)> {
        let Some(name) = self.engine_version.as_ref().or(sheet.checked.as_ref()) else {
            return Ok(("unknown".to_owned(), None, false));
        };
        let version = Version::parse(name).with_context(|| {
            format!("`{name}` is no version; expected numbers with dots, like 0.5.23")
        })?;
        let verified = sheet.versions.as_ref().is_some_and(|range| range.contains(&version));
        Ok((name.clone(), Some(version), verified))
    }
}

impl PlannedLaunch {
    /// Returns the warning that the sheet is not verified for this version.
    fn unverified(&self) -> String {
        let name = &self.version.0;
        let range = self.sheet.versions.as_ref();
        let range = range.map_or("no version".to_owned(), |range| format!("`{range}`"));
        format!(
            "unverified: the sheet of `{}` is true for {range}, and this is {name}",
            self.sheet.engine
        )
    }
}

/// Returns the format of the model's chat template, and the engine's parsers for that format.
fn chat_facts(target: &LocalModel, engine: &str) -> ChatFacts {
    let template = match chat_template::of_model(&target.dir) {
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

/// Parses a memory size as MiB. GPU vendors call 2^30 bytes a GB.
fn parse_mib(text: &str) -> Result<i64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_lowercase();
    let mib = match unit.as_str() {
        "gb" | "gib" | "g" => 1024.0,
        "mb" | "mib" | "m" => 1.0,
        _ => return Err(format!("`{text}` is no size; expected 16GB or 24564MiB")),
    };
    let number: f64 = digits.trim().parse().map_err(|_| format!("`{text}` is no size"))?;
    let size = (number * mib).floor();
    if !(1.0..=1e9).contains(&size) {
        return Err(format!("`{text}` is no size of a GPU's memory"));
    }
    Ok(size as i64)
}

#[cfg(test)]
mod tests {
    use super::parse_mib;

    #[test]
    fn sizes_are_read_as_mib() {
        for (text, expected) in [
            ("16GB", Some(16384)),
            ("24564MiB", Some(24564)),
            ("1.5g", Some(1536)),
            ("16", None),
            ("-1GB", None),
            ("nanGB", None),
            ("1e30GB", None),
        ] {
            assert_eq!(parse_mib(text).ok(), expected, "{text}");
        }
    }
}
