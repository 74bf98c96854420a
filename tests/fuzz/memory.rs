//! Counts the memory that a case holds, and fails excessive allocations.
#![expect(unsafe_code, reason = "an allocator is unsafe to implement; this one only counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

/// System allocator with a count and a limit.
pub(crate) struct Counting;

static HELD: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

/// Memory limit of a case: an allocation beyond it fails, which aborts the worker.
const LIMIT: isize = 3 << 30;

/// Counts `size` more bytes; false if that is beyond the limit.
fn take(size: usize) -> bool {
    let Ok(size) = isize::try_from(size) else { return false };
    let held = HELD.fetch_add(size, Relaxed).saturating_add(size);
    if held > LIMIT {
        HELD.fetch_sub(size, Relaxed);
        return false;
    }
    PEAK.fetch_max(held, Relaxed);
    true
}

fn give(size: usize) {
    HELD.fetch_sub(size as isize, Relaxed);
}

// SAFETY: every call is passed on to the system's allocator unchanged, or fails with null.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        give(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !take(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is passed on.
        let new = unsafe { System.realloc(at, layout, size) };
        give(if new.is_null() { size } else { layout.size() });
        new
    }
}

/// Returns the result of `work`, and the peak of additional memory meanwhile.
pub(crate) fn peak<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = work();
    (result, u64::try_from(PEAK.load(Relaxed) - before).unwrap_or(0))
}
