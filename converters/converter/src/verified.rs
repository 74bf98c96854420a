//! Files compared with the hashes that were written with them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use conversion::hashes::{self, FOLDER, HashedFile};
use formats::codec;
use formats::gguf::{GgufFile, GgufTensor};
use formats::output::folder_of;
use registry::listing;

use crate::error::{Context as _, Error, Result};

/// Files compared with their hashes.
#[derive(Debug, Default)]
pub struct VerifiedFiles {
    /// Number of files.
    pub files: usize,
    /// Number of ranges with a hash of their own.
    pub ranges: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Differences from the hashes.
    pub faults: Vec<String>,
}

/// Returns the path of the hashes of a file or folder.
pub fn hashes_path(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(FOLDER) } else { hashes::path_for(path) }
}

/// Compares a file, the files of a set, or a folder with the hashes beside them; none if there are none.
pub fn compare_hashes(path: &Path) -> Result<Option<VerifiedFiles>> {
    if path.is_dir() {
        return folder(path);
    }
    // A file that cannot be read is compared alone.
    let is_gguf = path.extension().is_some_and(|end| end == "gguf");
    let set = is_gguf.then(|| GgufFile::open(path).ok()).flatten();
    let paths = set.map_or_else(|| vec![path.to_owned()], |set| set.files().to_vec());
    let mut verified = VerifiedFiles::default();
    let mut lacking = Vec::new();
    for path in &paths {
        match hashes_of(path)? {
            Some(file) => verified.add(&file, folder_of(path))?,
            None => lacking.push(path),
        }
    }
    if lacking.len() == paths.len() {
        return Ok(None);
    }
    verified
        .faults
        .extend(lacking.iter().map(|path| format!("`{}` has no hashes", path.display())));
    Ok(Some(verified))
}

/// Returns the hashes of a single file, from the file beside it or from that of its folder.
fn hashes_of(path: &Path) -> Result<Option<HashedFile>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = hashes::path_for(path);
    if beside.exists() {
        let mut files = hashes::read(&beside)?;
        // A process that wrote a shard of a folder hashed the small files with it.
        if let Some(at) = files.iter().position(|file| file.name == name) {
            return Ok(Some(files.swap_remove(at)));
        }
        // Hashes that were renamed with their file have its old name.
        if let [file] = &mut files[..] {
            file.name = name.into_owned();
            return Ok(files.pop());
        }
    }
    let of_folder = folder_of(path).join(FOLDER);
    if !of_folder.exists() {
        return Ok(None);
    }
    Ok(hashes::read(&of_folder)?.into_iter().find(|file| file.name == name))
}

/// Compares every file that the hashes in a folder name.
fn folder(path: &Path) -> Result<Option<VerifiedFiles>> {
    let mut names = Vec::new();
    for entry in fs_err::read_dir(path)? {
        names.push(entry?.file_name());
    }
    names.sort();
    let mut verified = VerifiedFiles::default();
    let mut known = BTreeSet::new();
    for name in names.iter().filter(|name| hashes::is_hashes(name)) {
        for file in hashes::read(&path.join(name))? {
            // Processes that wrote one set hashed the same small files.
            if known.insert((file.name.clone(), hashes::text(std::slice::from_ref(&file)))) {
                verified.add(&file, path)?;
            }
        }
    }
    if known.is_empty() {
        return Ok(None);
    }
    let names: Vec<String> = names.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    for name in names.iter().filter(|name| is_tensor_file(name)) {
        if !known.iter().any(|(known, _)| known == name) {
            verified.faults.push(format!("`{}` has no hashes", path.join(name).display()));
        }
    }
    Ok(Some(verified))
}

impl VerifiedFiles {
    fn add(&mut self, file: &HashedFile, folder: &Path) -> Result<()> {
        self.files += 1;
        self.ranges += file.ranges.len();
        self.bytes += file.len;
        self.faults.extend(file.check(folder)?.iter().map(ToString::to_string));
        Ok(())
    }
}

/// Checks that every block of a tensor can be used.
pub(crate) fn sound(file: &GgufFile, info: &GgufTensor) -> Result<()> {
    let bytes =
        file.bytes(&info.name).with_context(|| format!("tensor `{}` has no bytes", info.name))?;
    codec::validate(info.ty, bytes).with_context(|| format!("tensor `{}`", info.name))
}

/// Returns the reason why readers would refuse a file that is as it was written.
pub fn read_fault(path: &Path) -> Option<String> {
    let opened = if path.is_dir() {
        let has_weights = path.join(checkpoints::checkpoint::INDEX).exists()
            || path.join(checkpoints::checkpoint::SINGLE).exists();
        if !has_weights {
            return None;
        }
        checkpoints::Checkpoint::open(path).map(drop).map_err(Error::from)
    } else if path.extension().is_some_and(|end| end == "gguf") {
        GgufFile::open(path)
            .map_err(Error::from)
            .and_then(|file| file.tensors().iter().try_for_each(|info| sound(&file, info)))
    } else {
        Ok(())
    };
    opened.err().map(|why| listing::error_chain(&why))
}

/// True for the name of a file of tensors.
fn is_tensor_file(name: &str) -> bool {
    let extension = Path::new(name).extension();
    extension.is_some_and(|extension| extension == "safetensors" || extension == "gguf")
}
