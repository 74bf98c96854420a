//! `parity check FILE.gguf` with the native engine: agreement where the file keeps every number,
//! and what it costs where it does not.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use converters::codec::expected_error;
use converters::gguf::File;
use engine::Options;
use parity::cost::{Cost, cost};
use parity::{CheckOptions, Dump};
use registry::dtype::Dtype;
use serde::Serialize;

use super::{Check, beside, no_reference};
use crate::convert::{self, Distance};
use crate::specs::check_error;
use crate::target::Target;
use crate::{Ended, engines, term, write};

/// Errors above the expected one by this factor are out of band: outliers, or a wrong tensor.
const BAND: f64 = 1.5;

/// One quantized tensor against its source.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) ty: &'static str,
    pub(super) relative_error: f64,
    pub(super) expected: Option<f64>,
    pub(super) in_band: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct Costs<'a> {
    pub(super) file: String,
    pub(super) reference: String,
    pub(super) bits_per_weight: f64,
    pub(super) cost: &'a Cost,
    /// The most that the mean divergence of such a file may be.
    pub(super) kl_bound: f64,
    pub(super) tensors: &'a [Row],
    pub(super) verdict: &'static str,
}

impl Check {
    pub(super) fn run_gguf(&self, target: &Target) -> Result<Ended> {
        let Some(path) = self.reference.clone().or_else(|| beside(target)) else {
            bail!("{}", no_reference(target));
        };
        let dump = Dump::open(&path)
            .with_context(|| format!("cannot read the reference `{}`", path.display()))?;
        let file = File::open(&target.dir)?;
        if file.tensors().iter().any(|info| info.ty.is_quantized()) {
            return self.show_cost(target, &file, &dump, &path);
        }
        let options = CheckOptions { same_model: false, ..self.options(self.dtypes_of_file()) };
        self.compare(target, &dump, &options)
    }

    fn show_cost(
        &self,
        target: &Target,
        file: &File,
        dump: &Dump,
        reference: &Path,
    ) -> Result<Ended> {
        let engine = engines::engine(&self.engine)?;
        let options = Options { dtype: Dtype::F32, threads: self.threads, ..Options::default() };
        let cost = cost(engine.as_ref(), &target.source(), dump, &options).map_err(check_error)?;
        let rows = match self.source(target) {
            Some(source) => rows(&convert::distances(&source, &self.choice, &target.dir)?),
            None => Vec::new(),
        };
        let (bytes, numbers) = file
            .tensors()
            .iter()
            .fold((0, 0), |sum, info| (sum.0 + info.bytes, sum.1 + info.elements()));
        let kl_bound = kl_bound(file);
        let well = cost.kl.mean <= kl_bound && rows.iter().all(|row| row.in_band);
        let costs = Costs {
            file: target.dir.display().to_string(),
            reference: reference.display().to_string(),
            bits_per_weight: bytes as f64 * 8.0 / numbers.max(1) as f64,
            cost: &cost,
            kl_bound,
            tensors: &rows,
            verdict: if well { "within its bands" } else { "out of its bands" },
        };
        show(self.json.as_deref(), &costs)?;
        Ok(if well { Ended::Well } else { Ended::Differs })
    }

    /// The checkpoint that the file was made from: as given, or the folder it lies in.
    fn source(&self, target: &Target) -> Option<PathBuf> {
        let beside = || {
            let home = target.home();
            home.join("config.json").is_file().then(|| home.to_owned())
        };
        self.source.clone().or_else(beside)
    }
}

/// As JSON where that is asked for, and in words.
pub(super) fn show(json: Option<&Path>, costs: &Costs<'_>) -> Result<()> {
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

fn rows(distances: &[Distance]) -> Vec<Row> {
    let quantized = distances.iter().filter(|one| one.ty.is_quantized());
    let mut rows: Vec<Row> = quantized
        .map(|one| {
            let (relative_error, expected) = (one.measure.relative(), expected_error(one.ty));
            let in_band = expected.is_none_or(|expected| relative_error <= BAND * expected);
            Row { name: one.name.clone(), ty: one.ty.name(), relative_error, expected, in_band }
        })
        .collect();
    rows.sort_by(|a, b| b.relative_error.total_cmp(&a.relative_error));
    rows
}

/// The most that the mean divergence may be, in nats: grows with the square of the error of the
/// coarsest type, up to what makes two models strangers.
fn kl_bound(file: &File) -> f64 {
    /// Divergence per squared relative error; small random models reach 32 to 42.
    const PER_ERROR: f64 = 100.0;
    let errors = file.tensors().iter().filter_map(|info| expected_error(info.ty));
    let worst = errors.fold(0.0_f64, f64::max);
    (PER_ERROR * worst * worst).clamp(1e-4, 5.0)
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
