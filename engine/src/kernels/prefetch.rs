//! Requests for cache lines ahead of their use.
#![expect(unsafe_code, reason = "an intrinsic")]
#![expect(clippy::inline_always, reason = "one instruction")]

/// The x86 prefetch hint for the L1 cache.
pub(super) const L1: i32 = 3;
/// The x86 prefetch hint for the L2 cache.
pub(super) const L2: i32 = 2;

/// Asks for a cache line; any address is fine.
#[inline(always)]
pub(super) fn prefetch<const CACHE: i32>(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch does not access memory and never faults; SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<CACHE>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
