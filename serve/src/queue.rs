//! Bounded queue of sequences between the tasks of requests and the engine's thread.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::sequence::SequenceRequest;

/// Reason that sequences cannot wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueRefusal {
    /// The queue is full; it has this many sequences.
    Full(usize),
    /// The request has more sequences than slots and queue take together.
    Never(usize),
    /// No more sequences are taken.
    Closed,
}

/// Bounded queue of sequences.
#[derive(Debug)]
pub(crate) struct SequenceQueue {
    inner: Mutex<Waiting>,
    wake: Condvar,
    /// Most sequences that wait beside those that free slots take at once.
    limit: usize,
    slots: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    sequences: VecDeque<SequenceRequest>,
    /// Slots without a sequence.
    free: usize,
    closed: bool,
}

impl SequenceQueue {
    pub(crate) fn new(limit: usize, slots: usize) -> Self {
        let inner = Mutex::new(Waiting { free: slots, ..Waiting::default() });
        Self { inner, wake: Condvar::new(), limit, slots }
    }

    /// Sets the number of slots without a sequence.
    pub(crate) fn set_free(&self, free: usize) {
        self.lock().free = free;
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds all sequences of a request, or none.
    pub(crate) fn submit(&self, sequences: Vec<SequenceRequest>) -> Result<(), QueueRefusal> {
        let mut waiting = self.lock();
        if waiting.closed {
            return Err(QueueRefusal::Closed);
        }
        let limit = self.limit.saturating_add(self.slots);
        if sequences.len() > limit {
            return Err(QueueRefusal::Never(limit));
        }
        let room = self.limit.saturating_add(waiting.free);
        if waiting.sequences.len().saturating_add(sequences.len()) > room {
            waiting.sequences.retain(|sequence| !sequence.is_cancelled());
        }
        let count = waiting.sequences.len();
        if count.saturating_add(sequences.len()) > room {
            return Err(QueueRefusal::Full(count));
        }
        waiting.sequences.extend(sequences);
        drop(waiting);
        self.wake.notify_one();
        Ok(())
    }

    /// Returns the number of waiting sequences.
    pub(crate) fn len(&self) -> usize {
        self.lock().sequences.len()
    }

    /// Takes the first sequence if `fits` says that there is room for it.
    pub(crate) fn take(
        &self,
        fits: impl FnOnce(&SequenceRequest) -> bool,
    ) -> Option<SequenceRequest> {
        let mut waiting = self.lock();
        if !fits(waiting.sequences.front()?) {
            return None;
        }
        waiting.free = waiting.free.saturating_sub(1);
        waiting.sequences.pop_front()
    }

    /// Takes the sequences that are cancelled or too late.
    pub(crate) fn take_over(
        &self,
        over: impl Fn(&SequenceRequest) -> bool,
    ) -> Vec<SequenceRequest> {
        let mut waiting = self.lock();
        if !waiting.sequences.iter().any(&over) {
            return Vec::new();
        }
        let (gone, left) = std::mem::take(&mut waiting.sequences).into_iter().partition(over);
        waiting.sequences = left;
        Vec::from(gone)
    }

    /// Waits until a sequence is there, the queue is closed, or the time is over. Returns false if the
    /// queue is closed and empty.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let waiting = self.lock();
        let (waiting, _) = self
            .wake
            .wait_timeout_while(waiting, time, |waiting: &mut Waiting| {
                waiting.sequences.is_empty() && !waiting.closed
            })
            .unwrap_or_else(PoisonError::into_inner);
        !(waiting.closed && waiting.sequences.is_empty())
    }

    /// Refuses new sequences; waiting ones stay.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_all();
    }

    /// Refuses new sequences and drops the waiting ones.
    pub(crate) fn abort(&self) {
        let dropped = {
            let mut waiting = self.lock();
            waiting.closed = true;
            std::mem::take(&mut waiting.sequences)
        };
        drop(dropped);
        self.wake.notify_all();
    }
}
