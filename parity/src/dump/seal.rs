//! Checksums of a dump's files, the entry `sha256` of its manifest.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::{Error, hex};

/// SHA-256 of the files of a dump, in hexadecimal.
#[derive(Debug, Clone, Deserialize)]
pub struct FileChecksums {
    /// Hash of the tensors.
    #[serde(rename = "reference.safetensors")]
    pub tensors: String,
    /// Hash of the manifest's text with zeros in place of these digits.
    #[serde(rename = "manifest.json")]
    pub manifest: String,
}

/// Number of hexadecimal digits of a hash.
const DIGITS: usize = 64;

/// Adds checksums to the text of a manifest without any. `tensors_sha256` is the hash of the dump's tensors.
///
/// # Panics
/// If the text does not end with `}`.
pub fn sealed(manifest: &str, tensors_sha256: &str) -> String {
    let body = manifest.trim_end().strip_suffix('}').expect("a manifest is an object").trim_end();
    let blank = with_checksums(body, tensors_sha256, &"0".repeat(DIGITS));
    with_checksums(body, tensors_sha256, &hash(blank.as_bytes()))
}

/// Appends checksums to the text of a manifest without its last brace.
fn with_checksums(body: &str, tensors_sha256: &str, manifest_sha256: &str) -> String {
    format!(
        "{body},\n \"sha256\": {{\"reference.safetensors\": \"{tensors_sha256}\", \"manifest.json\": \"{manifest_sha256}\"}}\n}}\n"
    )
}

/// Returns the error for a file with another hash.
fn changed(path: PathBuf, sha256: String, expected: &str) -> Error {
    Error::Changed { path, sha256, expected: formats::shown(expected) }
}

impl FileChecksums {
    /// Returns an error for a manifest with another text, and for tensors with another hash.
    pub(super) fn verify(
        &self,
        dir: &Path,
        manifest: &[u8],
        tensors_sha256: &str,
    ) -> Result<(), Error> {
        let text = String::from_utf8_lossy(manifest);
        let manifest_sha256 = if self.manifest.len() == DIGITS {
            hash(text.replacen(&self.manifest, &"0".repeat(DIGITS), 1).as_bytes())
        } else {
            format!("{} digits", self.manifest.len())
        };
        if manifest_sha256 != self.manifest {
            let path = dir.join("manifest.json");
            return Err(changed(path, manifest_sha256, &self.manifest));
        }
        if tensors_sha256 != self.tensors {
            let path = dir.join("reference.safetensors");
            return Err(changed(path, tensors_sha256.to_owned(), &self.tensors));
        }
        Ok(())
    }
}

fn hash(bytes: &[u8]) -> String {
    hex(Sha256::new_with_prefix(bytes))
}
