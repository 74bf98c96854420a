//! Pinned memory through which bytes go to the device.

use cudarc::driver::{DriverError, result, sys};

/// Bytes of a half.
const HALF: usize = 4 << 20;

/// Pinned memory in two halves: the device reads one while the other is filled.
#[derive(Debug)]
pub(super) struct PinnedHalves {
    memory: *mut u8,
    /// The half that is filled, and how far.
    half: usize,
    filled: usize,
    /// For each half, the moment when the device has read it.
    read: [sys::CUevent; 2],
}

impl PinnedHalves {
    /// Allocates the memory; the context is that of this thread.
    pub(super) fn new() -> Result<Self, DriverError> {
        let read = [new_event()?, new_event()?];
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP; // kernels read it
        // SAFETY: the memory is given back in `release`.
        let memory = unsafe { result::malloc_host(2 * HALF, flags) }?.cast();
        Ok(Self { memory, half: 0, filled: 0, read })
    }

    /// True if so many bytes fit the rest of this half.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        bytes <= HALF - self.filled
    }

    /// Goes on with the other half as soon as the device has read it.
    ///
    /// # Safety
    /// All work that reads this half is on the stream, and the context is that of this thread.
    pub(super) unsafe fn turn(&mut self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: the events are of `new`. One that was never recorded is not waited for.
        unsafe {
            result::event::record(self.read[self.half], stream)?;
            (self.half, self.filled) = (1 - self.half, 0);
            result::event::synchronize(self.read[self.half])
        }
    }

    /// Copies bytes to an aligned place of this half, which has room for them.
    pub(super) fn put(&mut self, from: &[u8]) -> &[u8] {
        assert!(self.has_room(from.len()), "the caller turns a full half");
        let at = self.half * HALF + self.filled;
        self.filled = (self.filled + from.len()).next_multiple_of(16).min(HALF);
        // SAFETY: the place is in the memory of `new`, and the device has read what was there before: all of this half
        // was waited for, by `turn` or before `rewind`.
        unsafe {
            let place = self.memory.add(at);
            std::ptr::copy_nonoverlapping(from.as_ptr(), place, from.len());
            std::slice::from_raw_parts(place, from.len())
        }
    }

    /// Begins at the start again, so that equal steps find their bytes at equal addresses.
    ///
    /// # Safety
    /// The device has read both halves.
    pub(super) unsafe fn rewind(&mut self) {
        (self.half, self.filled) = (0, 0);
    }

    /// Gives everything back.
    ///
    /// # Safety
    /// The device reads the memory no more, and the context is that of this thread.
    pub(super) unsafe fn release(self) {
        // SAFETY: the memory and the events are of `new`, and are given back once.
        unsafe {
            let _: Result<(), DriverError> = result::free_host(self.memory.cast());
            for event in self.read {
                let _: Result<(), DriverError> = result::event::destroy(event);
            }
        }
    }
}

/// Creates an event that measures no time.
fn new_event() -> Result<sys::CUevent, DriverError> {
    result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
}
