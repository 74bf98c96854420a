//! Replaces a folder of an older output in one step, so that a killed run leaves the old output or the new one.
//!
//! The new folder is built beside the old one: files of the output, and hard links to all other files of the old
//! folder. Then the two exchange their names, and the old folder is removed. The next run removes what a
//! killed run has left.
//!
//! The reasons are in [decision 111](../../../../docs/decisions/0111-exchanged-folders.md).

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::files::{PartFile, outputs, staged};
use super::journal_path;
use crate::{SideFile, Work};
use formats::output::{Disk, DraftFile, part_path, sync_folder};

/// File in the old folder that lists the files that the new folder does not have.
const LIST: &str = ".replaced.part";

/// Limit on the number of files and folders that are linked.
const MOST: usize = 100_000;

/// Folder of an output, and the place of its successor.
struct FolderPair {
    current: PathBuf,
    beside: PathBuf,
}

impl FolderPair {
    /// Returns the pair of a folder; none for the root of a file system.
    fn of(folder: &Path) -> io::Result<Option<Self>> {
        let current = fs_err::canonicalize(folder)?;
        let beside = current.file_name().zip(current.parent()).map(|(name, parent)| {
            let mut hidden = std::ffi::OsString::from(".");
            hidden.push(name);
            hidden.push(".onboard-new");
            parent.join(hidden)
        });
        Ok(beside.map(|beside| Self { current, beside }))
    }
}

/// True if the work replaces an output that readers open.
pub(super) fn replaces(work: &Work<'_>) -> bool {
    let owned = work.folder.as_ref().is_some_and(|folder| !folder.shared);
    owned && work.gates.iter().any(|gate| gate.exists())
}

/// Replaces the folder of the work. Returns false, with nothing changed, if the file system cannot.
pub(super) fn replace(
    work: &Work<'_>,
    beside: &[&SideFile],
    parts: &[PartFile],
    disk: &dyn Disk,
) -> io::Result<bool> {
    let Some(folder) = &work.folder else { return Ok(false) };
    let Some(pair) = FolderPair::of(&folder.path)? else { return Ok(false) };
    // Relative paths of this process would lead to the old folder.
    if fs_err::canonicalize(".").is_ok_and(|here| here.starts_with(&pair.current)) {
        return Ok(false);
    }
    let built = build(work, beside, parts, &pair).and_then(|is_built| {
        if is_built {
            sync_tree(&pair.beside, disk)?;
            sync_folder(disk, &pair.beside)?;
            disk.exchange(&pair.beside, &pair.current)?;
        }
        Ok(is_built)
    });
    match built {
        Ok(true) => {}
        // Not all file systems have links or can exchange names, and not all folders lie in one that may be written.
        Ok(false) => return clear(&pair).map(|()| false),
        Err(error) if cannot(&error) => return clear(&pair).map(|()| false),
        Err(error) => return Err(error),
    }
    sync_folder(disk, &pair.beside)?;
    settle(&pair, disk)?;
    Ok(true)
}

/// True for errors of file systems and folders without hard links or the exchange of names.
fn cannot(error: &io::Error) -> bool {
    use io::ErrorKind::{
        CrossesDevices, InvalidInput, PermissionDenied, ReadOnlyFilesystem, ResourceBusy,
        TooManyLinks, Unsupported,
    };
    let kinds = [
        CrossesDevices,
        InvalidInput,
        PermissionDenied,
        ReadOnlyFilesystem,
        ResourceBusy,
        TooManyLinks,
        Unsupported,
    ];
    kinds.contains(&error.kind())
}

/// Builds the new folder. Returns false if it would differ from the old one in more than the output.
fn build(
    work: &Work<'_>,
    beside: &[&SideFile],
    parts: &[PartFile],
    pair: &FolderPair,
) -> io::Result<bool> {
    let FolderPair { current, beside: new } = pair;
    let Some(folder) = work.folder.as_ref().map(|folder| &folder.path) else { return Ok(false) };
    fs_err::create_dir(new)?;
    let old_facts = fs_err::metadata(current)?;
    let new_facts = fs_err::metadata(new)?;
    if (old_facts.uid(), old_facts.gid()) != (new_facts.uid(), new_facts.gid()) {
        return Ok(false);
    }
    fs_err::set_permissions(new, old_facts.permissions())?;
    let tensors = parts.iter().zip(&work.files).map(|(part, out)| (part.path.clone(), &out.path));
    let small = beside.iter().map(|side| (staged(work, side), &side.path));
    let mut dropped = BTreeSet::from([PathBuf::from(LIST)]);
    for (from, to) in tensors.chain(small) {
        let Some(name) = within(folder, to) else { return Ok(false) };
        let place = new.join(&name);
        fs_err::create_dir_all(place.parent().unwrap_or(new))?;
        fs_err::hard_link(&from, &place)?;
        dropped.extend(within(folder, &from));
        dropped.insert(name);
    }
    let journal = work.files.first().map(|file| journal_path(&file.path));
    let written = outputs(work).map(|path| part_path(&path));
    let stale = work.gates.iter().chain(&work.stale).cloned();
    dropped.extend(
        journal.into_iter().chain(written).chain(stale).filter_map(|path| within(folder, &path)),
    );
    let mut left = MOST;
    if !link(current, new, Path::new(""), &dropped, &mut left)? {
        return Ok(false);
    }
    let lines = dropped.iter().map(|name| format!("{}\n", name.display()));
    let mut list = DraftFile::create(&current.join(LIST))?;
    io::Write::write_all(&mut list, lines.collect::<String>().as_bytes())?;
    list.publish(&formats::output::DirectDisk)?;
    Ok(true)
}

/// Returns the path of a file relative to its folder.
fn within(folder: &Path, path: &Path) -> Option<PathBuf> {
    path.strip_prefix(folder).ok().map(Path::to_owned)
}

/// Links every file that is not dropped. Returns false if there are too many.
fn link(
    current: &Path,
    new: &Path,
    name: &Path,
    dropped: &BTreeSet<PathBuf>,
    left: &mut usize,
) -> io::Result<bool> {
    for entry in fs_err::read_dir(current.join(name))? {
        let entry = entry?;
        let name = name.join(entry.file_name());
        if dropped.contains(&name) {
            continue;
        }
        let Some(fewer) = left.checked_sub(1) else { return Ok(false) };
        *left = fewer;
        let place = new.join(&name);
        if entry.file_type()?.is_dir() {
            fs_err::create_dir_all(&place)?;
            fs_err::set_permissions(&place, entry.metadata()?.permissions())?;
            if !link(current, new, &name, dropped, left)? {
                return Ok(false);
            }
        } else {
            fs_err::hard_link(entry.path(), &place)?;
        }
    }
    Ok(true)
}

/// Makes the names in a folder and the folders in it durable.
fn sync_tree(folder: &Path, disk: &dyn Disk) -> io::Result<()> {
    for entry in fs_err::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path(), disk)?;
        }
    }
    sync_folder(disk, &folder.join("-"))
}

/// Removes what a killed run has left beside a folder.
pub(super) fn clean(folder: &Path, disk: &dyn Disk) -> io::Result<()> {
    let Some(pair) = FolderPair::of(folder)? else { return Ok(()) };
    if !pair.beside.is_dir() {
        return Ok(());
    }
    if pair.beside.join(LIST).exists() { settle(&pair, disk) } else { clear(&pair) }
}

/// Removes a new folder that has not taken the place of the old one. All of its files have another name in the old
/// folder.
fn clear(pair: &FolderPair) -> io::Result<()> {
    for removed in
        [fs_err::remove_file(pair.current.join(LIST)), fs_err::remove_dir_all(&pair.beside)]
    {
        removed.or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
    }
    Ok(())
}

/// Removes the old folder, which lies beside the new one. A file that another program has put there meanwhile is
/// moved to the new folder.
fn settle(pair: &FolderPair, disk: &dyn Disk) -> io::Result<()> {
    let list = registry::file::read(&pair.beside.join(LIST), registry::file::COPIED)?;
    let list = String::from_utf8_lossy(&list).into_owned();
    let dropped: BTreeSet<&Path> = list.lines().map(Path::new).collect();
    remove_old(pair, Path::new(""), &dropped, disk)?;
    disk.remove(&pair.beside.join(LIST))?;
    fs_err::remove_dir(&pair.beside)?;
    sync_folder(disk, &pair.beside)
}

fn remove_old(
    pair: &FolderPair,
    name: &Path,
    dropped: &BTreeSet<&Path>,
    disk: &dyn Disk,
) -> io::Result<()> {
    let mut entries = fs_err::read_dir(pair.beside.join(name))?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs_err::DirEntry::file_name);
    for entry in entries {
        let name = name.join(entry.file_name());
        let place = pair.current.join(&name);
        if name == Path::new(LIST) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs_err::create_dir_all(&place)?;
            remove_old(pair, &name, dropped, disk)?;
            fs_err::remove_dir(entry.path())?;
        } else if dropped.contains(&*name) || place.symlink_metadata().is_ok() {
            disk.remove(&entry.path())?;
        } else {
            disk.rename(&entry.path(), &place)?;
        }
    }
    Ok(())
}
