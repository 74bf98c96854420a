//! Recognizes the output of a conversion that was finished before.

use super::files::PartFile;
use super::{Error, SlabJob, checksums, slab};
use crate::Work;
use checkpoints::checkpoint::Stamp;

/// True if every file exists as this work would write it.
///
/// Lengths, headers and small files are compared whole; of each tensor, the first and the last rows, and all bytes with
/// the hashes beside them. A file of another model differs in nearly every tensor, and a full comparison would repeat the conversion. An
/// output older than its sources never counts as finished.
pub(super) fn is_finished(work: &Work<'_>, sources: &[Stamp]) -> Result<bool, Error> {
    for file in &work.files {
        let Ok(written) = Stamp::of(&file.path) else { return Ok(false) };
        if let Some(source) = sources.iter().find(|source| source.is_younger(&written)) {
            let output = file.path.clone();
            let input = source.path.clone();
            return Err(Error::Older { output, input });
        }
    }
    let named: Option<Vec<PartFile>> = work.files.iter().map(PartFile::named).collect();
    let Some(parts) = named else { return Ok(false) };
    if !work.beside.iter().all(crate::SideFile::is_there) {
        return Ok(false);
    }
    if !checksums::hold(work) {
        return Ok(false);
    }
    let mut buffers = slab::Buffers::default();
    let mut on_disk = Vec::new();
    let filled = work.tasks.iter().enumerate().filter(|(_, tensor)| tensor.rows() > 0);
    let ends = filled.flat_map(|(task, tensor)| {
        let rows = tensor.rows();
        let step = tensor.slab_rows(ROWS);
        let last = (rows - 1) / step * step;
        let piece = tensor.piece_rows(ROWS);
        [0, last].map(|first| SlabJob { task, first, rows: step.min(rows - first), piece })
    });
    for job in ends {
        slab::encode(work, &job, &mut buffers)?;
        let task = &work.tasks[job.task];
        for (target, bytes) in task.targets.iter().zip(&buffers.bytes) {
            on_disk.resize(bytes.len(), 0);
            parts[target.file].read(&mut on_disk, slab::place(task, target, &job).0)?;
            if on_disk != *bytes {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Minimum number of values of each tensor that are compared.
const ROWS: usize = 1024;
