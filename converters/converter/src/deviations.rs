//! Checks a GGUF file against its checkpoint: its hashes, its keys, and the bytes of its blocks.

use std::collections::BTreeSet;
use std::path::Path;

use checkpoints::Checkpoint;
use checkpoints::flow::Flow;
use conversion::Measure;
use conversion::blocks::{self, BlockComparison};
use conversion::gguf::{Arithmetic, PlannedTensor};
use formats::codec::BlockType;
use formats::gguf::{FusedTensor, GgufFile};
use formats::imatrix::Imatrix;
use models::local_model::LocalModel;
use registry::weight_map::WeightStep;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::error::{Context as _, Result, bail, ensure, several};
use crate::gguf_model::{GgufModel, checkpoint};
use crate::observer::ConversionObserver;
use crate::options::NO_CONFIG;
use crate::run::ConversionRun;
use crate::verified::compare_hashes;
use crate::written_keys::FileKeys;

/// Checks a file against the rules of its loader.
pub(crate) fn loader_rules(path: &Path) -> Result<()> {
    // A file of a set is checked alone: the others may be on other machines.
    let map = formats::mmap::FileMap::open(path)?;
    formats::gguf::GgufHeader::parse(path, &map)
        .with_context(|| format!("`{}` was written and cannot be read", path.display()))?;
    Ok(())
}

/// Tensor of a file, with its error against the source.
#[derive(Debug)]
pub struct TensorDeviation {
    /// Name of the tensor.
    pub name: String,
    /// Type in the file.
    pub ty: BlockType,
    /// Error against the source.
    pub measure: Measure,
    /// SHA-256 of its bytes.
    sha256: String,
    /// Blocks compared with the encoding of the source.
    compared: BlockComparison,
    /// Number of values in a row.
    row: usize,
}

impl TensorDeviation {
    /// Returns the relative error of the source's own encoding; 0 if there is none.
    pub fn encoding_error(&self) -> f64 {
        self.compared.encoded.relative()
    }

    /// Describes the fault if blocks have other bytes than they must have, or larger errors than their type explains.
    fn fault(&self, determined: DeterminedBlocks) -> Option<String> {
        let is_determined = self.compared.is_encoded
            && match determined {
                DeterminedBlocks::All => true,
                DeterminedBlocks::Quantized => self.ty.is_quantized(),
                DeterminedBlocks::None => false,
            };
        let (count, first) =
            if is_determined { self.compared.unequal() } else { self.compared.strayed };
        if count == 0 {
            return None;
        }
        let name = &self.name;
        let off = self.measure.relative();
        let blocks = self.compared.blocks;
        let ty = self.ty.name();
        let rule = if is_determined {
            format!("have other bytes than the source gives in {ty}")
        } else {
            format!("are farther from the source than {ty} explains")
        };
        let first = first.unwrap_or_default();
        let row = first / self.row;
        let value = first % self.row;
        Some(format!(
            "tensor `{name}` is off by {off:.4} of its size: {count} of {blocks} blocks {rule}, the first in row {row} \
             at value {value}"
        ))
    }
}

/// Blocks whose bytes the source determines. Other programs compute values of f32 in another order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeterminedBlocks {
    All,
    Quantized,
    None,
}

/// True if the quantized blocks of a file are those that the source gives, except damaged ones. Blocks that were weighted by
/// an importance matrix, or encoded by another search, are rarely equal to them.
fn is_determined(tensors: &[TensorDeviation]) -> bool {
    /// Least share of equal blocks.
    const SHARE: f64 = 15.0 / 16.0;
    let quantized = tensors.iter().filter(|one| one.ty.is_quantized() && one.compared.is_encoded);
    let counts = quantized.map(|one| (one.compared.unequal().0, one.compared.blocks));
    let (unequal, blocks) = counts.fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1));
    unequal as f64 <= (1.0 - SHARE) * blocks as f64
}

/// Compares every tensor of a file with its source; also returns tensors without a counterpart.
fn compare_all(
    model: &GgufModel<'_>,
    file: &GgufFile,
    imatrix: Option<&Imatrix>,
) -> (Vec<TensorDeviation>, Vec<String>) {
    let mut distances = Vec::new();
    let mut faults = Vec::new();
    let tensors = as_fused(&model.tensors, file, &mut faults);
    for tensor in &tensors {
        let name = &tensor.name;
        let Some(info) = file.info(name) else {
            faults.push(format!("tensor `{name}` is missing"));
            continue;
        };
        let shape = &info.shape;
        let expected = tensor.flow.shape();
        if trimmed(shape) != trimmed(expected) {
            faults.push(format!("tensor `{name}` has shape {shape:?}, expected {expected:?}"));
            continue;
        }
        match blocks::compare(file, info, tensor, imatrix) {
            Ok(compared) => distances.push(TensorDeviation {
                name: name.clone(),
                ty: info.ty,
                measure: compared.measure,
                sha256: format!("{:x}", Sha256::digest(file.bytes(name).unwrap_or_default())),
                compared,
                row: info.shape.last().copied().unwrap_or(1).max(1),
            }),
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
    tensors: &[PlannedTensor<'c>],
    file: &GgufFile,
    faults: &mut Vec<String>,
) -> Vec<PlannedTensor<'c>> {
    let mut fused = tensors.to_vec();
    for FusedTensor { whole: name, parts, axis } in file.fused() {
        if fused.iter().any(|tensor| tensor.name == name) {
            continue;
        }
        let places: Option<Vec<usize>> =
            parts.iter().map(|part| fused.iter().position(|tensor| tensor.name == *part)).collect();
        let Some(places) = places else { continue };
        let flows = places.iter().map(|&n| fused[n].flow.clone()).collect();
        match Flow::run(&[WeightStep::Concat(axis)], flows).map(|mut flows| flows.pop()) {
            Ok(Some(flow)) => {
                let tensor = PlannedTensor { name, flow, ..fused[places[0]].clone() };
                fused.retain(|tensor| !parts.contains(&tensor.name));
                fused.push(tensor);
            }
            Ok(None) => {}
            Err(why) => faults.push(format!("tensor `{name}`: {why}")),
        }
    }
    fused
}

/// Returns the model as the file has it: without its head if the file has none.
fn as_file<'c>(
    observer: &dyn ConversionObserver,
    target: &LocalModel,
    checkpoint: &'c Checkpoint,
    arithmetic: Arithmetic,
    file: &GgufFile,
) -> Result<GgufModel<'c>> {
    let model = GgufModel::new(observer, target, checkpoint, arithmetic)?;
    if model.gguf.ahead == 0 {
        return Ok(model);
    }
    let bare = GgufModel::with_or_without(observer, target, checkpoint, arithmetic, false)?;
    let plain: BTreeSet<&str> = bare.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let mut head = model.tensors.iter().filter(|tensor| !plain.contains(tensor.name.as_str()));
    if head.any(|tensor| file.info(&tensor.name).is_some()) {
        return Ok(model);
    }
    observer.note("note: the file leaves out the head that predicts further tokens");
    Ok(bare)
}

/// Measures the errors of a file's tensors against the checkpoint that it was made of.
pub fn deviations(
    target: &LocalModel,
    path: &Path,
    observer: &dyn ConversionObserver,
) -> Result<Vec<TensorDeviation>> {
    let checkpoint = checkpoint(target)?;
    let file = GgufFile::open(path)?;
    let model = as_file(observer, target, &checkpoint, Arithmetic::Wide, &file)?;
    let (distances, faults) = compare_all(&model, &file, None);
    if faults.is_empty() { Ok(distances) } else { Err(several(faults)) }
}

/// Compares a file with its checkpoint, and returns the faults of the file.
pub(crate) fn verify_file(
    run: ConversionRun<'_>,
    target: &LocalModel,
    path: &Path,
) -> Result<Vec<String>> {
    let ConversionRun { options, observer } = run;
    let arithmetic = options.types.arithmetic();
    let imatrix = options.types.read_imatrix()?;
    let imatrix = imatrix.as_ref();
    if path.extension().is_some_and(|end| end == "safetensors") {
        bail!("`{}` is a part of a folder; name its folder", path.display());
    }
    ensure!(!options.compat, "{NO_CONFIG}");
    let hashed = compare_hashes(path)?;
    let checkpoint = checkpoint(target)?;
    let file = GgufFile::open(path)?;
    let model = as_file(observer, target, &checkpoint, arithmetic, &file)?;
    let (mut distances, mut faults) = compare_all(&model, &file, imatrix);
    if distances.is_empty() && !faults.is_empty() {
        bail!("`{}` is no file of this model:\n{}", path.display(), faults.join("\n"));
    }
    let keys = FileKeys { run, model: &model, file: &file };
    let determined = if keys.determine_blocks() {
        DeterminedBlocks::All
    } else if is_determined(&distances) {
        DeterminedBlocks::Quantized
    } else {
        DeterminedBlocks::None
    };
    faults.extend(distances.iter().filter_map(|one| one.fault(determined)));
    if let Some(verified) = hashed {
        faults.extend(keys.other_values()?);
        faults.extend(verified.faults);
    } else {
        observer.note("note: no hashes lie beside the file");
        faults.extend(keys.faults(imatrix)?);
        faults.extend(file.stray_bytes());
    }
    if determined == DeterminedBlocks::None {
        observer.note(
            "note: an importance matrix or another program made these blocks; each is compared with the error that its type \
             explains, and with its bytes if the option `imatrix` gives the same matrix",
        );
    }
    distances.sort_by(|a, b| b.measure.relative().total_cmp(&a.measure.relative()));
    if options.json {
        let report =
            json!({ "tensors": distances.iter().map(row).collect::<Vec<_>>(), "faults": faults });
        observer.print(&serde_json::to_string_pretty(&report)?)?;
    } else {
        observer.print(&distances.iter().map(line).collect::<Vec<_>>().join("\n"))?;
    }
    Ok(faults)
}

/// Returns a shape without outer dimensions of one, which programs leave out or add.
fn trimmed(shape: &[usize]) -> &[usize] {
    let ones = shape.iter().take_while(|&&dim| dim == 1).count();
    &shape[ones..]
}

fn line(TensorDeviation { name, ty, measure, sha256, .. }: &TensorDeviation) -> String {
    let relative = measure.relative();
    let cosine = measure.cosine();
    let ty = ty.name();
    let hash = &sha256[..16];
    format!("{name:<40} {ty:<8} relative error {relative:.6}  cosine {cosine:.6}  sha256 {hash}")
}

fn row(TensorDeviation { name, ty, measure, sha256, .. }: &TensorDeviation) -> serde_json::Value {
    json!({
        "name": name,
        "type": ty.name(),
        "relative_error": measure.relative(),
        "cosine": measure.cosine(),
        "largest": measure.largest,
        "sha256": sha256,
    })
}
