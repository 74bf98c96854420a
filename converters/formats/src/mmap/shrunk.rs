//! Ends the process with a message when a mapped file becomes shorter while it is read.
//!
//! Accessing a page beyond the end of a mapped file raises SIGBUS, whose default action ends the process
//! without a message. Reading with `pread` would return an error instead, but kernels read weights from the
//! memory map more than once, and conversions fall back to the map. The handler writes the
//! message and exits at once, so no result is computed from unread data, and an output remains a `.part`
//! file.
//!
//! The reasons are in [decision 28](../../../../docs/decisions/0028-shrinking-sources.md).

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::shown;

/// Message around the name of the file, and the exit code.
#[derive(Debug, Clone, Copy)]
pub struct ExitMessage {
    /// Text before the name.
    pub before: &'static str,
    /// Text after the name.
    pub after: &'static str,
    /// The exit code.
    pub code: i32,
}

static FAREWELL: OnceLock<(ExitMessage, libc::sigaction)> = OnceLock::new();

/// Mapped file. A slot is free while `begin` is 0, and claimed while it is 1.
struct MapSlot {
    begin: AtomicUsize,
    end: AtomicUsize,
    name: AtomicPtr<u8>,
    name_len: AtomicUsize,
}

/// Number of slots, more than the shards of any checkpoint. A file without a slot keeps the default action.
const PLACES: usize = 4096;
static RANGES: [MapSlot; PLACES] = [const {
    MapSlot {
        begin: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        name: AtomicPtr::new(std::ptr::null_mut()),
        name_len: AtomicUsize::new(0),
    }
}; PLACES];

/// Slot in the list of mapped files, held for the lifetime of this value.
#[derive(Debug)]
pub(super) struct MapGuard {
    place: usize,
    /// Kept alive because the list points to it.
    _name: Box<[u8]>,
}

impl MapGuard {
    pub(super) fn new(bytes: &[u8], path: &Path) -> Option<Self> {
        let place = RANGES.iter().position(|range: &MapSlot| {
            range.begin.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })?;
        let mut name: Box<[u8]> = shown(&path.to_string_lossy()).into_bytes().into();
        let range = &RANGES[place];
        range.name.store(name.as_mut_ptr(), Ordering::Relaxed);
        range.name_len.store(name.len(), Ordering::Relaxed);
        let begin = bytes.as_ptr() as usize;
        range.end.store(begin + bytes.len(), Ordering::Relaxed);
        range.begin.store(begin, Ordering::Release);
        Some(Self { place, _name: name })
    }
}

impl Drop for MapGuard {
    fn drop(&mut self) {
        RANGES[self.place].begin.store(0, Ordering::Release);
    }
}

/// Installs the handler; the process ends with `farewell` when a mapped file shrinks under a reader.
pub fn on_shrink(farewell: ExitMessage) {
    // SAFETY: all zeros is a valid `sigaction`; the pointers are to values that live here; the handler
    // does only what a signal handler may.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut old) != 0
            || FAREWELL.set((farewell, old)).is_err()
        {
            return;
        }
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = handler as usize;
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const new, std::ptr::null_mut());
    }
}

/// Writes the message and exits if the address lies in a mapped file. Only calls that are allowed in a
/// signal handler are used: loads, `write` and `_exit`.
extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let Some((farewell, old)) = FAREWELL.get() else { return };
    // SAFETY: the kernel gives a valid `siginfo_t` to a handler with `SA_SIGINFO`.
    let address = unsafe { (*info).si_addr() } as usize;
    for range in &RANGES {
        let begin = range.begin.load(Ordering::Acquire);
        if begin <= 1 || address < begin || address >= range.end.load(Ordering::Relaxed) {
            continue;
        }
        // SAFETY: whoever reads the range keeps the map, and with it the name, alive.
        unsafe {
            let name = range.name.load(Ordering::Relaxed);
            let len = range.name_len.load(Ordering::Relaxed);
            libc::write(2, farewell.before.as_ptr().cast(), farewell.before.len());
            libc::write(2, name.cast(), len);
            libc::write(2, farewell.after.as_ptr().cast(), farewell.after.len());
            libc::_exit(farewell.code);
        }
    }
    // SAFETY: restores the action from before; the access is then repeated under that action.
    unsafe {
        libc::sigaction(signal, old, std::ptr::null_mut());
    }
}
