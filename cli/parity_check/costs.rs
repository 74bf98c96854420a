//! Measures the cost of quantization of a checkpoint or a file, and prints the verdict.

use std::path::Path;

use anyhow::{Result, ensure};
use engine::{Engine, ModelSource, SessionOptions};
use parity::Dump;
use parity::quantized::{CostReport, QuantizedWeights, judge};

use super::ParityCheckArgs;
use crate::findings::check_error;
use crate::{CommandOutcome, annotate, term, write};

impl ParityCheckArgs {
    /// Runs the prompts of a dump and prints the differences from it.
    pub(super) fn show_cost(
        &self,
        engine: &dyn Engine,
        source: &ModelSource<'_>,
        (path, dump): (&Path, &Dump),
        options: &SessionOptions,
        quantized: QuantizedWeights,
    ) -> Result<CommandOutcome> {
        ensure!(
            self.html.is_none() && self.junit.is_none(),
            "--html and --junit show gates, and what quantization costs has none: it is in --json FILE"
        );
        let costs = judge(engine, source, (path, dump), options, quantized).map_err(check_error)?;
        show(self.json.as_deref(), &costs)?;
        if costs.is_explained() {
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

/// Prints the costs, as JSON if requested, and as text.
fn show(json: Option<&Path>, costs: &CostReport) -> Result<()> {
    let whole = || serde_json::to_string_pretty(costs);
    match json {
        Some(path) if path.as_os_str() == "-" => term::print(&whole()?)?,
        json => {
            if let Some(path) = json {
                write::atomic(path, whole()?.as_bytes())?;
            }
            term::print(&costs.text())?;
        }
    }
    Ok(())
}
