//! Loops that are compiled for the widest vectors of the CPU.
//!
//! No operation is fused or reordered ([decision 86](../../../docs/decisions/0086-loops-for-wide-vectors.md)).
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calls functions compiled for detected CPU features")
)]

#[cfg(target_arch = "x86_64")]
use super::isa::Isa;

/// A loop. Its `run` is always inlined, so that it is compiled anew for each instruction set; no operation is
/// fused or reordered, so its results are the same for all of them.
pub trait Wide {
    /// Runs the loop.
    fn run(self);
}

/// Runs a loop with the widest vectors of this CPU.
pub fn wide(task: impl Wide) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl")]
        fn sixteen(task: impl Wide) {
            task.run();
        }
        #[target_feature(enable = "avx2,fma,f16c")]
        fn eight(task: impl Wide) {
            task.run();
        }
        match Isa::best() {
            // SAFETY: the CPU has these features.
            Isa::Avx512 | Isa::Avx512Bf16 => unsafe { sixteen(task) },
            // SAFETY: as above.
            Isa::Avx2 => unsafe { eight(task) },
            Isa::Portable => task.run(),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    task.run();
}
