//! Quantized weights: their errors, the cost that these allow, and the verdict on a measured cost.

use std::fmt::Write as _;
use std::path::Path;

use checkpoints::{Checkpoint, TensorInfo};
use engine::{Engine, ModelSource, SessionOptions};
use formats::codec::{BlockType, expected_error, sums};
use formats::gguf::GgufFile;
use registry::dtype::Dtype;
use serde::Serialize;

use crate::check::Error;
use crate::cost::{Cost, constant_prediction_cost, cost, rounding};
use crate::dump::Dump;
use crate::rule::roundoff;

/// Values compared at a time.
const SLAB: usize = 1 << 18;

/// Quantized tensor compared with its source.
#[derive(Debug, Clone, Serialize)]
pub struct QuantizedTensor {
    /// Name of the tensor.
    pub name: String,
    /// Type of its codes.
    #[serde(rename = "type")]
    pub ty: &'static str,
    /// Root mean squared error over the root mean square of the source.
    pub relative_error: f64,
    /// Relative error that the type explains.
    pub expected: Option<f64>,
    /// True if the type explains the error.
    pub in_band: bool,
}

impl QuantizedTensor {
    /// Returns a tensor of a file with its measured error, and the error of encoding its source: weights with outliers
    /// lose more than normally distributed ones.
    pub fn of_file(name: String, ty: BlockType, relative_error: f64, encoding_error: f64) -> Self {
        /// Factor above the expected error from which a tensor is out of band: a wrong tensor.
        const BAND: f64 = 1.5;
        let of_type = expected_error(ty).or_else(|| float_error(ty));
        let expected = of_type.map(|of_type| of_type.max(encoding_error));
        let in_band = expected.is_none_or(|expected| relative_error <= BAND * expected);
        Self { name, ty: ty.name(), relative_error, expected, in_band }
    }
}

/// Returns the largest relative error of values that are stored as floating-point numbers. Steps of a weight map
/// (an exponential and its logarithm) cost a few units in the last place of f32.
fn float_error(ty: BlockType) -> Option<f64> {
    /// Units in the last place of f32 that the steps of a weight map cost.
    const STEPS: f64 = 8.0;
    match ty.plain()? {
        Dtype::F32 => Some(STEPS * roundoff(Dtype::F32)),
        narrow => Some(roundoff(narrow)),
    }
}

/// Proof of the graph of quantized weights: the same graph, run with the weights that the reference had.
#[derive(Debug, Clone, Default, Serialize)]
pub struct GraphProof {
    /// Folder of the weights that the reference had; none if nothing was compared.
    pub source: Option<String>,
    /// Number of comparisons, all of which passed.
    pub comparisons: usize,
}

/// Static facts about quantized weights.
#[derive(Debug, Clone)]
pub struct QuantizedWeights {
    /// Stored bits per weight.
    pub bits_per_weight: f64,
    /// Expected relative error of the coarsest type.
    pub worst: f64,
    /// Relative error of inputs that an engine rounds before it multiplies by these weights; 0 if it does
    /// not.
    pub inputs: f64,
    /// Tensors that were compared with their sources.
    pub tensors: Vec<QuantizedTensor>,
}

impl QuantizedWeights {
    /// Returns the facts about a file, with tensors that were compared.
    pub fn of_file(file: &GgufFile, tensors: Vec<QuantizedTensor>) -> Self {
        let (bytes, numbers) = file
            .tensors()
            .iter()
            .fold((0, 0), |sum, info| (sum.0 + info.bytes, sum.1 + info.elements()));
        let errors = file.tensors().iter().filter_map(|info| expected_error(info.ty));
        Self {
            bits_per_weight: bytes as f64 * 8.0 / numbers.max(1) as f64,
            worst: errors.fold(0.0, f64::max),
            inputs: 0.0,
            tensors,
        }
    }

    /// Returns the facts about a checkpoint of codes and scales. Its tensors are compared with those of
    /// `source`, if given.
    pub fn of_checkpoint(
        checkpoint: &Checkpoint,
        source: Option<&Checkpoint>,
    ) -> Result<Self, Error> {
        let numbers: usize = checkpoint.tensors().values().map(TensorInfo::elements).sum();
        let bands = quantized_tensors(checkpoint).map(|name| band(checkpoint, name));
        Ok(Self {
            bits_per_weight: checkpoint.total_bytes() as f64 * 8.0 / numbers.max(1) as f64,
            worst: bands.fold(0.0, f64::max),
            inputs: 0.0,
            tensors: source.map_or(Ok(Vec::new()), |source| compared(checkpoint, source))?,
        })
    }

    /// Returns the upper bound on the mean divergence, in nats. It grows with the squared error of the
    /// coarsest type and of the inputs. The growth rate depends on the model: the divergence of the
    /// reference's 16-bit run calibrates it.
    fn kl_bound(&self, rounding: Option<(f64, f64)>) -> f64 {
        /// Divergence per squared relative error; small random models reach 32 to 42.
        const PER_ERROR: f64 = 100.0;
        /// Cost relative to the reference's own rounding. In Q8_0, with an error of 1.4 bf16 rounding units,
        /// the fixtures' files cost 0.1 to 8 times as much as a bf16 run, and mixtures, whose routing flips,
        /// up to 35 times.
        const PER_ROUNDING: f64 = 20.0;
        /// Absolute limit: models this far apart are unrelated, however they round.
        const MOST: f64 = 3.0;
        let square = self.worst * self.worst + self.inputs * self.inputs;
        let by_rounding =
            rounding.map_or(0.0, |(cost, unit)| PER_ROUNDING * cost * square / (unit * unit));
        (PER_ERROR * square).clamp(1e-4, 5.0).max(by_rounding.min(MOST))
    }
}

/// True if any tensor of a file is quantized in blocks.
pub fn is_quantized(file: &GgufFile) -> bool {
    file.tensors().iter().any(|info| info.ty.is_quantized())
}

/// True if a dump is of other weights, which the codes and scales of a checkpoint may encode.
pub fn has_other_weights(checkpoint: &Checkpoint, dump: &Dump) -> Result<bool, Error> {
    let quantized = quantized_tensors(checkpoint).next().is_some();
    Ok(quantized && checkpoint.fingerprint()? != dump.manifest.model.weights_sha256)
}

/// Lists the quantized tensors of a checkpoint.
fn quantized_tensors(checkpoint: &Checkpoint) -> impl Iterator<Item = &String> {
    checkpoint.tensors().keys().filter(|name| checkpoint.is_quantized(name))
}

/// Returns the error limit of a tensor, by the bits of its codes: e4m3 has steps of an eighth, e2m1 of a
/// half.
fn band(checkpoint: &Checkpoint, name: &str) -> f64 {
    let info = checkpoint.info(name);
    let bits = info.map_or(8.0, |info| info.bytes() as f64 * 8.0 / info.elements().max(1) as f64);
    if bits < 6.0 { 0.14 } else { 0.04 }
}

fn compared(checkpoint: &Checkpoint, source: &Checkpoint) -> Result<Vec<QuantizedTensor>, Error> {
    let mut tensors = Vec::new();
    for name in quantized_tensors(checkpoint) {
        // Split experts have no tensor of their name in the source.
        if source.info(name).is_none() {
            continue;
        }
        let ours = checkpoint.flow(name)?;
        let theirs = source.flow(name)?;
        if ours.shape() != theirs.shape() || theirs.numeric().is_err() {
            continue;
        }
        let mut error = 0.0;
        let mut power = 0.0;
        let mut seen = Vec::new();
        let mut numbers = Vec::new();
        for at in (0..ours.len()).step_by(SLAB) {
            let now = SLAB.min(ours.len() - at);
            seen.resize(now, 0.0);
            numbers.resize(now, 0.0);
            ours.read(at, &mut seen);
            theirs.read(at, &mut numbers);
            let part = sums(&numbers, &seen);
            error += part.error;
            power += part.power;
        }
        let relative_error = if error == 0.0 { 0.0 } else { (error / power).sqrt() };
        let expected = band(checkpoint, name);
        tensors.push(QuantizedTensor {
            name: name.clone(),
            ty: checkpoint.coded_dtype(name).map_or("", |dtype| dtype.name()),
            relative_error,
            expected: Some(expected),
            in_band: relative_error <= expected,
        });
    }
    Ok(tensors)
}

/// Cost of quantized weights with its verdict. Serializes as the schema `onboard-cost/1`.
#[derive(Debug, Serialize)]
pub struct CostReport {
    schema: &'static str,
    /// Path of the weights.
    pub file: String,
    /// Path of the dump.
    pub reference: String,
    /// Stored bits per weight.
    pub bits_per_weight: f64,
    /// Differences from the f32 run of the reference.
    pub cost: Cost,
    /// Upper bound on the mean divergence of such weights.
    pub kl_bound: f64,
    /// Tensors compared with their sources, the largest error first.
    pub tensors: Vec<QuantizedTensor>,
    /// Comparison of the graph, without the error of the weights.
    pub graph: GraphProof,
    /// `within its bands`, `within its bands, graph not proven`, or `out of its bands`.
    pub verdict: &'static str,
    /// True if the dump has a 16-bit run, which shows the cost of rounding for this model.
    #[serde(skip)]
    pub calibrated: bool,
}

/// Runs the prompts of a dump on quantized weights and judges the differences from the dump.
pub fn judge(
    engine: &dyn Engine,
    source: &ModelSource<'_>,
    (path, dump): (&Path, &Dump),
    options: &SessionOptions,
    (mut quantized, graph): (QuantizedWeights, GraphProof),
) -> Result<CostReport, Error> {
    let cost = cost(engine, source, dump, options)?;
    quantized.tensors.sort_by(|a, b| b.relative_error.total_cmp(&a.relative_error));
    let rounding = rounding(dump)?;
    let bound = quantized.kl_bound(rounding);
    // A divergence like that of a constant prediction means lost weights, whatever the types explain.
    let kl_bound = bound.min(constant_prediction_cost(dump)?.unwrap_or(f64::INFINITY));
    let mut costs = CostReport {
        schema: "onboard-cost/1",
        file: source.dir.display().to_string(),
        reference: path.display().to_string(),
        bits_per_weight: quantized.bits_per_weight,
        cost,
        kl_bound,
        tensors: quantized.tensors,
        graph,
        verdict: "out of its bands",
        calibrated: rounding.is_some(),
    };
    if costs.is_explained() {
        let proven = costs.graph.source.is_some();
        costs.verdict =
            if proven { "within its bands" } else { "within its bands, graph not proven" };
    }
    Ok(costs)
}

impl CostReport {
    /// True if the types of the weights explain the cost and the error of every tensor.
    pub fn is_explained(&self) -> bool {
        self.cost.kl.mean <= self.kl_bound && self.tensors.iter().all(|tensor| tensor.in_band)
    }

    /// Formats the costs for people.
    pub fn text(&self) -> String {
        const SHOWN: usize = 8;
        let Cost { positions, kl, same_top, perplexity_ratio, largest, .. } = &self.cost;
        let mut text = String::new();
        let _ = writeln!(text, "{} against {}", self.file, self.reference);
        let _ =
            writeln!(text, "  {:.3} bits per weight, {positions} positions", self.bits_per_weight);
        let _ = writeln!(
            text,
            "  KL from f32   mean {:.3e}  p50 {:.3e}  p90 {:.3e}  p99 {:.3e}  max {:.3e}  (mean may be {:.1e})",
            kl.mean, kl.p50, kl.p90, kl.p99, kl.max, self.kl_bound
        );
        let _ = writeln!(
            text,
            "  same top token {:.2} %   perplexity ratio {perplexity_ratio:.5}   largest |Δlogprob| {largest:.3}",
            same_top * 100.0
        );
        for tensor in self.tensors.iter().filter(|tensor| !tensor.in_band) {
            let expected = tensor.expected.unwrap_or_default();
            let _ = writeln!(
                text,
                "  out of band: {} ({}) has relative error {:.4}, expected about {expected:.4}",
                tensor.name, tensor.ty, tensor.relative_error
            );
        }
        for tensor in self.tensors.iter().filter(|tensor| tensor.in_band).take(SHOWN) {
            let _ = writeln!(
                text,
                "  {:<40} {:<8} relative error {:.5}",
                tensor.name, tensor.ty, tensor.relative_error
            );
        }
        if self.tensors.is_empty() {
            text.push_str(
                "  tensors were not compared: give the checkpoint with the option `source DIR`\n",
            );
        }
        let _ = match &self.graph {
            GraphProof { source: Some(source), comparisons } => writeln!(
                text,
                "  graph: the reference's in {comparisons} comparisons, with the weights of {source}"
            ),
            GraphProof { source: None, .. } => writeln!(
                text,
                "  graph: not proven, a wrong one may cost less than the types explain; give the checkpoint of the \
                 reference with the option `source DIR`"
            ),
        };
        let _ = writeln!(text, "{}", self.verdict);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(worst: f64, inputs: f64, rounding: Option<(f64, f64)>) -> f64 {
        QuantizedWeights { bits_per_weight: 8.0, worst, inputs, tensors: Vec::new() }
            .kl_bound(rounding)
    }

    #[test]
    fn the_bound_grows_with_the_square_of_the_error() {
        for (worst, inputs, rounding, expected) in [
            (0.0, 0.0, None, 1e-4),
            (0.01, 0.0, None, 0.01),
            (0.03, 0.04, None, 0.25),
            (1.0, 0.0, None, 5.0),
            // The reference's own rounding raises the bound of a sensitive model, up to a limit.
            (0.01, 0.0, Some((0.1, 0.01)), 2.0),
            (0.01, 0.0, Some((9.0, 0.01)), 3.0),
        ] {
            let limit = bound(worst, inputs, rounding);
            assert!((limit - expected).abs() < 1e-12, "{limit} is not {expected}");
        }
    }

    #[test]
    fn tensors_are_held_to_their_types() {
        // Outliers, which the encoding of the source shows.
        assert!(with_outliers(0.025).in_band && !with_outliers(0.04).in_band);
        assert!(!with_outliers(f64::NAN).in_band);
        assert!(in_band(BlockType::Q80, 0.008) && !in_band(BlockType::Q80, 0.009));
        assert!(in_band(BlockType::F16, 2e-4) && !in_band(BlockType::F16, 1e-3));
        assert!(in_band(BlockType::F32, 1e-7) && !in_band(BlockType::F32, 1e-6));
    }

    fn with_outliers(error: f64) -> QuantizedTensor {
        QuantizedTensor::of_file("a".to_owned(), BlockType::Q80, error, 0.02)
    }

    fn in_band(ty: BlockType, error: f64) -> bool {
        QuantizedTensor::of_file("a".to_owned(), ty, error, 0.0).in_band
    }
}
