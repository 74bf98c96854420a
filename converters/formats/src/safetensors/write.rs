//! Writes a safetensors file as a stream.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::header::byte_len;
use super::{Error, FileDtype};
use crate::output::{DirectDisk, DraftFile};
use crate::shown;

/// A tensor that will be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name of the tensor.
    pub name: String,
    /// Dtype of the tensor.
    pub dtype: FileDtype,
    /// Row-major shape.
    pub shape: Vec<usize>,
}

/// Names and lengths in bytes, in file order.
pub type WritePlan = Vec<(String, u64)>;

/// Writes the declared tensors in order, in pieces of any size, with constant memory.
///
/// The bytes go to `<name>.part`; [`Writer::finish`] syncs them to the disk and renames the file, so that
/// an interrupted run never leaves a seemingly finished file. A writer that is dropped before removes its
/// part. The same declarations give the same header bytes.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    draft: DraftFile,
    plan: WritePlan,
    next: usize,
    /// Number of bytes that the tensor at `next` still lacks.
    left: u64,
}

impl Writer {
    /// Checks the declarations and writes the header.
    pub fn create(
        path: &Path,
        metadata: &BTreeMap<String, String>,
        tensors: &[TensorSpec],
    ) -> Result<Self, Error> {
        let (header, plan) = header(path, metadata, tensors)?;
        let draft = DraftFile::create(path)?;
        let mut writer = Self { path: path.into(), draft, plan, next: 0, left: 0 };
        writer.left = writer.plan.first().map_or(0, |tensor| tensor.1);
        writer.skip_complete();
        writer.draft.write_all(&(header.len() as u64).to_le_bytes())?;
        writer.draft.write_all(&header)?;
        Ok(writer)
    }

    /// Appends a piece of the next tensor. Empty tensors take no bytes and may be left out.
    pub fn write(&mut self, name: &str, piece: &[u8]) -> Result<(), Error> {
        if piece.is_empty() {
            return Ok(());
        }
        let (current, length) = match self.plan.get(self.next) {
            Some((current, length)) => (current.as_str(), *length),
            None => ("", 0),
        };
        if self.next == self.plan.len() || current != name {
            let last = self.next.checked_sub(1).and_then(|last| self.plan.get(last));
            return Err(match last {
                Some((last, length)) if last == name => Error::TooManyBytes {
                    file: self.path.clone(),
                    tensor: shown(name),
                    extra: piece.len() as u64,
                    expected: *length,
                },
                _ => Error::OutOfOrder {
                    file: self.path.clone(),
                    found: shown(name),
                    expected: match self.plan.get(self.next) {
                        Some((current, _)) => format!("`{}`", shown(current)),
                        None => "no more tensors".into(),
                    },
                },
            });
        }
        if piece.len() as u64 > self.left {
            return Err(Error::TooManyBytes {
                file: self.path.clone(),
                tensor: shown(name),
                extra: piece.len() as u64 - self.left,
                expected: length,
            });
        }
        self.draft.write_all(piece)?;
        self.left -= piece.len() as u64;
        self.skip_complete();
        Ok(())
    }

    /// Makes the file durable and renames it to its final name.
    pub fn finish(self) -> Result<(), Error> {
        if let Some((tensor, _)) = self.plan.get(self.next) {
            let file = self.path.clone();
            let tensor = shown(tensor);
            return Err(Error::Unfinished { file, tensor, missing: self.left });
        }
        Ok(self.draft.publish(&DirectDisk)?)
    }

    fn skip_complete(&mut self) {
        while self.left == 0 && self.next < self.plan.len() {
            self.next += 1;
            self.left = self.plan.get(self.next).map_or(0, |tensor| tensor.1);
        }
    }
}

/// Returns the header's text, padded so that the data begins at a multiple of eight, and the lengths.
pub fn header(
    path: &Path,
    metadata: &BTreeMap<String, String>,
    tensors: &[TensorSpec],
) -> Result<(Vec<u8>, WritePlan), Error> {
    let mut seen = BTreeSet::new();
    let mut parts = Vec::new();
    if !metadata.is_empty() {
        let texts: Vec<String> = metadata
            .iter()
            .map(|(key, text)| format!("{}:{}", quoted(key), quoted(text)))
            .collect();
        parts.push(format!("\"__metadata__\":{{{}}}", texts.join(",")));
        seen.insert("__metadata__");
    }
    let mut plan = WritePlan::new();
    let mut at = 0_u64;
    for tensor in tensors {
        if tensor.name == "__metadata__" || !seen.insert(&tensor.name) {
            return Err(Error::DeclaredTwice { file: path.into(), tensor: shown(&tensor.name) });
        }
        let bytes = byte_len(&tensor.shape, tensor.dtype).ok_or_else(|| overflow(path, tensor))?;
        let end = at.checked_add(bytes).ok_or_else(|| overflow(path, tensor))?;
        let shape: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
        parts.push(format!(
            "{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{at},{end}]}}",
            quoted(&tensor.name),
            tensor.dtype,
            shape.join(",")
        ));
        plan.push((tensor.name.clone(), bytes));
        at = end;
    }
    let mut text = format!("{{{}}}", parts.join(",")).into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    if text.len() as u64 > super::MAX_HEADER {
        return Err(Error::HeaderTooLong { file: path.into(), found: text.len() as u64 });
    }
    Ok((text, plan))
}

/// Returns the error for a tensor whose bytes cannot be counted.
fn overflow(path: &Path, tensor: &TensorSpec) -> Error {
    Error::ShapeOverflow {
        file: path.into(),
        tensor: shown(&tensor.name),
        shape: tensor.shape.iter().map(|&dim| dim as u64).collect(),
        dtype: tensor.dtype,
    }
}

/// Returns a text as a JSON string, with its quotes.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
