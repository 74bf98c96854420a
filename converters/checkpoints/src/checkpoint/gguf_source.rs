//! Tensors of a checkpoint that are read from a GGUF file: the spec's rules for files and for checkpoints, both
//! in reverse.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use registry::gguf::{Gguf, TensorGroup, TensorGroupError};
use registry::gguf_head::of_file;
use registry::graph::Weight;
use registry::model::Model;
use sha2::{Digest as _, Sha256};

use super::disk_layout::{DiskTensor, disk_tensors};
use super::{Checkpoint, Error, Stamp, TensorInfo, fingerprint};
use crate::flow::{Flow, PlainValues};
use crate::gguf_names::own_names;
use crate::gguf_weights::{self, WeightFault, lazy_flows};
use formats::codec::BlockType;
use formats::gguf::{GgufFile, evidence, scalars};
use formats::safetensors::FileDtype;
use formats::shown;

/// File with the weights of a model, and the tensors that a checkpoint of the model has.
#[derive(Debug)]
pub(super) struct GgufSource {
    file: GgufFile,
    gguf: Gguf,
    weights: Vec<Weight>,
    groups: Vec<TensorGroup>,
    /// Group of each weight, and its index there.
    members: BTreeMap<usize, (usize, usize)>,
    /// Weights that the file holds as keys, in f32.
    keys: BTreeMap<usize, Vec<u8>>,
    tensors: BTreeMap<String, DiskTensor>,
}

impl Checkpoint {
    /// Opens a GGUF file as the checkpoint of its model: tensors have the names and shapes of a checkpoint, and are
    /// decoded when they are read. Weights that no op uses are among them if the file has any.
    pub fn of_gguf(path: &Path, model: &Model) -> Result<Self, Error> {
        let file = GgufFile::open(path)?;
        let stamps = file.files().iter().map(|path| Stamp::of(path)).collect::<Result<_, _>>()?;
        let source = GgufSource::new(file, model)?;
        let mut checkpoint = Self::empty(path);
        checkpoint.paths = source.file.files().to_vec();
        checkpoint.stamps = stamps;
        for (name, tensor) in &source.tensors {
            let info = source.info(tensor)?;
            checkpoint.tensors.insert(name.clone(), info);
        }
        checkpoint.gguf = Some(source);
        Ok(checkpoint)
    }

    /// Returns the types of the quantized tensors of a GGUF file, each once; empty for a folder.
    pub fn block_types(&self) -> BTreeSet<&'static str> {
        let tensors = self.gguf.iter().flat_map(|source| source.file.tensors());
        tensors.map(|info| info.ty).filter(|ty| ty.is_quantized()).map(BlockType::name).collect()
    }

    /// True if the tensors are read from a GGUF file.
    pub fn is_gguf(&self) -> bool {
        self.gguf.is_some()
    }
}

impl GgufSource {
    fn new(file: GgufFile, model: &Model) -> Result<Self, Error> {
        let arch = file.metadata().str("general.architecture")?.unwrap_or_default();
        let header = evidence(&file, arch);
        let (gguf, mut weights) = of_file(model, &header)
            .unwrap_or_else(|| (own_names(model), model.graph.weights.clone()));
        weights.extend(idle_of_file(&file, &gguf, &weights));
        let groups = gguf.groups(&weights).map_err(|all: Vec<TensorGroupError>| {
            gguf_error(&file, &gguf, all.into_iter().map(WeightFault::from).collect())
        })?;
        let mut members = BTreeMap::new();
        for (number, group) in groups.iter().enumerate() {
            members.extend(group.weights.iter().enumerate().map(|(at, &n)| (n, (number, at))));
        }
        let mut keys = BTreeMap::new();
        for (key, places) in gguf.scalar_weights(&weights) {
            let lists = scalars::read(file.metadata(), key, &places, &weights)
                .map_err(|fault| gguf_error(&file, &gguf, vec![fault.into()]))?;
            for (&place, numbers) in places.iter().zip(lists) {
                keys.insert(place, numbers.iter().flat_map(|x| x.to_le_bytes()).collect());
            }
        }
        // Weights that the file leaves out have no values.
        let stored: Vec<usize> = (0..weights.len())
            .filter(|n| members.contains_key(n) || keys.contains_key(n))
            .collect();
        let tensors = disk_tensors(model, &weights, &stored)
            .map_err(|fault| gguf_error(&file, &gguf, vec![fault]))?;
        let source = Self { file, gguf, weights, groups, members, keys, tensors };
        let faults = source.faults();
        if faults.is_empty() {
            return Ok(source);
        }
        Err(gguf_error(&source.file, &source.gguf, faults))
    }

    /// Returns the groups of tensors that the file lacks or has in other shapes.
    fn faults(&self) -> Vec<WeightFault> {
        let claimed = self.claimed();
        self.groups
            .iter()
            .filter_map(|group| lazy_flows(&self.file, group, &self.weights, &claimed).err())
            .collect()
    }

    fn claimed(&self) -> BTreeSet<&str> {
        let tensors = self.groups.iter().flat_map(|group| &group.tensors);
        tensors.map(|(name, _)| name.as_str()).collect()
    }

    /// Returns the values of a weight.
    fn weight(&self, n: usize, claimed: &BTreeSet<&str>) -> Result<Flow<'_>, WeightFault> {
        if let Some(bytes) = self.keys.get(&n) {
            let values = PlainValues { dtype: FileDtype::F32, bytes };
            return Ok(Flow::new(&self.weights[n].shape, Arc::new(values)));
        }
        let &(group, at) = self.members.get(&n).ok_or_else(|| self.left_out(n))?;
        let flows = lazy_flows(&self.file, &self.groups[group], &self.weights, claimed)?;
        flows.into_iter().nth(at).ok_or_else(|| self.left_out(n))
    }

    /// Returns the fault of a weight that the file does not have.
    fn left_out(&self, n: usize) -> WeightFault {
        WeightFault::LeftOut { weight: shown(&self.weights[n].name) }
    }

    /// Returns a tensor of the checkpoint.
    pub(super) fn flow(&self, tensor: &str) -> Option<Result<Flow<'_>, Error>> {
        self.tensors.get(tensor).map(|tensor| self.made(tensor).map_err(|fault| self.fail(fault)))
    }

    fn made(&self, tensor: &DiskTensor) -> Result<Flow<'_>, WeightFault> {
        let claimed = self.claimed();
        let flows = tensor.weights.iter().map(|&n| self.weight(n, &claimed));
        tensor.made_of(flows.collect::<Result<_, _>>()?)
    }

    fn fail(&self, fault: WeightFault) -> Error {
        gguf_error(&self.file, &self.gguf, vec![fault])
    }

    /// Describes a tensor: its dtype is that of its tensors in the file, or f32 if they have blocks or several
    /// dtypes. Its place is the first of them.
    fn info(&self, tensor: &DiskTensor) -> Result<TensorInfo, Error> {
        let flow = self.made(tensor).map_err(|fault| self.fail(fault))?;
        let dtype = flow.dtype().filter(|dtype| dtype.is_float()).unwrap_or(FileDtype::F32);
        let groups = tensor.weights.iter().filter_map(|n| self.members.get(n));
        let names = groups.flat_map(|&(group, _)| &self.groups[group].tensors);
        let infos = names.filter_map(|(name, _)| self.file.info(name));
        let first = infos.map(|info| (info.file, info.offset, info.bytes)).min();
        let (file, begin, bytes) = first.unwrap_or_default();
        Ok(TensorInfo {
            dtype,
            shape: flow.shape().to_vec(),
            file,
            range: (begin, begin.saturating_add(bytes)),
        })
    }

    /// Hashes names, types, shapes and samples of bytes of the file's tensors.
    pub(super) fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for info in self.file.tensors() {
            hash.update(format!("{}\0{}\0{:?}\0", info.name, info.ty.name(), info.shape));
            let bytes = self.file.bytes(&info.name).unwrap_or_default();
            fingerprint::sample(bytes, |piece| hash.update(piece));
        }
        format!("{:x}", hash.finalize())
    }
}

/// Returns the weights without an op that the file has, with the shapes of their tensors there.
fn idle_of_file(file: &GgufFile, gguf: &Gguf, weights: &[Weight]) -> Vec<Weight> {
    let stored = gguf.idle(weights).into_iter().filter_map(|idle| {
        let mut weight = idle.weight;
        let groups = gguf.groups(std::slice::from_ref(&weight)).ok()?;
        let [(tensor, _)] = &groups.first()?.tensors[..] else { return None };
        weight.shape.clone_from(&file.info(tensor)?.shape);
        Some(weight)
    });
    stored.collect()
}

/// Returns the error for a file that does not hold a model.
fn gguf_error(file: &GgufFile, gguf: &Gguf, faults: Vec<WeightFault>) -> Error {
    Error::Gguf(Box::new(gguf_weights::Error::of(file, gguf, faults)))
}
