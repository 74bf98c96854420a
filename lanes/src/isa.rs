//! Instruction sets.

use std::sync::OnceLock;

#[cfg(target_arch = "aarch64")]
use crate::neon;
use crate::portable::Portable;
use crate::{ByteTask, SliceTask, VectorTask};
#[cfg(target_arch = "x86_64")]
use crate::{avx2, avx512};

/// Instruction set that this CPU has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Isa(IsaKind);

/// Instruction sets, the plainest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum IsaKind {
    /// Any CPU.
    Portable,
    /// NEON, which every CPU of 64-bit ARM has.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// `Neon` with products of bytes (`FEAT_DotProd`).
    #[cfg(target_arch = "aarch64")]
    NeonDots,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// `Avx2` with AVX-512F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// `Avx512` with VNNI: products of bytes added to 32 bits in one instruction.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// `Avx512Vnni` with AVX512-BF16.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
}

impl IsaKind {
    const ALL: &[Self] = &[
        Self::Portable,
        #[cfg(target_arch = "aarch64")]
        Self::Neon,
        #[cfg(target_arch = "aarch64")]
        Self::NeonDots,
        #[cfg(target_arch = "x86_64")]
        Self::Avx2,
        #[cfg(target_arch = "x86_64")]
        Self::Avx512,
        #[cfg(target_arch = "x86_64")]
        Self::Avx512Vnni,
        #[cfg(target_arch = "x86_64")]
        Self::Avx512Bf16,
    ];

    /// True if this CPU has the instructions.
    fn is_here(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => true,
            #[cfg(target_arch = "aarch64")]
            Self::NeonDots => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_here()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => Self::Avx512.is_here() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => {
                Self::Avx512Vnni.is_here() && is_x86_feature_detected!("avx512bf16")
            }
        }
    }
}

impl Isa {
    /// The plain code, for any CPU.
    pub const PORTABLE: Self = Self(IsaKind::Portable);

    /// Returns the instruction sets of this CPU, the plainest first.
    pub fn available() -> impl DoubleEndedIterator<Item = Self> {
        IsaKind::ALL.iter().copied().filter(|kind| kind.is_here()).map(Self)
    }

    /// Returns the best instruction set of this CPU.
    #[inline]
    pub fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().next_back().unwrap_or(Self::PORTABLE))
    }

    /// Runs a task that is compiled for this instruction set.
    #[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "CPU features"))]
    #[inline]
    pub fn run<T: VectorTask>(self, task: T) -> T::Output {
        match self.0 {
            IsaKind::Portable => task.run(Portable),
            #[cfg(target_arch = "aarch64")]
            IsaKind::Neon | IsaKind::NeonDots => task.run(neon::Neon::<false>::new()),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an instruction set exists only where the CPU has it.
            IsaKind::Avx2 => unsafe { avx2::run(task) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            IsaKind::Avx512 | IsaKind::Avx512Vnni | IsaKind::Avx512Bf16 => unsafe {
                avx512::run(task)
            },
        }
    }

    /// Runs a task from one slice to another that is compiled for this instruction set.
    #[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "CPU features"))]
    #[inline]
    pub fn run_slices<T: SliceTask>(self, task: T, from: &[T::From], to: &mut [T::To]) {
        match self.0 {
            IsaKind::Portable => task.run(Portable, from, to),
            #[cfg(target_arch = "aarch64")]
            IsaKind::Neon | IsaKind::NeonDots => task.run(neon::Neon::<false>::new(), from, to),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an instruction set exists only where the CPU has it.
            IsaKind::Avx2 => unsafe { avx2::run_slices(task, from, to) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            IsaKind::Avx512 | IsaKind::Avx512Vnni | IsaKind::Avx512Bf16 => unsafe {
                avx512::run_slices(task, from, to);
            },
        }
    }

    /// Returns the lanes of f32 in which [`widest!`](crate::widest) compiles plain loops.
    #[doc(hidden)]
    #[inline]
    pub fn plain_lanes(self) -> usize {
        match self.0 {
            IsaKind::Portable => 4,
            #[cfg(target_arch = "aarch64")]
            IsaKind::Neon | IsaKind::NeonDots => 4,
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx2 => 8,
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512 | IsaKind::Avx512Vnni | IsaKind::Avx512Bf16 => 16,
        }
    }

    /// Runs a task on bytes that is compiled for this instruction set, or for the best one below it that multiplies
    /// bytes.
    #[cfg_attr(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        expect(unsafe_code, reason = "CPU features")
    )]
    #[inline]
    pub fn run_bytes<T: ByteTask>(self, task: T) -> T::Output {
        match self.0 {
            IsaKind::Portable => task.run(Portable),
            #[cfg(target_arch = "aarch64")]
            IsaKind::Neon => task.run(neon::Neon::<false>::new()),
            #[cfg(target_arch = "aarch64")]
            // SAFETY: an instruction set exists only where the CPU has it.
            IsaKind::NeonDots => unsafe { neon::run_dots(task) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            IsaKind::Avx2 | IsaKind::Avx512 => unsafe { avx2::run_bytes(task) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            IsaKind::Avx512Vnni | IsaKind::Avx512Bf16 => unsafe { avx512::run_bytes(task) },
        }
    }

    /// True if [`Self::run_pairs`] has products of pairs of bf16.
    #[inline]
    pub fn has_pairs(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == IsaKind::Avx512Bf16;
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Runs a task as [`Self::run`], with products of pairs of bf16 if the instruction set has them.
    #[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "CPU features"))]
    #[inline]
    pub fn run_pairs<T: VectorTask>(self, task: T) -> T::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an instruction set exists only where the CPU has it.
            IsaKind::Avx512Bf16 => unsafe { avx512::run_pairs(task) },
            _ => self.run(task),
        }
    }
}

impl std::fmt::Debug for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
