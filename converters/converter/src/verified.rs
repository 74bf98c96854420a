//! Files compared with the hashes that were written with them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use conversion::hashes::{self, FOLDER, HashedFile};
use formats::codec;
use formats::gguf::split::{SetName, incomplete_sets};
use formats::gguf::{GgufFile, GgufTensor};
use formats::output::folder_of;
use registry::listing;

use crate::error::{Context as _, Result};
use crate::folder_plan::CONFIG;
use crate::loaded_files::{entries, loaded_files};

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
    let of_folder = folder_of(path).join(FOLDER);
    for hashes in [beside, of_folder].iter().filter(|hashes| hashes.exists()) {
        let mut files = read_hashes(hashes)?.into_iter();
        if let Some(file) = files.find(|file| file.name == name) {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// Reads a file of hashes. Those of one file that were renamed with it have its old name, and get the new one.
fn read_hashes(path: &Path) -> Result<Vec<HashedFile>> {
    let mut files = hashes::read(path)?;
    let renamed = path.file_name().and_then(|name| name.to_str()?.strip_suffix(hashes::END));
    if let ([file], Some(name)) = (&mut files[..], renamed)
        && path.with_file_name(name).exists()
    {
        file.name = name.to_owned();
    }
    Ok(files)
}

/// Compares every file that the hashes in a folder name.
fn folder(path: &Path) -> Result<Option<VerifiedFiles>> {
    let names = entries(path)?.into_iter();
    let names: Vec<String> =
        names.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect();
    let mut verified = VerifiedFiles::default();
    let mut hashed = BTreeSet::new();
    for name in names.iter().filter(|name| hashes::is_hashes(name.as_ref())) {
        for file in read_hashes(&path.join(name))? {
            // Processes that wrote one set hashed the same small files.
            if hashed.insert((file.name.clone(), hashes::text(std::slice::from_ref(&file)))) {
                verified.add(&file, path)?;
            }
        }
    }
    if hashed.is_empty() {
        return Ok(None);
    }
    let hashed: BTreeSet<String> = hashed.into_iter().map(|(name, _)| name).collect();
    let faults = incomplete_sets(names.iter().chain(&hashed).map(String::as_str));
    verified.faults.extend(faults);
    let mut unknown: BTreeSet<PathBuf> =
        names.iter().filter(|name| is_tensor_file(name)).map(|name| path.join(name)).collect();
    // Files beside a GGUF file may be those of its source.
    if hashed.contains(CONFIG) {
        unknown.extend(loaded_files(path)?);
    }
    unknown.retain(|file| {
        let name = file.strip_prefix(path).unwrap_or(file).to_string_lossy();
        !hashed.contains(&*name)
    });
    verified
        .faults
        .extend(unknown.iter().map(|file| format!("`{}` has no hashes", file.display())));
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

/// Returns the reason why readers would refuse a file, or files of a folder, that are as they were written.
pub fn read_fault(path: &Path) -> Option<String> {
    opened(path).err().map(|why| listing::error_chain(&why))
}

/// Opens a file, or the files of a folder, as readers would.
fn opened(path: &Path) -> Result<()> {
    if !path.is_dir() {
        return if is_first_gguf(path) { gguf_opened(path) } else { Ok(()) };
    }
    let weights = [checkpoints::checkpoint::INDEX, checkpoints::checkpoint::SINGLE];
    if weights.iter().any(|name| path.join(name).exists()) {
        checkpoints::Checkpoint::open(path)?;
    }
    entries(path)?.iter().filter(|path| is_first_gguf(path)).try_for_each(|path| gguf_opened(path))
}

/// True for the name of a GGUF file, or of the first of a set.
fn is_first_gguf(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".gguf") && SetName::parse(&name).is_none_or(|name| name.no == 1)
}

/// Opens a GGUF file, and checks every block.
fn gguf_opened(path: &Path) -> Result<()> {
    let file = GgufFile::open(path)?;
    file.tensors().iter().try_for_each(|info| sound(&file, info))
}

/// True for the name of a file of tensors.
fn is_tensor_file(name: &str) -> bool {
    let extension = Path::new(name).extension();
    extension.is_some_and(|extension| extension == "safetensors" || extension == "gguf")
}
