//! Implements `convert MODEL --verify FILE`, which checks a GGUF file against its checkpoint.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use checkpoints::Checkpoint;
use checkpoints::flow::Flow;
use conversion::Measure;
use conversion::gguf::Arithmetic;
use formats::codec::{self, BlockType, expected_error};
use formats::gguf::companions::multiply;
use formats::gguf::{FusedTensor, GgufFile, GgufTensor};
use models::local_model::LocalModel;
use registry::gguf::key_differences;
use registry::weight_map::WeightStep;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::GgufModel;
use crate::target::{self, ModelArgs, SpecArgs};
use crate::{CommandOutcome, term};

/// Values compared at a time.
const SLAB: usize = 1 << 20;

/// Checks a file against the rules of its loader.
pub(super) fn loader_rules(path: &Path) -> Result<()> {
    // A file of a set is checked alone: the others may be on other machines.
    let map = formats::mmap::FileMap::open(path)?;
    formats::gguf::GgufHeader::parse(path, &map)
        .with_context(|| format!("`{}` was written and cannot be read", path.display()))?;
    Ok(())
}

/// Checks that every block of a tensor can be used.
pub(super) fn sound(file: &GgufFile, info: &GgufTensor) -> Result<()> {
    let bytes =
        file.bytes(&info.name).with_context(|| format!("tensor `{}` has no bytes", info.name))?;
    codec::validate(info.ty, bytes).with_context(|| format!("tensor `{}`", info.name))
}

/// Tensor of a file, with its error against the source.
#[derive(Debug)]
pub(crate) struct TensorDeviation {
    pub(crate) name: String,
    pub(crate) ty: BlockType,
    pub(crate) measure: Measure,
    /// SHA-256 of its bytes.
    sha256: String,
}

impl TensorDeviation {
    /// Describes the fault if the values differ from the source's by more than rounding.
    fn fault(&self) -> Option<String> {
        /// Margin for values with outliers, on which types lose more.
        const MORE: f64 = 4.0;
        let most = match self.ty {
            BlockType::F32 => 1e-6,
            ty if !ty.is_quantized() => 1e-2,
            ty => expected_error(ty).map_or(0.9, |error| (MORE * error).min(0.9)),
        };
        let off = self.measure.relative();
        // NaN does not compare as less, so it counts as a fault.
        let within = off <= most;
        (!within).then(|| {
            let (name, ty) = (&self.name, self.ty.name());
            format!("tensor `{name}` is off by {off:.4} of its size; {ty} explains {most:.1e}")
        })
    }
}

/// Compares every tensor of a file with its source; also returns tensors without a counterpart.
fn compare_all(model: &GgufModel<'_>, file: &GgufFile) -> (Vec<TensorDeviation>, Vec<String>) {
    let (mut distances, mut faults) = (Vec::new(), Vec::new());
    let tensors = as_fused(&model.tensors, file, &mut faults);
    for tensor in &tensors {
        let name = &tensor.name;
        let Some(info) = file.info(name) else {
            faults.push(format!("tensor `{name}` is missing"));
            continue;
        };
        if info.elements() != tensor.flow.len() as u64 {
            let (found, expected) = (&info.shape, tensor.flow.shape());
            faults.push(format!("tensor `{name}` has shape {found:?}, expected {expected:?}"));
            continue;
        }
        match compare(file, info, tensor) {
            Ok((measure, sha256)) => {
                distances.push(TensorDeviation {
                    name: name.clone(),
                    ty: info.ty,
                    measure,
                    sha256,
                });
            }
            Err(why) => faults.push(format!("tensor `{name}`: {why}")),
        }
    }
    let known: BTreeSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let spare = file.tensors().iter().filter(|info| !known.contains(info.name.as_str()));
    let spare = spare.filter(|info| !file.is_companion(&info.name));
    faults.extend(spare.map(|info| format!("tensor `{}` is none of the model's", info.name)));
    (distances, faults)
}

/// Returns the tensors of a model, fused like those of the file.
fn as_fused<'c>(
    tensors: &[super::PlannedTensor<'c>],
    file: &GgufFile,
    faults: &mut Vec<String>,
) -> Vec<super::PlannedTensor<'c>> {
    let mut made = tensors.to_vec();
    for FusedTensor { whole, parts, axis } in file.fused() {
        if made.iter().any(|tensor| tensor.name == whole) {
            continue;
        }
        let places: Option<Vec<usize>> =
            parts.iter().map(|part| made.iter().position(|tensor| tensor.name == *part)).collect();
        let Some(places) = places else { continue };
        let flows = places.iter().map(|&n| made[n].flow.clone()).collect();
        match Flow::run(&[WeightStep::Concat(axis)], flows).map(|mut flows| flows.pop()) {
            Ok(Some(flow)) => {
                let tensor = super::PlannedTensor { name: whole, flow, ..made[places[0]].clone() };
                made.retain(|tensor| !parts.contains(&tensor.name));
                made.push(tensor);
            }
            Ok(None) => {}
            Err(why) => faults.push(format!("tensor `{whole}`: {why}")),
        }
    }
    made
}

/// Returns the model as the file has it: without its head if the file has none.
fn as_file<'c>(
    target: &LocalModel,
    checkpoint: &'c Checkpoint,
    arithmetic: Arithmetic,
    file: &GgufFile,
) -> Result<GgufModel<'c>> {
    let model = GgufModel::new(target, checkpoint, arithmetic)?;
    if model.gguf.ahead == 0 {
        return Ok(model);
    }
    let bare = GgufModel::with_or_without(target, checkpoint, arithmetic, false)?;
    let plain: BTreeSet<&str> = bare.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let mut head = model.tensors.iter().filter(|tensor| !plain.contains(tensor.name.as_str()));
    if head.any(|tensor| file.info(&tensor.name).is_some()) {
        return Ok(model);
    }
    term::note("note: the file leaves out the head that predicts further tokens");
    Ok(bare)
}

/// Lists the keys of a file that differ from those of its checkpoint.
fn keys(model: &GgufModel<'_>, file: &GgufFile) -> Result<Vec<String>> {
    let arch = file.metadata().str("general.architecture")?.unwrap_or_default();
    let other = (arch != model.gguf.arch)
        .then(|| format!("the architecture is `{arch}`, expected `{}`", model.gguf.arch));
    let keys = key_differences(&model.gguf, &formats::gguf::evidence(file, arch));
    Ok(other.into_iter().chain(keys).collect())
}

/// Measures the errors of a file's tensors against the checkpoint in a folder.
pub(crate) fn distances(
    folder: &Path,
    choice: &SpecArgs,
    path: &Path,
) -> Result<Vec<TensorDeviation>> {
    let target = target::open(&ModelArgs::at(folder.to_owned()), choice)?;
    let checkpoint = super::checkpoint(&target)?;
    let file = GgufFile::open(path)?;
    let model = as_file(&target, &checkpoint, Arithmetic::Wide, &file)?;
    let (distances, faults) = compare_all(&model, &file);
    if faults.is_empty() { Ok(distances) } else { Err(super::several(faults)) }
}

pub(super) fn run(
    which: &ModelArgs,
    choice: &SpecArgs,
    path: &Path,
    arithmetic: Arithmetic,
    json: bool,
) -> Result<CommandOutcome> {
    let is_folder = path.is_dir() || path.extension().is_some_and(|end| end == "safetensors");
    if is_folder {
        bail!(
            "`{}` is no GGUF file, and --verify compares such a file; what a folder costs is measured by \
             `parity check {0} --reference DUMP --source {}`",
            path.display(),
            which.model.display()
        );
    }
    let target = target::open(which, choice)?;
    let checkpoint = super::checkpoint(&target)?;
    let file = GgufFile::open(path)?;
    let model = as_file(&target, &checkpoint, arithmetic, &file)?;
    let (mut distances, mut faults) = compare_all(&model, &file);
    if distances.is_empty() && !faults.is_empty() {
        bail!("`{}` is no file of this model:\n{}", path.display(), faults.join("\n"));
    }
    faults.extend(distances.iter().filter_map(TensorDeviation::fault));
    faults.extend(keys(&model, &file)?);
    distances.sort_by(|a, b| b.measure.relative().total_cmp(&a.measure.relative()));
    if json {
        let report =
            json!({ "tensors": distances.iter().map(row).collect::<Vec<_>>(), "faults": faults });
        term::print(&serde_json::to_string_pretty(&report)?)?;
    } else {
        term::print(&distances.iter().map(line).collect::<Vec<_>>().join("\n"))?;
    }
    if faults.is_empty() {
        return Ok(CommandOutcome::Ok);
    }
    term::note(&faults.join("\n"));
    Ok(CommandOutcome::Differs)
}

fn line(TensorDeviation { name, ty, measure, sha256 }: &TensorDeviation) -> String {
    let (relative, cosine) = (measure.relative(), measure.cosine());
    let (ty, hash) = (ty.name(), &sha256[..16]);
    format!("{name:<40} {ty:<8} relative error {relative:.6}  cosine {cosine:.6}  sha256 {hash}")
}

fn row(TensorDeviation { name, ty, measure, sha256 }: &TensorDeviation) -> serde_json::Value {
    json!({
        "name": name,
        "type": ty.name(),
        "relative_error": measure.relative(),
        "cosine": measure.cosine(),
        "largest": measure.largest,
        "sha256": sha256,
    })
}

/// Returns the error of a tensor against its source, and the hash of its bytes.
fn compare(
    file: &GgufFile,
    info: &GgufTensor,
    tensor: &super::PlannedTensor<'_>,
) -> Result<(Measure, String), String> {
    let bytes = file.bytes(&info.name).ok_or("it has no bytes")?;
    let step = SLAB / info.ty.elements() * info.ty.elements();
    let (mut sum, count) = (Measure::default(), tensor.flow.len());
    let factors = file.factors(info).map_err(|why| why.to_string())?;
    let matrix: usize = info.shape.iter().rev().take(2).product();
    let (mut numbers, mut seen) = (Vec::new(), Vec::new());
    let mut hash = Sha256::new();
    for at in (0..count).step_by(step.max(1)) {
        let now = step.min(count - at);
        numbers.resize(now, 0.0);
        seen.resize(now, 0.0);
        tensor.flow.read(at, &mut numbers);
        let from = at / info.ty.elements() * info.ty.bytes();
        let len = now / info.ty.elements() * info.ty.bytes();
        let block = bytes.get(from..from + len).ok_or("it is too short")?;
        hash.update(block);
        codec::decode(info.ty, block, &mut seen).map_err(|e| e.to_string())?;
        if let Some(factors) = &factors {
            multiply(factors, matrix, at, &mut seen);
        }
        sum = sum.and(Measure::of(&numbers, &seen));
    }
    Ok((sum, format!("{:x}", hash.finalize())))
}
