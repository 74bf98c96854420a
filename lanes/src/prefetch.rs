//! Requests for cache lines that are read soon.
#![expect(unsafe_code, reason = "instructions without effect on values")]

/// Asks for the cache line of an address, which need not be readable, to be kept in the L1 cache.
#[inline(always)]
pub fn prefetch_to_l1(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch does not access memory and never faults; SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above; the instruction is part of 64-bit ARM.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// Asks for the cache line of an address, which need not be readable, to be kept in the L2 cache.
#[inline(always)]
pub fn prefetch_to_l2(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `prefetch_to_l1`.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{}]", in(reg) address, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
