//! Fingerprints of the files that a command reads.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use checkpoints::Checkpoint;
use registry::file;
use sha2::{Digest as _, Sha256};

use crate::error::{Error, StepContext as _};
use crate::words::PathArgument;

/// Size limit of inputs that are hashed whole.
const WHOLE: u64 = 64 << 20;
/// Windows of a longer input that are hashed, evenly spread.
const WINDOWS: u64 = 1024;
const WINDOW: u64 = 4096;
/// Endings of the files of a folder that belong to a model or to its specs. Weights are found by the checkpoint.
const ENDINGS: [&str; 8] = ["json", "model", "tiktoken", "txt", "jinja", "py", "yaml", "yml"];

/// Returns the fingerprint of each input by its path. An absent one has the fingerprint `absent`.
pub(crate) fn fingerprints(reads: &[PathArgument]) -> Result<BTreeMap<String, String>, Error> {
    let inputs = reads.iter().filter(|read| !read.is_program);
    let named = inputs.map(|read| {
        let digest = fingerprint(Path::new(&read.path));
        let digest = digest.with_context(|| format!("`{}` cannot be read", read.path))?;
        Ok((read.path.clone(), digest))
    });
    named.collect()
}

fn fingerprint(path: &Path) -> Result<String, Error> {
    let mut hash = Sha256::new();
    if !path.exists() {
        return Ok("absent".to_owned());
    } else if path.is_dir() {
        let names = fs_err::read_dir(path)?.map(|entry| Ok(entry?.path()));
        let mut names: Vec<_> = names.collect::<io::Result<_>>()?;
        names.sort();
        for file in &names {
            let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            if file.is_file() && ENDINGS.contains(&ending) {
                hash.update(file.file_name().unwrap_or_default().as_encoded_bytes());
                sample(file, &mut hash)?;
            }
        }
        match Checkpoint::open(path) {
            Ok(checkpoint) => hash.update(checkpoint.fingerprint()?),
            // A folder of specs, or one that lacks files: a dump of some layers needs only theirs.
            Err(_) => {
                names
                    .iter()
                    .filter(|file: &&PathBuf| {
                        file.extension().is_some_and(|end| end == "safetensors")
                    })
                    .try_for_each(|file| sample(file, &mut hash))?;
            }
        }
    } else {
        sample(path, &mut hash)?;
    }
    Ok(format!("{:x}", hash.finalize()))
}

/// Hashes the length of a file, and its bytes or windows of them.
fn sample(path: &Path, hash: &mut Sha256) -> io::Result<()> {
    let mut file = file::open(path)?;
    let length = file.metadata()?.len();
    hash.update(length.to_le_bytes());
    if length <= WHOLE {
        return io::copy(&mut file, hash).map(drop);
    }
    let mut window = vec![0; WINDOW as usize];
    for number in 0..WINDOWS {
        // Divided first: no length overflows.
        file.seek(SeekFrom::Start((length - WINDOW) / (WINDOWS - 1) * number))?;
        file.read_exact(&mut window)?;
        hash.update(&window);
    }
    file.seek(SeekFrom::Start(length - WINDOW))?;
    io::copy(&mut file, hash).map(drop)
}

/// Returns the length and the SHA-256 of a file.
pub(crate) fn digest(path: &Path) -> io::Result<(u64, String)> {
    let mut hash = Sha256::new();
    let length = io::copy(&mut file::open(path)?, &mut hash)?;
    Ok((length, format!("{:x}", hash.finalize())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_input_has_another_fingerprint() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let fingerprint_of = |path: &Path| fingerprint(path).unwrap();
        assert_eq!(fingerprint_of(&path), "absent");
        fs_err::write(&path, "{}").unwrap();
        let file = fingerprint_of(&path);
        let all = fingerprint_of(folder.path());
        // Files that belong to no model do not matter.
        fs_err::write(folder.path().join("out.gguf"), "x").unwrap();
        assert_eq!(
            (fingerprint_of(&path), fingerprint_of(folder.path())),
            (file.clone(), all.clone())
        );
        fs_err::write(&path, "[]").unwrap();
        assert!(fingerprint_of(&path) != file && fingerprint_of(folder.path()) != all);
        // Weights count also where they are no complete checkpoint.
        let before = fingerprint_of(folder.path());
        fs_err::write(folder.path().join("model-00002-of-00003.safetensors"), "x").unwrap();
        assert_ne!(fingerprint_of(folder.path()), before);
    }

    #[test]
    fn long_inputs_are_sampled_to_their_last_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long");
        let mut file = fs_err::File::create(&path).unwrap();
        file.set_len(WHOLE + 12_345).unwrap();
        let before = fingerprint(&path).unwrap();
        file.seek(SeekFrom::End(-1)).unwrap();
        io::Write::write_all(&mut file, b"x").unwrap();
        assert_ne!(fingerprint(&path).unwrap(), before);
    }
}
