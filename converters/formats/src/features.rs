//! CPU features, and functions that are compiled for each set of them.

/// True if the CPU has AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
pub(crate) fn avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// True if the CPU has the AVX-512 features used here.
#[cfg(target_arch = "x86_64")]
pub(crate) fn avx512() -> bool {
    avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// Declares a function that calls another one, compiled for the widest vectors of the CPU. The other one is
/// always inlined. No operation is fused or reordered, so the results are the same.
macro_rules! widest {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)? = $plain:ident;
    ) => {
        $(#[$meta])*
        #[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "CPU features"))]
        $vis fn $name($($arg: $ty),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
                fn sixteen($($arg: $ty),*) $(-> $out)? {
                    $plain($($arg),*)
                }
                #[target_feature(enable = "avx2")]
                fn eight($($arg: $ty),*) $(-> $out)? {
                    $plain($($arg),*)
                }
                if $crate::features::avx512() {
                    // SAFETY: the CPU has these features.
                    return unsafe { sixteen($($arg),*) };
                }
                if $crate::features::avx2() {
                    // SAFETY: the CPU has these features.
                    return unsafe { eight($($arg),*) };
                }
            }
            $plain($($arg),*)
        }
    };
}
