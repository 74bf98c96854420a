//! Ends of renderings from outside: a deadline, or a client that does not wait any more.
//!
//! The engine counts its instructions and nothing else, so the filters, loops and printed values of this crate ask
//! whether to go on. Each rendering has a thread, which holds its control.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::{Error, ErrorKind, Value};

/// Ends renderings at a time, or when they are cancelled. Clones share the cancellation.
#[derive(Debug, Clone, Default)]
pub struct RenderControl {
    deadline: Option<Instant>,
    cancelled: Arc<AtomicBool>,
}

impl RenderControl {
    /// Ends renderings at this time.
    pub fn until(deadline: Instant) -> Self {
        Self { deadline: Some(deadline), cancelled: Arc::default() }
    }

    /// Returns a control with the same cancellation, which ends renderings at this time too.
    #[must_use]
    pub fn with_deadline(&self, deadline: Instant) -> Self {
        Self { deadline: Some(deadline), cancelled: Arc::clone(&self.cancelled) }
    }

    /// Ends renderings that are under way, and those that begin later.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// True once renderings were cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Returns the reason to end a rendering, if there is one.
    fn stop(&self) -> Option<StopReason> {
        if self.is_cancelled() {
            return Some(StopReason::Cancelled);
        }
        let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        late.then_some(StopReason::Late)
    }
}

/// Reason that a rendering was ended from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum StopReason {
    #[error("the time for the template is over")]
    Late,
    #[error("nobody waits for the text")]
    Cancelled,
}

thread_local! {
    static CONTROL: RefCell<RenderControl> = RefCell::default();
}

/// Sets the control of this thread.
pub(super) fn begin(control: RenderControl) {
    CONTROL.set(control);
}

/// Returns an error if the rendering of this thread has to end.
pub(super) fn check() -> Result<(), Error> {
    match CONTROL.with_borrow(RenderControl::stop) {
        None => Ok(()),
        Some(reason) => {
            Err(Error::new(ErrorKind::InvalidOperation, String::new()).with_source(reason))
        }
    }
}

/// Items of a loop, which end with an error when the rendering has to end.
#[derive(Debug)]
pub(super) struct LoopItems(pub(super) Value);

impl Object for LoopItems {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match self.0.try_iter() {
            Ok(items) => Enumerator::Iter(Box::new(CheckedItems { items, ended: false })),
            Err(_) => Enumerator::NonEnumerable,
        }
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.0.len()
    }
}

struct CheckedItems<I> {
    items: I,
    ended: bool,
}

impl<I: Iterator<Item = Value>> Iterator for CheckedItems<I> {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        if self.ended {
            return None;
        }
        match check() {
            Ok(()) => self.items.next(),
            Err(error) => {
                self.ended = true;
                Some(Value::from(error))
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }
}
