//! Proves the graph of quantized weights, measures what the weights cost, and prints the verdict.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use checkpoints::Checkpoint;
use engine::{Engine, ModelSource, SessionOptions};
use models::local_model::LocalModel;
use parity::quantized::{CostReport, GraphProof, QuantizedWeights, judge};
use parity::{CheckOptions, Dump, Report, Verdict};
use registry::dtype::Dtype;

use super::ParityCheckArgs;
use crate::findings::check_error;
use crate::{CommandOutcome, annotate, term, write};

/// Result of running the graph of quantized weights with the weights of the reference.
pub(super) enum GraphOutcome {
    /// Every comparison passed, or there are no such weights.
    Proof(GraphProof),
    /// The graph is another one than the reference's.
    Differs(Box<Report>),
}

impl ParityCheckArgs {
    /// Returns the checkpoint that the reference ran: as given, or the folder that the dump lies in.
    pub(super) fn source_of(&self, dump: &Dump) -> Option<PathBuf> {
        self.source.clone().or_else(|| {
            let home = dump.dir.parent()?;
            let fingerprint = Checkpoint::open(home).ok()?.fingerprint().ok()?;
            (fingerprint == dump.manifest.model.weights_sha256).then(|| home.to_owned())
        })
    }

    /// Compares the graph of quantized weights with the reference, op by op, with the weights that the reference had in
    /// place of the quantized ones. Only f32 tells a wrong graph from rounding.
    pub(super) fn graph(
        &self,
        target: &LocalModel,
        weights: Option<&Path>,
        dump: &Dump,
    ) -> Result<GraphOutcome> {
        let Some(dir) = weights else { return Ok(GraphOutcome::Proof(GraphProof::default())) };
        let options = CheckOptions {
            same_model: false,
            // The reference ran unquantized weights, which declare no rounding.
            rounds: None,
            ..self.options(vec![Dtype::F32])
        };
        let source = ModelSource { model: Arc::clone(&target.model), dir };
        let report = self.judged(&source, dump, &options).with_context(|| {
            format!(
                "cannot run the graph of `{}` with the weights of `{}`",
                target.dir.display(),
                dir.display()
            )
        })?;
        if report.verdict() == Verdict::Fail {
            return Ok(GraphOutcome::Differs(Box::new(report)));
        }
        let comparisons = report.runs.iter().map(|run| run.gates.len()).sum();
        Ok(GraphOutcome::Proof(GraphProof { source: Some(dir.display().to_string()), comparisons }))
    }

    /// Prints the report of a graph that is not the reference's.
    pub(super) fn show_other_graph(
        &self,
        target: &LocalModel,
        mut report: Report,
    ) -> Result<CommandOutcome> {
        report.notes.push(format!(
            "this is the graph of `{}` with the weights of `{}`, so that no rounding of weights hides a mistake; what its \
             own weights cost was not measured",
            target.dir.display(),
            report.subject.model
        ));
        report.subject.sha256.spec = Some(target.spec.sha256.clone());
        self.conclude(&report, &target.model)
    }

    /// Runs the prompts of a dump and prints the differences from it.
    pub(super) fn show_cost(
        &self,
        engine: &dyn Engine,
        source: &ModelSource<'_>,
        (path, dump): (&Path, &Dump),
        options: &SessionOptions,
        quantized: (QuantizedWeights, GraphProof),
    ) -> Result<CommandOutcome> {
        let costs = judge(engine, source, (path, dump), options, quantized).map_err(check_error)?;
        show(self.json.as_deref(), &costs)?;
        if costs.is_explained() {
            if costs.graph.source.is_none() && engine.runs_specs() {
                term::note(
                    "note: the graph is not proven: give the checkpoint that the dump was made from as --source DIR",
                );
            }
            return Ok(CommandOutcome::Ok);
        }
        annotate::error(&format!(
            "`{}` is {}: mean KL {:.3e}, at most {:.1e}",
            costs.file, costs.verdict, costs.cost.kl.mean, costs.kl_bound
        ));
        if !costs.calibrated {
            term::note(
                "note: the dump has a run in f32 alone, so what rounding is worth to this model is not known and the \
                 bound is that of most models; dump it with --dtypes f32,bf16 to have it measured",
            );
        }
        Ok(CommandOutcome::Differs)
    }
}

impl ParityCheckArgs {
    /// Returns an error for forms of reports that a cost does not have.
    pub(super) fn refuse_pages(&self) -> Result<()> {
        ensure!(
            self.html.is_none() && self.junit.is_none(),
            "--html and --junit show gates, and what quantization costs has none: it is in --json FILE"
        );
        Ok(())
    }
}

/// Prints the costs, as JSON if requested, and as text.
fn show(json: Option<&Path>, costs: &CostReport) -> Result<()> {
    match json {
        Some(path) if path.as_os_str() == "-" => {
            term::print(&serde_json::to_string_pretty(costs)?)?;
        }
        json => {
            if let Some(path) = json {
                write::atomic(path, serde_json::to_string_pretty(costs)?.as_bytes())?;
            }
            term::print(&costs.text())?;
        }
    }
    Ok(())
}
