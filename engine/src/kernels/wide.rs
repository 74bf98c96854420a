//! Loops that are compiled for the widest vectors of the CPU.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calls functions compiled for detected CPU features")
)]

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
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
        fn sixteen(task: impl Wide) {
            task.run();
        }
        #[target_feature(enable = "avx2,fma,f16c")]
        fn eight(task: impl Wide) {
            task.run();
        }
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        if avx2 && avx512 {
            // SAFETY: the CPU has these features.
            return unsafe { sixteen(task) };
        }
        if avx2 {
            // SAFETY: the CPU has these features.
            return unsafe { eight(task) };
        }
    }
    task.run();
}
