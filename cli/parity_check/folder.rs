//! `parity check` of a checkpoint of 8 or 4 bits: measures its cost against the reference of its source
//! checkpoint.

use std::path::Path;

use anyhow::{Context as _, Result};
use checkpoints::{Checkpoint, TensorInfo};
use conversion::Measure;
use engine::Options;
use models::target::Target;
use parity::Dump;
use registry::dtype::Dtype;

use super::Check;
use super::costs::{Quantized, Row};
use crate::Ended;

/// Values compared at a time.
const SLAB: usize = 1 << 18;
/// True if a dump is of other weights, which these codes and scales may encode.
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
        let options = Options {
            dtype: Dtype::F32,
            threads: self.threads,
            // The reference ran other weights, with the inputs of those weights.
            rounds: self.rounds().unwrap_or_default(),
            ..Options::default()
        };
        let numbers: usize = checkpoint.tensors().values().map(TensorInfo::elements).sum();
        let coded: Vec<&String> =
            checkpoint.tensors().keys().filter(|name| checkpoint.is_quantized(name)).collect();
        let quantized = Quantized {
            bits_per_weight: checkpoint.total_bytes() as f64 * 8.0 / numbers.max(1) as f64,
            worst: coded.iter().map(|name| band(checkpoint, name)).fold(0.0, f64::max),
            inputs: 0.0,
            rows: match &self.source {
                Some(source) => rows(checkpoint, &coded, source)?,
                None => Vec::new(),
            },
        };
        self.show_cost(target, dump, reference, &options, quantized)
    }
}

/// Returns the error limit of a tensor, by the bits of its codes: e4m3 has steps of an eighth, e2m1 of a
/// half.
fn band(checkpoint: &Checkpoint, name: &str) -> f64 {
    let info = checkpoint.info(name);
    let bits = info.map_or(8.0, |info| info.bytes() as f64 * 8.0 / info.elements().max(1) as f64);
    if bits < 6.0 { 0.14 } else { 0.04 }
}

fn rows(checkpoint: &Checkpoint, coded: &[&String], source: &Path) -> Result<Vec<Row>> {
    let source =
        Checkpoint::open(source).context("cannot read the checkpoint given as --source")?;
    let mut rows = Vec::new();
    for &name in coded {
        // Split experts have no tensor of their name in the source.
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
    Ok(rows)
}
