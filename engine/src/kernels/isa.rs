//! Instruction sets of CPUs.

/// Instruction sets with kernels of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Any CPU.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512F and VL; without VL half of the vector registers are out of reach for some uses.
    Avx512,
    /// `Avx512` with AVX512-BF16.
    Avx512Bf16,
}

impl Isa {
    /// Every instruction set, the plainest first.
    pub const ALL: [Self; 4] = [Self::Portable, Self::Avx2, Self::Avx512, Self::Avx512Bf16];

    /// True if this CPU has the instruction set.
    pub fn available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        match self {
            Self::Portable => true,
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && Self::Avx2.available()
            }
            Self::Avx512Bf16 => is_x86_feature_detected!("avx512bf16") && Self::Avx512.available(),
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Self::Portable
        }
    }

    /// Returns the best instruction set of this CPU.
    pub fn best() -> Self {
        Self::ALL.into_iter().rev().find(|isa| isa.available()).unwrap_or(Self::Portable)
    }
}
