//! Conversions between number formats: of single values, and of slices.
//!
//! Rounding is to nearest, ties to even, everywhere. Behaviour beyond a format's range differs:
//!
//! | format | largest | beyond | NaN |
//! |---|---|---|---|
//! | bf16 | 3.39e38 | infinity | quiet NaN, sign and high payload kept |
//! | f16 | 65504 | infinity (from 65520 on) | quiet NaN, sign and high payload kept |
//! | f8 e4m3 | 448 | **448**: the format has no infinity | NaN, sign kept |
//! | f4 e2m1 | 6 | **6** | 6, the format has no NaN |
//!
//! The functions on one value are the reference. They have no branches, so the compiler can vectorize the
//! loops over them.

#![expect(clippy::inline_always, reason = "compiled again where the CPU has wide vectors")]

use rayon::prelude::*;

use crate::safetensors::FileDtype;

mod checksum;
mod scale;
mod scaled;
mod small;

pub use checksum::checksum;
pub use lanes::f16_to_f32;
pub use scale::{F4_E2M1_MAX, F8_E4M3_MAX, f8_e4m3_scale};
pub use scaled::{
    divide_to_f4_e2m1, divide_to_f8_e4m3, f4_e2m1_error, largest_magnitude, multiply_f4_e2m1,
    multiply_f8_e4m3,
};
pub use small::{F4_E2M1, ceil_to_power, f4_e2m1_to_f32, f32_to_f4_e2m1, f32_to_f8_e8m0_floor};

/// Reason why values cannot be converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message says what each field is")]
pub enum Error {
    #[error("numbers of dtype `{dtype}` cannot be read as f32; expected a floating-point dtype")]
    NotFloat { dtype: FileDtype },
    #[error("f32 cannot be rounded to `{dtype}` here; expected F32, F16, BF16 or F8_E4M3")]
    NotWritten { dtype: FileDtype },
    #[error("{found} bytes do not hold {expected} numbers of dtype `{dtype}`")]
    Length { dtype: FileDtype, found: usize, expected: usize },
}

/// Widens bf16 bits.
#[inline]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Rounds to bf16 bits.
#[inline]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    // Half of the last kept place, less one if that place is even: ties go to even.
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let nan = (bits >> 16) | 0x0040;
    (if value.is_nan() { nan } else { rounded }) as u16
}

/// Rounds to f16 bits.
#[inline]
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let body = bits & 0x7fff_ffff;
    let normal = body.wrapping_sub(112 << 23).wrapping_add(0xfff + ((body >> 13) & 1)) >> 13;
    // Adding 0.5 leaves f16's subnormal steps (2^-24) as the sum's last place: the adder rounds.
    let tiny = (f32::from_bits(body) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let nan = 0x7e00 | ((body >> 13) & 0x3ff);
    let special = if body > 0x7f80_0000 { nan } else { 0x7c00 };
    let finite = if body < 113 << 23 { tiny } else { normal };
    (sign | if body >= 143 << 23 { special } else { finite }) as u16
}

/// Widens f8 e4m3 bits.
#[inline]
pub fn f8_e4m3_to_f32(bits: u8) -> f32 {
    let sign = ((bits & 0x80) as u32) << 24;
    let body = ((bits & 0x7f) as u32) << 20;
    let normal = body + (120 << 23);
    let tiny = (f32::from_bits(body + (121 << 23)) - f32::from_bits(121 << 23)).to_bits();
    let finite = if body < 0x0080_0000 { tiny } else { normal };
    f32::from_bits(sign | if bits & 0x7f == 0x7f { 0x7fc0_0000 } else { finite })
}

/// Rounds to f8 e4m3 bits; values beyond 448 and infinities become 448.
#[inline]
pub fn f32_to_f8_e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    let sign = (bits >> 24) & 0x80;
    let body = bits & 0x7fff_ffff;
    let normal = body.wrapping_sub(120 << 23).wrapping_add(0x7_ffff + ((body >> 20) & 1)) >> 20;
    // As in `f32_to_f16`: subnormal steps are 2^-9, the last place of numbers from 2^14 on.
    let tiny = (f32::from_bits(body) + 16384.0).to_bits().wrapping_sub(16384.0_f32.to_bits());
    let finite = if body < 121 << 23 { tiny } else { normal };
    let bounded = if body >= F8_E4M3_MAX.to_bits() { 0x7e } else { finite };
    (sign | if body > 0x7f80_0000 { 0x7f } else { bounded }) as u8
}

/// Widens f8 e5m2 bits, which are the high half of f16.
#[inline]
pub fn f8_e5m2_to_f32(bits: u8) -> f32 {
    f16_to_f32((bits as u16) << 8)
}

/// Widens f8 e8m0 bits: `2^(bits - 127)`, NaN for 255.
#[inline]
pub fn f8_e8m0_to_f32(bits: u8) -> f32 {
    match bits {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits((bits as u32) << 23),
    }
}

lanes::widest! {
    /// Returns the index of the first value that is not finite.
    pub fn first_not_finite(numbers: &[f32]) -> Option<usize> = plain_first_not_finite;
}

#[inline(always)]
fn plain_first_not_finite(numbers: &[f32]) -> Option<usize> {
    const CHUNK: usize = 256;
    // Whole chunks are checked without branches, so that the compiler can use vectors.
    let chunk = numbers
        .chunks(CHUNK)
        .position(|chunk| !chunk.iter().fold(true, |all, x| all & x.is_finite()))?;
    let from = CHUNK * chunk;
    numbers[from..].iter().position(|x| !x.is_finite()).map(|at| from + at)
}

/// Values per parallel task.
const SLAB: usize = 1 << 18;

/// Widens the bytes of a tensor, on all threads if it is long. f64 is rounded to nearest.
pub fn to_f32(dtype: FileDtype, bytes: &[u8], out: &mut [f32]) -> Result<(), Error> {
    if !dtype.is_float() {
        return Err(Error::NotFloat { dtype });
    }
    let size = dtype.size();
    if out.len().checked_mul(size) != Some(bytes.len()) {
        return Err(Error::Length { dtype, found: bytes.len(), expected: out.len() });
    }
    if out.len() <= SLAB {
        widen(dtype, bytes, out);
    } else {
        let slabs = out.par_chunks_mut(SLAB).zip(bytes.par_chunks(SLAB * size));
        slabs.for_each(|(out, bytes)| widen(dtype, bytes, out));
    }
    Ok(())
}

/// Rounds to a tensor's bytes, on all threads if it is long.
pub fn from_f32(dtype: FileDtype, values: &[f32], out: &mut [u8]) -> Result<(), Error> {
    use FileDtype::{Bf16, F8E4m3, F16, F32};
    if !matches!(dtype, F32 | F16 | Bf16 | F8E4m3) {
        return Err(Error::NotWritten { dtype });
    }
    let size = dtype.size();
    if values.len().checked_mul(size) != Some(out.len()) {
        return Err(Error::Length { dtype, found: out.len(), expected: values.len() });
    }
    if values.len() <= SLAB {
        narrow(dtype, values, out);
    } else {
        let slabs = out.par_chunks_mut(SLAB * size).zip(values.par_chunks(SLAB));
        slabs.for_each(|(out, values)| narrow(dtype, values, out));
    }
    Ok(())
}

/// Widens bf16 bits; both slices have one length.
pub fn widen_bf16(bits: &[u16], out: &mut [f32]) {
    out.iter_mut().zip(bits).for_each(|(out, &bits)| *out = bf16_to_f32(bits));
}

/// Widens f16 bits; both slices have one length.
pub fn widen_f16(bits: &[u16], out: &mut [f32]) {
    out.iter_mut().zip(bits).for_each(|(out, &bits)| *out = f16_to_f32(bits));
}

/// Rounds to bf16 bits; both slices have one length.
pub fn round_bf16(values: &[f32], out: &mut [u16]) {
    out.iter_mut().zip(values).for_each(|(out, &value)| *out = f32_to_bf16(value));
}

/// Rounds to f16 bits; both slices have one length.
pub fn round_f16(values: &[f32], out: &mut [u16]) {
    out.iter_mut().zip(values).for_each(|(out, &value)| *out = f32_to_f16(value));
}

lanes::widest! {
    /// Widens on this thread; dtype and lengths are the caller's care.
    pub fn widen(dtype: FileDtype, bytes: &[u8], out: &mut [f32]) = plain_widen;
}

#[inline(always)]
fn plain_widen(dtype: FileDtype, bytes: &[u8], out: &mut [f32]) {
    #[inline(always)]
    fn each<const N: usize>(bytes: &[u8], out: &mut [f32], one: impl Fn([u8; N]) -> f32) {
        let (chunks, _) = bytes.as_chunks::<N>();
        out.iter_mut().zip(chunks).for_each(|(out, &chunk)| *out = one(chunk));
    }
    match dtype {
        FileDtype::F64 => each(bytes, out, |b| f64::from_le_bytes(b) as f32),
        FileDtype::F32 => each(bytes, out, f32::from_le_bytes),
        FileDtype::F16 => each(bytes, out, |b| f16_to_f32(u16::from_le_bytes(b))),
        FileDtype::Bf16 => each(bytes, out, |b| bf16_to_f32(u16::from_le_bytes(b))),
        FileDtype::F8E4m3 => each(bytes, out, |[b]| f8_e4m3_to_f32(b)),
        FileDtype::F8E5m2 => each(bytes, out, |[b]| f8_e5m2_to_f32(b)),
        FileDtype::F8E8m0 => each(bytes, out, |[b]| f8_e8m0_to_f32(b)),
        FileDtype::I64 => each(bytes, out, |b| i64::from_le_bytes(b) as f32),
        FileDtype::I32 => each(bytes, out, |b| i32::from_le_bytes(b) as f32),
        _ => unreachable!("callers have asked `is_float`"),
    }
}

fn narrow(dtype: FileDtype, values: &[f32], out: &mut [u8]) {
    fn each<const N: usize>(values: &[f32], out: &mut [u8], one: impl Fn(f32) -> [u8; N]) {
        let (chunks, _) = out.as_chunks_mut::<N>();
        chunks.iter_mut().zip(values).for_each(|(chunk, &value)| *chunk = one(value));
    }
    match dtype {
        FileDtype::F32 => each(values, out, f32::to_le_bytes),
        FileDtype::F16 => each(values, out, |v| f32_to_f16(v).to_le_bytes()),
        FileDtype::Bf16 => each(values, out, |v| f32_to_bf16(v).to_le_bytes()),
        FileDtype::F8E4m3 => each(values, out, |v| [f32_to_f8_e4m3(v)]),
        _ => unreachable!("callers have asked"),
    }
}

#[cfg(test)]
mod tests;
