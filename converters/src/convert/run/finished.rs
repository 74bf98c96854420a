//! Recognizes the output of a conversion that was finished before.

use super::files::Part;
use super::{Error, Job, slab};
use crate::convert::Work;

/// Returns true if every file is there as this work would write it.
///
/// Lengths, headers and files beside the tensors are compared whole, and of each tensor the first rows:
/// a file of another model differs in nearly every tensor, and making all of them again would be a
/// second conversion.
pub(super) fn is_finished(work: &Work<'_>) -> Result<bool, Error> {
    let named: Option<Vec<Part>> = work.files.iter().map(Part::named).collect();
    let Some(parts) = named else { return Ok(false) };
    if !work.beside.iter().all(crate::convert::SideFile::is_there) {
        return Ok(false);
    }
    let mut buffers = slab::Buffers::default();
    let (mut same, mut found) = (true, Vec::new());
    for (task, tensor) in work.tasks.iter().enumerate().filter(|(_, tensor)| tensor.rows() > 0) {
        let job = Job { task, first: 0, rows: tensor.slab_rows(ROWS).min(tensor.rows()) };
        slab::encode(work, &job, &mut buffers, &mut |target, bytes, from| {
            found.resize(bytes.len(), 0);
            parts[target.file].read(&mut found, from)?;
            same &= found == bytes;
            Ok(())
        })?;
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Numbers of each tensor that are compared, at least.
const ROWS: usize = 1024;
