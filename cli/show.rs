//! Implements `onboard show`: a model as a spec resolves it, or the contents of a GGUF file.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use formats::gguf::{GgufSections, show_json, show_text};
use models::config::ConfigFile;
use registry::dtype::Dtype;
use registry::model::Model;
use registry::model_json::{ModelSections, model_json};
use registry::print;

use crate::findings::model_error;
use crate::specs;
use crate::target::{self, ModelArgs, SpecArgs, parse_dtype};
use crate::{CommandOutcome, term};

/// Prints a model as its spec resolves it: dims, weights, states, graph; or a GGUF file
#[expect(clippy::struct_excessive_bools, reason = "one flag per section, any of them together")]
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard show MODEL                        everything
  onboard show MODEL --states               what a layer remembers, and its cost in memory
  onboard show SPEC --config config.json    a spec with dims from a config, no weights needed
  onboard show SPEC --source                the text of a spec; of its functions: lib/NAME
  onboard show model.gguf                   keys, tensors, and what the types add up to
  onboard show MODEL --json                 for programs; of a GGUF file, every key and tensor")]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    which: ModelArgs,
    #[command(flatten)]
    choice: SpecArgs,
    /// Dims from this config.json; MODEL is then the name of a spec
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The program
    #[arg(long)]
    graph: bool,
    /// Weights with their shapes; of a GGUF file, tensors
    #[arg(long)]
    weights: bool,
    /// States with their dtype and cost
    #[arg(long)]
    states: bool,
    /// Dims; of a GGUF file, keys
    #[arg(long)]
    dims: bool,
    /// The dtype that state costs are given for
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    dtype: Option<Dtype>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The text of the spec; MODEL may be its name, or `lib/NAME` for a function file
    #[arg(long, conflicts_with_all = ["config", "graph", "weights", "states", "dims", "dtype", "json"])]
    source: bool,
}

impl ShowArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        // Sections of a resolved model must be requested explicitly.
        if self.source {
            return self.show_source();
        }
        if self.which.model.extension().is_some_and(|end| end == "gguf")
            && !(self.graph || self.states)
        {
            let both = self.dims == self.weights;
            let sections = GgufSections { keys: both || self.dims, tensors: both || self.weights };
            let path = &self.which.model;
            let text = if self.json {
                serde_json::to_string_pretty(&show_json(path, sections)?)?
            } else {
                show_text(path, sections)?
            };
            term::print(text.trim_end())?;
            return Ok(CommandOutcome::Ok);
        }
        let (model, model_dtype) = self.model()?;
        let all = !(self.graph || self.weights || self.states || self.dims);
        if self.json {
            let sections = ModelSections {
                dims: all || self.dims,
                weights: all || self.weights,
                states: all || self.states,
                graph: all || self.graph,
            };
            let dtype = self.dtype.unwrap_or(model_dtype);
            term::print(&serde_json::to_string_pretty(&model_json(&model, dtype, sections))?)?;
            return Ok(CommandOutcome::Ok);
        }
        let mut text = String::new();
        if all {
            let layers = registry::quantity::plural(model.graph.layers.len(), "layer");
            writeln!(text, "{} ({}), {layers}\n", model.name, model.architecture)?;
        }
        let dtype = self.dtype.unwrap_or(model_dtype);
        let sections = [
            (self.dims, "dims", print::dims(&model)),
            (self.weights, "weights", print::weights(&model)),
            (self.states, "states", print::states(&model, dtype)),
            (self.graph, "graph", print::graph(&model)),
        ];
        let many = all || sections.iter().filter(|section| section.0).count() > 1;
        for (_, title, body) in sections.iter().filter(|section| all || section.0) {
            if many {
                writeln!(text, "# {title}\n")?;
            }
            text.push_str(body);
            if many && !text.ends_with("\n\n") {
                text.push('\n');
            }
        }
        if all {
            text.push_str(&print::heads(&model, dtype));
        }
        term::print(text.trim_end())?;
        Ok(CommandOutcome::Ok)
    }

    /// Returns the name of the spec that is given in place of a model, if one is.
    fn spec_name(&self) -> Result<Option<String>> {
        let word = &self.which.model;
        // A model of this name is shown, except for its source, which is the spec's.
        let is_model = word.join("config.json").is_file() || word.is_file();
        if word.components().count() > 1 || (is_model && !self.source) {
            return Ok(None);
        }
        let specs = specs::open(self.choice.specs.as_deref())?;
        Ok(word.to_str().filter(|word| specs.has(word)).map(str::to_owned))
    }

    /// Prints the file of a spec, of the spec that matches a model, or of a function file.
    fn show_source(&self) -> Result<CommandOutcome> {
        let mut specs = specs::open(self.choice.specs.as_deref())?;
        let lib = self.which.model.to_str().and_then(|word| word.strip_prefix("lib/"));
        if let Some(lib) = lib.filter(|_| !self.which.model.exists()) {
            let Some(text) = specs.lib(lib) else { bail!("there is no function file `{lib}`") };
            term::print(text)?;
            return Ok(CommandOutcome::Ok);
        }
        let name = if let Some(name) = self.spec_name()? {
            name
        } else if let Some(spec) = &self.choice.spec {
            specs.named(spec).map_err(model_error)?
        } else if self.which.model.extension().is_some_and(|end| end == "yaml" || end == "yml") {
            specs.add(&self.which.model).map_err(model_error)?
        } else {
            target::open(&self.which, &self.choice)?.spec.name
        };
        term::print(specs.source(&name).unwrap_or_default())?;
        let (chain, libs) = specs.origins(&name);
        let more: Vec<String> = chain
            .into_iter()
            .skip(1)
            .chain(libs.into_iter().map(|lib| format!("lib/{lib}")))
            .map(|name| format!("`onboard show {name} --source`"))
            .collect();
        if !more.is_empty() {
            term::note(&format!("it starts from others: {}", more.join(", ")));
        }
        Ok(CommandOutcome::Ok)
    }

    fn model(&self) -> Result<(Model, Dtype)> {
        let Some(path) = &self.config else {
            if let Some(spec) = self.spec_name()? {
                bail!(
                    "a spec alone has no dims; give `onboard show {spec} --config FILE` with a config.json, or \
                     `onboard show {spec} --source` for its text"
                );
            }
            let target = target::open(&self.which, &self.choice)?;
            let dtype = target.dtype();
            let model = std::sync::Arc::unwrap_or_clone(target.model);
            return Ok((model, dtype));
        };
        let mut specs = specs::open(self.choice.specs.as_deref())?;
        let spec = specs.named(&self.which.model).map_err(model_error)?;
        let config = ConfigFile::read(path).map_err(model_error)?;
        let model = specs::resolve(&specs, &spec, &config, &self.choice.set)?;
        Ok((model, config.dtype().unwrap_or(Dtype::Bf16)))
    }
}
