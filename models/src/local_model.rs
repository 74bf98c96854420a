//! Opened model: its files, its spec, and checks of its weights.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoints::Checkpoint;
use formats::gguf::GgufFile;
use registry::diag::Finding;
use registry::dtype::Dtype;
use registry::model::Model;
use sha2::{Digest as _, Sha256};

use crate::config::ConfigFile;
use crate::error::{Error, FindingSubject};
use crate::folder::{is_gguf, parent};
use crate::specs::SpecId;
use registry::quantity::plural;

/// Checkpoint with the model that a spec makes of it.
#[derive(Debug)]
pub struct LocalModel {
    /// Path of the folder, or of the GGUF file.
    pub dir: PathBuf,
    /// Name of the model: the last part of the folder or id.
    pub name: String,
    /// Resolved model.
    pub model: Arc<Model>,
    /// Config of the model.
    pub config: ConfigFile,
    /// Name, file and hash of the spec.
    pub spec: SpecId,
}

impl LocalModel {
    /// True if the target is a GGUF file.
    pub fn is_gguf(&self) -> bool {
        is_gguf(&self.dir)
    }

    /// Returns the folder of tokenizer and reference.
    pub fn home(&self) -> &Path {
        if !self.is_gguf() {
            return &self.dir;
        }
        parent(&self.dir)
    }

    /// Returns every input file, and the files that belong to inputs.
    pub fn inputs(&self) -> Result<Vec<PathBuf>, Error> {
        let mut inputs = vec![PathBuf::from(&self.spec.path)];
        if self.is_gguf() {
            inputs.extend(GgufFile::open(&self.dir)?.files().iter().cloned());
            return Ok(inputs);
        }
        for entry in fs_err::read_dir(&self.dir)? {
            let entry = entry?;
            // Converted files may be in the same folder, and may be overwritten.
            if !entry.file_name().to_string_lossy().contains(".gguf") {
                inputs.push(entry.path());
            }
        }
        Ok(inputs)
    }

    /// Opens the weights on disk.
    pub fn checkpoint(&self) -> Result<Checkpoint, Error> {
        if self.is_gguf() {
            return Checkpoint::of_gguf(&self.dir, &self.model).map_err(Error::Weights);
        }
        Checkpoint::open_part(&self.dir, self.model.layers.as_ref()).map_err(Error::Weights)
    }

    /// Returns the number of bytes and of values of all tensors.
    pub fn extent(&self) -> Result<(u64, u64), Error> {
        if self.is_gguf() {
            let file = GgufFile::open(&self.dir)?;
            let sums = file.tensors().iter().map(|info| (info.bytes, info.elements()));
            return Ok(sums.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1)));
        }
        let checkpoint = self.checkpoint()?;
        let values = checkpoint.tensors().values().map(|tensor| tensor.elements() as u64).sum();
        Ok((checkpoint.total_bytes(), values))
    }

    /// Returns the SHA-256 that identifies the weights: `weights_sha256` of dumps, or the hash of all bytes of
    /// a GGUF file.
    pub fn fingerprint(&self) -> Result<String, Error> {
        if !self.is_gguf() {
            return Ok(self.checkpoint()?.fingerprint()?);
        }
        let mut hash = Sha256::new();
        for path in GgufFile::open(&self.dir)?.files() {
            std::io::copy(&mut registry::file::open(path)?, &mut hash)?;
        }
        Ok(format!("{:x}", hash.finalize()))
    }

    /// Lists weights with values that are not finite, each with its place.
    pub fn nonfinite(&self) -> Result<Vec<Finding>, Error> {
        if self.is_gguf() {
            // Blocks are checked when they are decoded.
            return Ok(Vec::new());
        }
        let checkpoint = self.checkpoint()?;
        let mut findings = Vec::new();
        for weight in &self.model.graph.weights {
            if checkpoint.info(&weight.name).is_none() {
                continue;
            }
            if let Some(bad) = checkpoint.scan_nonfinite(&weight.name)? {
                let message = format!(
                    "tensor `{}` has NaN or infinity at {}, the first of them element {}",
                    weight.name,
                    plural(bad.count, "place"),
                    bad.first
                );
                findings.push(
                    Finding::unplaced(message)
                        .help("the file is damaged, or the model was saved after it diverged")
                        .warning(),
                );
            }
        }
        Ok(findings)
    }

    /// Returns an error if the dtype of a state differs from the dtype that ops write to it. All of `runs`
    /// are checked.
    pub fn check_dtypes(&self, runs: &[Dtype]) -> Result<(), Error> {
        let findings: Vec<Finding> =
            runs.iter().flat_map(|&dtype| self.model.check_dtypes(dtype)).collect();
        if findings.is_empty() {
            return Ok(());
        }
        Err(FindingSubject::Dtypes.of(findings))
    }

    /// Returns the dtype in which the checkpoint is meant to run.
    pub fn dtype(&self) -> Dtype {
        self.config.dtype().unwrap_or(Dtype::Bf16)
    }
}
