//! Implements `onboard check`, which validates a spec completely before any weight is read.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use models::config::ConfigFile;
use models::coverage::TensorCoverage;
use models::{CheckpointFolder, is_gguf};
use registry::diag::Finding;
use registry::model::Model;
use registry::ops::OpSet;
use serde_json::{Value, json};

use crate::findings::{ReportedError, collect_findings, engine_error, model_error, warn};
use crate::specs;
use crate::target::{self, ModelArgs, SpecArgs};
use crate::{CommandOutcome, term};

/// Checks a spec, and with --model that it explains a checkpoint completely
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard check my.yaml                  what can be said without a config
  onboard check my.yaml --model MODEL    dims, shapes, every weight and config key
  onboard check my.yaml --json           the findings for programs
  onboard check --schema > spec.json     a JSON schema, for editors

All findings come at once; exit code 2 if there is an error among them.")]
pub(crate) struct CheckArgs {
    /// The spec: its file, or the name of a known one
    #[arg(value_name = "SPEC", required_unless_present = "schema")]
    spec: Option<PathBuf>,
    /// Print the JSON schema of specs instead
    #[arg(long, exclusive = true)]
    schema: bool,
    /// Check it against this model: a checkpoint (its folder or its .safetensors file), a GGUF file, or owner/name on a hub
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Folder that is searched first for the specs it extends; default: ONBOARD_SPECS
    #[arg(long, value_name = "DIR")]
    specs: Option<PathBuf>,
    /// Override a part of the spec (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print JSON: the verdict, and every finding with its place
    #[arg(long)]
    json: bool,
}

impl CheckArgs {
    pub(crate) fn run(self) -> Result<CommandOutcome> {
        let Some(file) = &self.spec else {
            term::print(&serde_json::to_string_pretty(&registry::schema::schema(
                &OpSet::builtin(),
            ))?)?;
            return Ok(CommandOutcome::Ok);
        };
        if !self.json {
            term::print(&self.check_file(file)?.text)?;
            return Ok(CommandOutcome::Ok);
        }
        let (checked, findings) = collect_findings(|| self.check_file(file));
        let ended = match &checked {
            Ok(_) => CommandOutcome::Ok,
            Err(error) if error.is::<ReportedError>() => CommandOutcome::CouldNotRun,
            Err(_) => {
                checked?;
                return Ok(CommandOutcome::CouldNotRun);
            }
        };
        let document = json!({
            "schema": "onboard-findings/1",
            "spec": file.display().to_string(),
            "model": self.model.as_ref().map(|model| model.display().to_string()),
            "verdict": if ended == CommandOutcome::Ok { "ok" } else { "refused" },
            "coverage": checked.ok().and_then(|report| report.coverage),
            "findings": findings.iter().map(finding).collect::<Vec<_>>(),
        });
        term::print(&serde_json::to_string_pretty(&document)?)?;
        Ok(ended)
    }

    fn check_file(&self, file: &Path) -> Result<CheckResult> {
        let mut specs = specs::open(self.specs.as_deref())?;
        let spec = specs.named(file).map_err(model_error)?;
        let mut text = format!("{}: reads as a spec\n", file.display());
        let Some(model) = &self.model else {
            specs.lint(&spec).map_err(model_error)?;
            text.push_str("shapes, weights and config keys are checked with --model MODEL\n");
            return Ok(CheckResult { text, coverage: None });
        };
        let (resolved, coverage, place) = if is_gguf(model) {
            (self.open_model(file, model)?, None, model.clone())
        } else {
            let CheckpointFolder { dir, .. } = target::folder(&ModelArgs::at(model.clone()))?;
            let config = ConfigFile::of_folder(&dir).map_err(model_error)?;
            let resolved = specs::resolve(&specs, &spec, &config, &self.set)?;
            let unlike = resolved.gguf.as_ref().and_then(|gguf| gguf.unlike.as_deref());
            warn(unlike.map_or(&[], std::slice::from_ref));
            let coverage = TensorCoverage::of(&resolved, &checkpoints::Checkpoint::open(&dir)?);
            target::covered(&coverage, &dir)?;
            (resolved, Some(coverage), dir)
        };
        writeln!(
            text,
            "{}: {}, {}{}",
            place.display(),
            registry::quantity::plural(resolved.graph.layers.len(), "layer"),
            registry::quantity::plural(resolved.graph.states.len(), "state"),
            coverage.as_ref().map(|c| format!("; {}", c.summary())).unwrap_or_default()
        )?;
        Ok(CheckResult { text, coverage: coverage.map(serde_json::to_value).transpose()? })
    }

    /// Opens the model of a GGUF file, which succeeds only if every tensor is recognized.
    fn open_model(&self, file: &Path, model: &Path) -> Result<Model> {
        let choice = SpecArgs {
            spec: Some(file.to_owned()),
            specs: self.specs.clone(),
            set: self.set.clone(),
            ..SpecArgs::default()
        };
        let target = target::open(&ModelArgs::at(model.to_owned()), &choice)?;
        crate::engines::native()?
            .open(&target::source(&target), &engine::SessionOptions::default())
            .map_err(engine_error)?;
        Ok(std::sync::Arc::unwrap_or_clone(target.model))
    }
}

/// Text and coverage of a check.
struct CheckResult {
    text: String,
    coverage: Option<Value>,
}

fn finding(finding: &Finding) -> Value {
    let place = finding
        .at
        .as_ref()
        .map(|at| json!({ "path": at.source.path, "line": at.line(), "column": at.column() }));
    json!({
        "severity": match finding.severity {
            registry::diag::Severity::Error => "error",
            registry::diag::Severity::Warning => "warning",
        },
        "message": finding.message,
        "label": (!finding.label.is_empty()).then_some(&finding.label),
        "help": finding.help,
        "place": place,
    })
}
