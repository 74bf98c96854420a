//! Requests for cache lines that are read soon.
#![expect(unsafe_code, reason = "an instruction without effect on values")]

/// Asks for a cache line, to be kept in the L2 cache; any address is fine.
#[inline(always)]
pub(super) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch does not access memory and never faults; SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
