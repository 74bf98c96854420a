//! The setting of the allocator for freed memory.
//!
//! The next op takes the same pages ([decision 82](../../docs/decisions/0082-memory-is-kept-for-the-next-use.md)).
#![expect(unsafe_code, reason = "a setting of the C library")]

/// Lets the allocator of glibc keep freed memory for the next op.
///
/// By default it returns each buffer of some megabytes to the system, and the next one costs page faults. The setting
/// is one of the process; other allocators are left as they are.
pub fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        /// Largest buffer that comes from memory in use.
        const BUFFER: i32 = 1 << 30;
        /// Freed memory that is kept.
        const KEPT: i32 = 512 << 20;
        // SAFETY: the function takes two integers, and may be called at any time by any thread.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, BUFFER);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
        }
    }
}
