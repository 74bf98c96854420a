//! Vectors of numbers, with one trait for every instruction set.
//!
//! Code that is generic over [`Simd`] is written once. [`Isa::run`] compiles it for each instruction set, and every
//! operation has the same bits on all of them. An [`Isa`] exists only where the CPU has its instructions.
//!
//! ```
//! use onboard_lanes::{Isa, Simd, VectorTask};
//!
//! struct Scaled<'a>(&'a mut [f32; 16], f32);
//!
//! impl VectorTask for Scaled<'_> {
//!     type Output = ();
//!
//!     #[inline(always)]
//!     fn run<S: Simd>(self, s: S) {
//!         s.store16(s.times(s.load16(self.0), self.1), self.0);
//!     }
//! }
//!
//! let mut numbers = [1.5; 16];
//! Isa::best().run(Scaled(&mut numbers, 2.0));
//! assert_eq!(numbers, [3.0; 16]);
//! ```
//!
//! The reasons are in [decision 113](../../docs/decisions/0113-one-trait-for-vectors.md).

#![expect(
    clippy::inline_always,
    reason = "intrinsics are fast only inside a function with the CPU features"
)]

#[macro_use]
mod macros;
mod bytes;
mod isa;
mod numbers;
mod pair;
mod portable;
mod prefetch;
mod simd;
mod widest;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

pub use bytes::{ByteSimd, ByteTask, GroupRows, STEP};
pub use isa::Isa;
pub use numbers::f16_to_f32;
pub use prefetch::{prefetch_to_l1, prefetch_to_l2};
pub use simd::{Simd, SliceTask, VectorTask};

#[cfg(test)]
mod tests;
