//! Compares files with the bytes that a conversion would write.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{Error, cut, on_threads, slab};
use crate::Work;

/// Returns the first byte of each tensor that differs from the bytes of the work; the end of the tensor if it has another
/// length. `stored` returns the bytes of a tensor; tensors without are not compared.
pub fn compare<'s>(
    work: &Work<'_>,
    threads: usize,
    stored: impl Fn(&str) -> Option<&'s [u8]> + Sync,
) -> Result<BTreeMap<String, usize>, Error> {
    let jobs = cut(&work.tasks, super::RunOptions::default().slab);
    let differences: Mutex<BTreeMap<String, usize>> = Mutex::default();
    let failed: Mutex<Option<Error>> = Mutex::default();
    let next = AtomicUsize::new(0);
    on_threads(threads, || {
        let mut buffers = slab::Buffers::default();
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let task = &work.tasks[job.task];
            if let Err(error) = slab::encode(work, job, &mut buffers) {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                return;
            }
            for (target, expected) in task.targets.iter().zip(&buffers.bytes) {
                let Some(bytes) = stored(&target.name) else { continue };
                let from = (slab::place(task, target, job).0 - target.offset) as usize;
                let slab_bytes = bytes.get(from..).unwrap_or_default();
                let same = slab_bytes.iter().zip(expected).take_while(|(one, other)| one == other);
                let same = same.count();
                let is_last = job.first + job.rows == task.rows();
                if same < expected.len() || (is_last && slab_bytes.len() > same) {
                    let mut all = differences.lock().unwrap_or_else(PoisonError::into_inner);
                    let first = all.entry(target.name.clone()).or_insert(from + same);
                    *first = (*first).min(from + same);
                }
            }
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(differences.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}
