//! Hashes of a conversion's files, as files beside them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{SlabJob, slab};
use crate::hashes::{self, HEADER, HashedFile, HashedRange};
use crate::journal::SlabRecord;
use crate::{SideFile, Work};
use formats::output::folder_of;

/// Returns the files with hashes of a finished work.
pub(super) fn files(
    work: &Work<'_>,
    jobs: &[SlabJob],
    done: &BTreeMap<usize, Vec<SlabRecord>>,
) -> Vec<SideFile> {
    let paths = work.hash_paths();
    let tensors = tensor_files(work, jobs, done);
    match &paths[..] {
        [path] if work.folder.is_some() => {
            let beside = all_beside(work, folder_of(path));
            vec![hash_file(path.clone(), &[tensors, beside].concat())]
        }
        _ => {
            let beside = work.folder.as_ref().map(|folder| all_beside(work, &folder.path));
            let beside = beside.unwrap_or_default();
            let files = paths.into_iter().zip(tensors);
            files
                .map(|(path, file)| hash_file(path, &[vec![file], beside.clone()].concat()))
                .collect()
        }
    }
}

/// Returns the hashes of all files beside those of tensors, with names relative to a folder.
fn all_beside(work: &Work<'_>, folder: &Path) -> Vec<HashedFile> {
    work.beside
        .iter()
        .map(|side: &SideFile| HashedFile::whole(relative(folder, &side.path), &side.bytes))
        .collect()
}

/// Returns a file with hashes.
fn hash_file(path: PathBuf, hashed: &[HashedFile]) -> SideFile {
    SideFile { bytes: hashes::text(hashed).into_bytes(), path }
}

/// Returns the hashes of each file of tensors: its header, and its tensors by offset.
fn tensor_files(
    work: &Work<'_>,
    jobs: &[SlabJob],
    done: &BTreeMap<usize, Vec<SlabRecord>>,
) -> Vec<HashedFile> {
    let mut files: Vec<HashedFile> = work
        .files
        .iter()
        .map(|file| {
            let len = file.header.len() as u64;
            let hash = hashes::hash(&file.header, file.header.len(), 0);
            let header = HashedRange { name: HEADER.to_owned(), offset: 0, len, piece: len, hash };
            let name = file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            HashedFile { name, len: file.len, ranges: vec![header] }
        })
        .collect();
    let mut sums: Vec<Vec<u64>> =
        work.tasks.iter().map(|task| vec![0; task.targets.len()]).collect();
    let mut pieces: Vec<usize> = vec![1; work.tasks.len()];
    for (job, written) in jobs.iter().enumerate().filter_map(|(n, job)| Some((job, done.get(&n)?)))
    {
        pieces[job.task] = job.piece;
        for (sum, record) in sums[job.task].iter_mut().zip(written) {
            *sum = sum.wrapping_add(record.hash);
        }
    }
    for ((n, task), sums) in work.tasks.iter().enumerate().zip(sums) {
        let all_rows = SlabJob { task: n, first: 0, rows: task.rows(), piece: pieces[n] };
        for (target, hash) in task.targets.iter().zip(sums) {
            let (offset, len) = slab::place(task, target, &all_rows);
            files[target.file].ranges.push(HashedRange {
                name: target.name.clone(),
                offset,
                len: len as u64,
                piece: slab::piece(task, target, &all_rows) as u64,
                hash,
            });
        }
    }
    for file in &mut files {
        file.ranges.sort_by_key(|range| range.offset);
    }
    files
}

fn relative(folder: &Path, path: &Path) -> String {
    path.strip_prefix(folder).unwrap_or(path).to_string_lossy().into_owned()
}

/// True unless there are hashes of the files and a file has other bytes.
pub(super) fn hold(work: &Work<'_>) -> bool {
    work.hash_paths().iter().filter(|path| path.exists()).all(|path| is_sound(path))
}

/// True if no file is damaged by a file with hashes.
fn is_sound(path: &Path) -> bool {
    hashes::read(path).is_ok_and(|files| {
        files.iter().all(|file| file.check(folder_of(path)).is_ok_and(|damage| damage.is_empty()))
    })
}
