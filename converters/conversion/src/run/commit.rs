//! Renames the files of a conversion to their final names, in an order that never mixes old and new.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::files::{PartFile, outputs};
use crate::{Journal, SideFile, Work};
use formats::output::{Disk, create, folder_of, part_path, sync_folder, with_end};

/// Renames all files to their final names; `naming` is true if an earlier run had begun to.
pub(super) fn commit(
    work: &Work<'_>,
    parts: &[PartFile],
    journal: Journal,
    naming: bool,
    disk: &dyn Disk,
) -> io::Result<()> {
    let named = parts.iter().all(PartFile::is_named) && work.beside.iter().all(SideFile::is_there);
    if !(naming && named) {
        for side in &work.beside {
            stage(work, side, disk)?;
        }
        journal.note_naming(disk)?;
        sync_folders(work, disk)?;
        for path in work.gates.iter().chain(&work.stale) {
            disk.remove(path)?;
        }
        sync_folders(work, disk)?;
        name(work, parts, disk, false)?;
        sync_folders(work, disk)?;
        name(work, parts, disk, true)?;
    }
    sync_folders(work, disk)?;
    // Remove parts that a killed run left beside renamed files.
    for out in &work.files {
        disk.remove(&part_path(&out.path))?;
    }
    for side in &work.beside {
        disk.remove(&staged(work, side))?;
    }
    journal.remove(disk)
}

/// Renames the gates, or all other files.
fn name(work: &Work<'_>, parts: &[PartFile], disk: &dyn Disk, gates: bool) -> io::Result<()> {
    let wanted = |path: &PathBuf| work.gates.contains(path) == gates;
    for (part, _) in parts.iter().zip(&work.files).filter(|(_, out)| wanted(&out.path)) {
        part.finish(disk)?;
    }
    for side in work.beside.iter().filter(|side| wanted(&side.path)) {
        disk.rename(&staged(work, side), &side.path)?;
    }
    Ok(())
}

/// Writes a small file beside its final path.
fn stage(work: &Work<'_>, side: &SideFile, disk: &dyn Disk) -> io::Result<()> {
    fs_err::create_dir_all(folder_of(&side.path))?;
    let mut file = create(&staged(work, side))?;
    file.write_all(&side.bytes)?;
    disk.sync(file.file())
}

/// Returns the temporary path of a small file. Processes that write one set write the same small files, so
/// each process uses a path of its own.
fn staged(work: &Work<'_>, side: &SideFile) -> PathBuf {
    let shared = work.folder.as_ref().is_some_and(|folder| folder.shared);
    let owner = work.files.first().and_then(|file| file.path.file_name()).filter(|_| shared);
    match owner {
        Some(owner) => part_path(&with_end(&side.path, &format!(".{}", owner.display()))),
        None => part_path(&side.path),
    }
}

fn sync_folders(work: &Work<'_>, disk: &dyn Disk) -> io::Result<()> {
    let folders: BTreeSet<&Path> = outputs(work).map(|path| folder_of(path)).collect();
    folders.into_iter().try_for_each(|folder| sync_folder(disk, &folder.join("-")))
}
