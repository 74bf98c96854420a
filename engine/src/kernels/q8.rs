//! Products of block weights and rows in 8 bits: the arithmetic `q8`.
//!
//! Rows of `x` are rounded to blocks of 32 codes of 8 bits with one scale (`input`). Weights stay in their
//! levels and are multiplied as integers, sixteen rows side by side (`pack`).
//!
//! **One order of additions.** The products of a group (16 or 32 values with one scale) are added as integers,
//! which is exact. An output element is `sum = fma(group, scale * x_scale, sum)`, group after group from the
//! first one on; a format with minima subtracts `fma(-min, x_scale * x_sum, sum)` after each group. Neither
//! rows, threads, tiles nor instruction sets change a bit, so chunked prefill equals decode.
//!
//! The reasons are in [decision 54](../../../docs/decisions/0054-products-in-integers.md).

mod form;
mod input;
mod lanes;
mod multiply;
mod pack;
mod panel;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use super::isa::Isa;
pub use multiply::{IntegerProduct, products, products_on};
pub use pack::PackedMatrix;

/// Instruction sets with kernels of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IntegerIsa {
    /// Any CPU.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 with VNNI: products of bytes added to 32 bits in one instruction.
    Vnni,
}

impl IntegerIsa {
    /// Every instruction set, the plainest first.
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Vnni];

    /// True if this CPU has the instruction set.
    pub fn available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        match self {
            Self::Portable => true,
            Self::Avx2 => Isa::Avx2.available(),
            Self::Vnni => {
                is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vnni")
                    && Isa::Avx512.available()
            }
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

#[cfg(test)]
mod tests;
