//! `parity check` of a checkpoint of 8 or 4 bits against the reference of the one it was made of:
//! what it costs.

use std::path::Path;

use anyhow::{Context as _, Result};
use converters::convert::Measure;
use converters::{Checkpoint, TensorInfo};
use engine::Options;
use parity::Dump;
use parity::cost::cost;
use registry::dtype::Dtype;

use super::Check;
use super::gguf::{Costs, Row, show};
use crate::specs::check_error;
use crate::target::Target;
use crate::{Ended, engines};

/// Numbers compared at a time.
const SLAB: usize = 1 << 18;
/// The most that a matrix may be off that is kept in so many bits, as a share of its size: e4m3
/// has steps of an eighth, e2m1 of a half.
const BANDS: [(f64, f64); 2] = [(6.0, 0.14), (f64::INFINITY, 0.04)];
/// Divergence per squared relative error, as for GGUF files.
const PER_ERROR: f64 = 100.0;

/// Whether a dump is of other weights, of which these are codes and scales.
pub(super) fn is_made_of_others(checkpoint: &Checkpoint, dump: &Dump) -> Result<bool> {
    let coded = checkpoint.tensors().keys().any(|name| checkpoint.is_quantized(name));
    Ok(coded && checkpoint.fingerprint()? != dump.manifest.model.weights_sha256)
}

impl Check {
    pub(super) fn run_coded(
        &self,
        target: &Target,
        checkpoint: &Checkpoint,
        dump: &Dump,
        reference: &Path,
    ) -> Result<Ended> {
        let engine = engines::engine(&self.engine)?;
        let options = Options {
            dtype: Dtype::F32,
            threads: self.threads,
            round_tokens: self.w8a8,
            ..Options::default()
        };
        let cost = cost(engine.as_ref(), &target.source(), dump, &options).map_err(check_error)?;
        let numbers: usize = checkpoint.tensors().values().map(TensorInfo::elements).sum();
        let coded: Vec<&String> =
            checkpoint.tensors().keys().filter(|name| checkpoint.is_quantized(name)).collect();
        let band = coded.iter().map(|name| band(checkpoint, name)).fold(0.0, f64::max);
        let rows = match &self.source {
            Some(source) => rows(checkpoint, &coded, source)?,
            None => Vec::new(),
        };
        let kl_bound = (PER_ERROR * band * band).clamp(1e-4, 5.0);
        let well = cost.kl.mean <= kl_bound && rows.iter().all(|row| row.in_band);
        show(
            self.json.as_deref(),
            &Costs {
                file: target.dir.display().to_string(),
                reference: reference.display().to_string(),
                bits_per_weight: checkpoint.total_bytes() as f64 * 8.0 / numbers.max(1) as f64,
                cost: &cost,
                kl_bound,
                tensors: &rows,
                verdict: if well { "within its bands" } else { "out of its bands" },
            },
        )?;
        Ok(if well { Ended::Well } else { Ended::Differs })
    }
}

/// The most that a tensor may be off, by the bytes of its codes.
fn band(checkpoint: &Checkpoint, name: &str) -> f64 {
    let info = checkpoint.info(name);
    let bits = info.map_or(8.0, |info| info.bytes() as f64 * 8.0 / info.elements().max(1) as f64);
    BANDS.iter().find(|(below, _)| bits < *below).map_or(0.04, |(_, band)| *band)
}

fn rows(checkpoint: &Checkpoint, coded: &[&String], source: &Path) -> Result<Vec<Row>> {
    let source =
        Checkpoint::open(source).context("cannot read the checkpoint given as --source")?;
    let mut rows = Vec::new();
    for &name in coded {
        // Experts that were taken apart have no tensor of their name there.
        if source.info(name).is_none() {
            continue;
        }
        let (Ok(ours), Ok(theirs)) = (checkpoint.flow(name)?, source.flow(name)?) else { continue };
        if ours.shape() != theirs.shape() {
            continue;
        }
        let (mut sum, mut seen, mut numbers) = (Measure::default(), Vec::new(), Vec::new());
        for at in (0..ours.len()).step_by(SLAB) {
            let now = SLAB.min(ours.len() - at);
            seen.resize(now, 0.0);
            numbers.resize(now, 0.0);
            ours.read(at, &mut seen);
            theirs.read(at, &mut numbers);
            sum = sum.and(Measure::of(&numbers, &seen));
        }
        let (relative_error, expected) = (sum.relative(), Some(band(checkpoint, name)));
        let in_band = expected.is_none_or(|expected| relative_error <= expected);
        let ty = checkpoint.coded_dtype(name).map_or("", |dtype| dtype.name());
        rows.push(Row { name: name.clone(), ty, relative_error, expected, in_band });
    }
    rows.sort_by(|a, b| b.relative_error.total_cmp(&a.relative_error));
    Ok(rows)
}
