//! Encoded slabs that wait to be written.
//!
//! The system writes to a file from one thread at a time, and lets others spin until it is done. So a worker whose slab
//! would have to wait leaves it to the one that writes, and encodes the next slab.
//!
//! Measurements are in [decision 85](../../../../docs/decisions/0085-sources-copied-and-written-early.md).

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::Error;
use crate::journal::SlabRecord;

/// Slab whose bytes are to be written.
#[derive(Debug)]
pub(super) struct EncodedSlab {
    pub(super) number: usize,
    /// Bytes of each target.
    pub(super) bytes: Vec<Vec<u8>>,
    pub(super) records: Vec<SlabRecord>,
}

/// Slabs that wait; every worker is a writer at times.
#[derive(Debug)]
pub(super) struct WriteQueue {
    state: Mutex<QueueState>,
    room: Condvar,
    /// Most workers that write at a time.
    writers: usize,
    /// Most slabs that wait.
    length: usize,
}

#[derive(Debug, Default)]
struct QueueState {
    slabs: VecDeque<EncodedSlab>,
    writing: usize,
    /// Buffers of slabs that are written.
    spare: Vec<Vec<Vec<u8>>>,
}

impl WriteQueue {
    pub(super) fn new(writers: usize, length: usize) -> Self {
        Self { state: Mutex::default(), room: Condvar::new(), writers, length }
    }

    /// Hands a slab over. If fewer workers write than may, this one writes what waits. Every slab that was handed over is
    /// written when all calls have returned, unless `write` failed. Returns buffers for another slab.
    pub(super) fn push(
        &self,
        slab: EncodedSlab,
        write: impl Fn(&EncodedSlab) -> Result<(), Error>,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let mut state = self.lock();
        while state.writing >= self.writers && state.slabs.len() >= self.length {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.slabs.push_back(slab);
        if state.writing < self.writers {
            state.writing += 1;
            let writer = WriterTurn(self);
            while let Some(slab) = state.slabs.pop_front() {
                drop(state);
                self.room.notify_one();
                write(&slab)?;
                state = self.lock();
                state.spare.push(slab.bytes);
            }
            // Under the lock: a slab that comes later finds nobody writing.
            state.writing -= 1;
            std::mem::forget(writer);
        }
        Ok(state.spare.pop().unwrap_or_default())
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Turn of a writer; it ends here if a write failed.
struct WriterTurn<'q>(&'q WriteQueue);

impl Drop for WriterTurn<'_> {
    fn drop(&mut self) {
        self.0.lock().writing -= 1;
        self.0.room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn slab(number: usize) -> EncodedSlab {
        EncodedSlab { number, bytes: vec![vec![1; 3]], records: Vec::new() }
    }

    #[test]
    fn every_slab_is_written_once_and_by_few_at_a_time() {
        for (workers, writers, length) in [(1, 1, 1), (4, 1, 1), (4, 1, 3), (6, 2, 2)] {
            let queue = WriteQueue::new(writers, length);
            let next = AtomicUsize::new(0);
            let now = AtomicUsize::new(0);
            let written = Mutex::new(Vec::new());
            std::thread::scope(|scope| {
                for _ in 0..workers {
                    scope.spawn(|| {
                        loop {
                            let number = next.fetch_add(1, Ordering::SeqCst);
                            if number >= 200 {
                                return;
                            }
                            queue
                                .push(slab(number), |slab: &EncodedSlab| {
                                    assert!(now.fetch_add(1, Ordering::SeqCst) < writers);
                                    std::thread::yield_now();
                                    written.lock().unwrap().push(slab.number);
                                    now.fetch_sub(1, Ordering::SeqCst);
                                    Ok(())
                                })
                                .unwrap();
                        }
                    });
                }
            });
            let mut written = written.into_inner().unwrap();
            written.sort_unstable();
            assert_eq!(written, (0..200).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_failed_write_holds_up_nobody() {
        let queue = WriteQueue::new(1, 1);
        let failed = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 0..50 {
                        if queue
                            .push(slab(number), |_: &EncodedSlab| {
                                Err(std::io::Error::other("the disk is full").into())
                            })
                            .is_err()
                        {
                            failed.fetch_add(1, Ordering::SeqCst);
                            return;
                        }
                    }
                });
            }
        });
        assert!(failed.into_inner() > 0);
    }
}
