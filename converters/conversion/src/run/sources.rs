//! Compares the sources of slabs that an earlier run has written with what it read.
//!
//! Lengths and times do not show every change ([decision 112](../../../../docs/decisions/0112-sources-of-slabs.md)).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{Error, SlabJob, journal_path, on_threads, slab};
use crate::Work;
use crate::journal::SlabRecord;
use formats::shown;

/// Returns an error if a known slab has other source values than the earlier run has read.
///
/// Lengths and times of files say too little: copies and archives restore both.
pub(super) fn check(
    work: &Work<'_>,
    threads: usize,
    jobs: &[SlabJob],
    known: &BTreeMap<usize, Vec<SlabRecord>>,
) -> Result<(), Error> {
    let slabs: Vec<(&SlabJob, &Vec<SlabRecord>)> =
        known.iter().filter_map(|(&n, written)| Some((jobs.get(n)?, written))).collect();
    let next = AtomicUsize::new(0);
    let first_changed = Mutex::new(None::<usize>);
    on_threads(threads, || {
        let mut buffers = slab::Buffers::default();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some((job, written)) = slabs.get(n) else { return };
            if !slab::is_same_source(work, job, &mut buffers, written) {
                let mut first = first_changed.lock().unwrap_or_else(PoisonError::into_inner);
                *first = Some(first.map_or(n, |earlier| earlier.min(n)));
                return;
            }
        }
    });
    let Some(n) = first_changed.into_inner().unwrap_or_else(PoisonError::into_inner) else {
        return Ok(());
    };
    let target = work.tasks[slabs[n].0.task].targets.first();
    let tensor = target.map_or_else(String::new, |target| shown(&target.name));
    let first = work.files.first().map(|file| file.path.clone()).unwrap_or_default();
    Err(Error::Resume {
        journal: journal_path(&first),
        why: format!("the source of `{tensor}` was changed since it was read"),
    })
}
