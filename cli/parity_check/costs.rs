//! Measures the cost of quantization of a checkpoint or a file, and compares it with bounds.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Result, ensure};
use engine::{Engine, Options, Source};
use models::target::Target;
use parity::Dump;
use parity::cost::{Cost, cost, rounding, uninformed};
use serde::Serialize;

use super::Check;
use crate::findings::check_error;
use crate::target;
use crate::{Ended, annotate, term, write};

/// Quantized tensor compared with its source.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) ty: &'static str,
    pub(super) relative_error: f64,
    pub(super) expected: Option<f64>,
    pub(super) in_band: bool,
}

/// Static facts about quantized weights.
pub(super) struct Quantized {
    pub(super) bits_per_weight: f64,
    /// Expected relative error of the coarsest type.
    pub(super) worst: f64,
    /// Relative error of inputs that an engine rounds before it multiplies by these weights; 0 if it does
    /// not.
    pub(super) inputs: f64,
    /// Tensors that were compared with their sources.
    pub(super) rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Costs<'a> {
    schema: &'static str,
    file: String,
    reference: String,
    bits_per_weight: f64,
    cost: &'a Cost,
    /// Upper bound on the mean divergence of such a file.
    kl_bound: f64,
    tensors: &'a [Row],
    verdict: &'static str,
}

impl Check {
    /// Runs the prompts of a dump and prints the differences from it.
    pub(super) fn show_cost(
        &self,
        target: &Target,
        dump: &Dump,
        reference: &Path,
        options: &Options,
        quantized: Quantized,
    ) -> Result<Ended> {
        let engine = self.engine.of_models()?;
        self.show_cost_in(
            engine.as_ref(),
            &target::source(target),
            dump,
            reference,
            options,
            quantized,
        )
    }

    /// Measures the cost in an engine that was opened for the file.
    pub(super) fn show_cost_in(
        &self,
        engine: &dyn Engine,
        source: &Source<'_>,
        dump: &Dump,
        reference: &Path,
        options: &Options,
        mut quantized: Quantized,
    ) -> Result<Ended> {
        ensure!(
            self.html.is_none() && self.junit.is_none(),
            "--html and --junit show gates, and what quantization costs has none: it is in --json FILE"
        );
        let cost = cost(engine, source, dump, options).map_err(check_error)?;
        let rows = &mut quantized.rows;
        rows.sort_by(|a, b| b.relative_error.total_cmp(&a.relative_error));
        let rounding = rounding(dump)?;
        let kl_bound = kl_bound(quantized.worst, quantized.inputs, rounding);
        // A divergence like that of a constant prediction means lost weights, whatever the types explain.
        let kl_bound = kl_bound.min(uninformed(dump)?.unwrap_or(f64::INFINITY));
        let well = cost.kl.mean <= kl_bound && rows.iter().all(|row| row.in_band);
        let costs = Costs {
            schema: "onboard-cost/1",
            file: source.dir.display().to_string(),
            reference: reference.display().to_string(),
            bits_per_weight: quantized.bits_per_weight,
            cost: &cost,
            kl_bound,
            tensors: rows,
            verdict: if well { "within its bands" } else { "out of its bands" },
        };
        show(self.json.as_deref(), &costs)?;
        if !well {
            annotate::error(&format!(
                "`{}` is {}: mean KL {:.3e}, at most {kl_bound:.1e}",
                costs.file, costs.verdict, cost.kl.mean
            ));
        }
        if !well && rounding.is_none() {
            term::note(
                "note: the dump has a run in f32 alone, so what rounding is worth to this model is not known and the \
                 bound is that of most models; dump it with --dtypes f32,bf16 to have it measured",
            );
        }
        Ok(if well { Ended::Well } else { Ended::Differs })
    }
}

/// Returns the upper bound on the mean divergence, in nats. It grows with the squared error of the coarsest
/// type and of the inputs. The growth rate depends on the model: the divergence of the reference's 16-bit
/// run calibrates it.
fn kl_bound(worst: f64, inputs: f64, rounding: Option<(f64, f64)>) -> f64 {
    /// Divergence per squared relative error; small random models reach 32 to 42.
    const PER_ERROR: f64 = 100.0;
    /// Cost relative to the reference's own rounding. In Q8_0, with an error of 1.4 bf16 rounding units,
    /// the fixtures' files cost 0.1 to 8 times as much as a bf16 run, and mixtures, whose routing flips, up
    /// to 35 times.
    const PER_ROUNDING: f64 = 20.0;
    /// Absolute limit: models this far apart are unrelated, however they round.
    const MOST: f64 = 3.0;
    let square = worst * worst + inputs * inputs;
    let own = rounding.map_or(0.0, |(cost, unit)| PER_ROUNDING * cost * square / (unit * unit));
    (PER_ERROR * square).clamp(1e-4, 5.0).max(own.min(MOST))
}

/// Prints the costs, as JSON if requested, and as text.
fn show(json: Option<&Path>, costs: &Costs<'_>) -> Result<()> {
    let whole = || serde_json::to_string_pretty(costs);
    match json {
        Some(path) if path.as_os_str() == "-" => term::print(&whole()?)?,
        json => {
            if let Some(path) = json {
                write::atomic(path, whole()?.as_bytes())?;
            }
            term::print(&text(costs))?;
        }
    }
    Ok(())
}

fn text(costs: &Costs<'_>) -> String {
    const SHOWN: usize = 8;
    let Cost { positions, kl, same_top, perplexity_ratio, largest, .. } = costs.cost;
    let mut text = String::new();
    let _ = writeln!(text, "{} against {}", costs.file, costs.reference);
    let _ = writeln!(text, "  {:.3} bits per weight, {positions} positions", costs.bits_per_weight);
    let _ = writeln!(
        text,
        "  KL from f32   mean {:.3e}  p50 {:.3e}  p90 {:.3e}  p99 {:.3e}  max {:.3e}  (mean may be {:.1e})",
        kl.mean, kl.p50, kl.p90, kl.p99, kl.max, costs.kl_bound
    );
    let _ = writeln!(
        text,
        "  same top token {:.2} %   perplexity ratio {perplexity_ratio:.5}   largest |Δlogprob| {largest:.3}",
        same_top * 100.0
    );
    for row in costs.tensors.iter().filter(|row| !row.in_band) {
        let expected = row.expected.unwrap_or_default();
        let _ = writeln!(
            text,
            "  out of band: {} ({}) has relative error {:.4}, expected about {expected:.4}",
            row.name, row.ty, row.relative_error
        );
    }
    for row in costs.tensors.iter().filter(|row| row.in_band).take(SHOWN) {
        let _ = writeln!(
            text,
            "  {:<40} {:<8} relative error {:.5}",
            row.name, row.ty, row.relative_error
        );
    }
    if costs.tensors.is_empty() {
        text.push_str("  tensors were not compared: give the checkpoint with --source DIR\n");
    }
    let _ = writeln!(text, "{}", costs.verdict);
    text
}
