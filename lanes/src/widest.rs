//! Functions whose plain loops are compiled for every instruction set.

/// Declares a function that calls another one, compiled for the best instruction set of the CPU. The other one must
/// always be inlined. No operation is fused or reordered, so the results are the same.
///
/// ```
/// onboard_lanes::widest! {
///     /// Returns the sum.
///     pub fn sum(numbers: &[u32]) -> u32 = plain_sum;
/// }
///
/// #[inline(always)]
/// fn plain_sum(numbers: &[u32]) -> u32 {
///     numbers.iter().sum()
/// }
///
/// assert_eq!(sum(&[1, 2, 3]), 6);
/// ```
#[macro_export]
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
                match $crate::Isa::best().plain_lanes() {
                    // SAFETY: the CPU has these features.
                    16 => return unsafe { sixteen($($arg),*) },
                    // SAFETY: the CPU has these features.
                    8 => return unsafe { eight($($arg),*) },
                    _ => {}
                }
            }
            $plain($($arg),*)
        }
    };
}
