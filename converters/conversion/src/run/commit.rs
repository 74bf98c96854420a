//! Renames the files of a conversion to their final names, in an order that never mixes old and new.
//!
//! Nothing opens before the last rename ([decision 27](../../../../docs/decisions/0027-outputs-complete-at-last-rename.md)).

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::exchange;
use super::files::{PartFile, outputs, staged};
use crate::{Journal, SideFile, Work};
use formats::output::{Disk, create, folder_of, part_path, sync_folder};

/// Renames all files to their final names; `naming` is true if an earlier run had begun to.
pub(super) fn commit(
    work: &Work<'_>,
    hashed: &[SideFile],
    parts: &[PartFile],
    journal: Journal,
    naming: bool,
    disk: &dyn Disk,
) -> io::Result<()> {
    let beside: Vec<&SideFile> = work.beside.iter().chain(hashed).collect();
    let named = parts.iter().all(PartFile::is_named) && beside.iter().all(|side| side.is_there());
    if !(naming && named) {
        for side in &beside {
            stage(work, side, disk)?;
        }
        journal.note_naming(disk)?;
        sync_folders(work, disk)?;
        if exchange::replaces(work) && exchange::replace(work, &beside, parts, disk)? {
            // The journal went with the old folder.
            return Ok(());
        }
        let old_hashes = hashed.iter().map(|side| &side.path);
        for path in work.gates.iter().chain(&work.stale).chain(old_hashes) {
            disk.remove(path)?;
        }
        sync_folders(work, disk)?;
        name(work, &beside, parts, disk, false)?;
        sync_folders(work, disk)?;
        name(work, &beside, parts, disk, true)?;
    }
    sync_folders(work, disk)?;
    // Remove parts that a killed run left beside renamed files.
    for out in &work.files {
        disk.remove(&part_path(&out.path))?;
    }
    for side in &beside {
        disk.remove(&staged(work, side))?;
    }
    journal.remove(disk)
}

/// Renames the gates, or all other files.
fn name(
    work: &Work<'_>,
    beside: &[&SideFile],
    parts: &[PartFile],
    disk: &dyn Disk,
    gates: bool,
) -> io::Result<()> {
    for (part, out) in parts.iter().zip(&work.files) {
        if work.gates.contains(&out.path) == gates {
            part.finish(disk)?;
        }
    }
    for side in beside.iter().filter(|side| work.gates.contains(&side.path) == gates) {
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

fn sync_folders(work: &Work<'_>, disk: &dyn Disk) -> io::Result<()> {
    let paths: Vec<PathBuf> = outputs(work).collect();
    let folders: BTreeSet<&Path> = paths.iter().map(|path| folder_of(path)).collect();
    folders.into_iter().try_for_each(|folder| sync_folder(disk, &folder.join("-")))
}
