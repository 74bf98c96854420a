//! Implements `onboard verify`, which compares files with the hashes that were written with them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use conversion::hashes::{self, FOLDER, HashedFile};
use formats::codec;
use formats::gguf::{GgufFile, GgufTensor};
use formats::output::folder_of;
use serde_json::json;

use crate::text::{self, bytes as size};
use crate::{CommandOutcome, term};

/// Compares a converted file or folder with the hashes written with it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  onboard verify model.gguf                 with model.gguf.hashes beside it
  onboard verify model-00001-of-00008.gguf  all files of a set
  onboard verify DIR                        every file that the conversion wrote, with DIR/onboard.hashes

The source is not needed. Hashes (XXH3) find accidents of disks, copies and downloads, and no forgery.
`convert MODEL --verify FILE` compares with the source too.")]
pub(crate) struct VerifyArgs {
    /// The file, the first file of a set, or the folder
    #[arg(value_name = "FILE|DIR")]
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Files compared with their hashes.
#[derive(Debug, Default)]
pub(crate) struct VerifiedFiles {
    pub(crate) files: usize,
    pub(crate) ranges: usize,
    pub(crate) bytes: u64,
    pub(crate) faults: Vec<String>,
}

impl VerifyArgs {
    pub(crate) fn run(&self) -> Result<CommandOutcome> {
        let path = &self.path;
        let Some(mut verified) = hashed(path)? else {
            bail!(
                "`{}` has no hashes: expected `{}` beside it, which `convert` writes; compare it with its source by \
                 `convert MODEL --verify {0}`",
                path.display(),
                expected(path).display()
            );
        };
        if verified.faults.is_empty() {
            verified.faults.extend(unsound(path));
        }
        let VerifiedFiles { files, ranges, bytes, faults } = &verified;
        if self.json {
            let report =
                json!({ "files": files, "ranges": ranges, "bytes": bytes, "faults": faults });
            term::print(&serde_json::to_string_pretty(&report)?)?;
        }
        if !faults.is_empty() {
            term::note(&listed(faults));
            return Ok(CommandOutcome::Differs);
        }
        if !self.json {
            let files = text::plural(*files, "file");
            let ranges = text::plural(*ranges, "range");
            term::print(&format!("as written: {files}, {ranges}, {}", size(*bytes)))?;
        }
        Ok(CommandOutcome::Ok)
    }
}

/// Joins faults, and counts those beyond the first ones.
pub(crate) fn listed(faults: &[String]) -> String {
    const MOST: usize = 20;
    let mut lines: Vec<String> = faults.iter().take(MOST).cloned().collect();
    if faults.len() > MOST {
        lines.push(format!("and {} more", faults.len() - MOST));
    }
    lines.join("\n")
}

/// Returns the path of the hashes of a file or folder.
fn expected(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(FOLDER) } else { hashes::path_for(path) }
}

/// Compares a file, the files of a set, or a folder with the hashes beside them; none if there are none.
pub(crate) fn hashed(path: &Path) -> Result<Option<VerifiedFiles>> {
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
    let places = [hashes::path_for(path), folder_of(path).join(FOLDER)];
    for place in places.iter().filter(|place| place.exists()) {
        let hashed_file = hashes::read(place)?.into_iter().find(|file| file.name == name);
        if hashed_file.is_some() {
            return Ok(hashed_file);
        }
    }
    Ok(None)
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
fn unsound(path: &Path) -> Option<String> {
    let opened = if path.is_dir() {
        let has_weights = path.join(checkpoints::checkpoint::INDEX).exists()
            || path.join(checkpoints::checkpoint::SINGLE).exists();
        if !has_weights {
            return None;
        }
        checkpoints::Checkpoint::open(path).map(drop).map_err(anyhow::Error::from)
    } else if path.extension().is_some_and(|end| end == "gguf") {
        GgufFile::open(path)
            .map_err(anyhow::Error::from)
            .and_then(|file| file.tensors().iter().try_for_each(|info| sound(&file, info)))
    } else {
        Ok(())
    };
    opened.err().map(|why| format!("{why:#}"))
}

/// True for the name of a file of tensors.
fn is_tensor_file(name: &str) -> bool {
    let extension = Path::new(name).extension();
    extension.is_some_and(|extension| extension == "safetensors" || extension == "gguf")
}
