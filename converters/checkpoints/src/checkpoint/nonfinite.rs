//! Finds NaN and infinite values in weights.

use std::fmt;

use rayon::prelude::*;

use formats::safetensors::FileDtype;

/// Result of a scan. Displayed, it completes the sentence "tensor `x` has ...".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NonFinite {
    /// Row-major index of the first non-finite value.
    pub first: usize,
    /// Index of the same value per axis.
    pub at: Vec<usize>,
    /// Number of non-finite values.
    pub count: usize,
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => write!(f, "1 number that is NaN or infinite, at {:?}", self.at),
            count => {
                write!(f, "{count} numbers that are NaN or infinite, the first at {:?}", self.at)
            }
        }
    }
}

/// Bytes per task: long enough to amortize its start, and a multiple of every value size.
const SLAB: usize = 1 << 20;

/// Counts the NaN and infinite values; dtypes that have neither give none.
pub(super) fn scan(dtype: FileDtype, shape: &[usize], bytes: &[u8]) -> Option<NonFinite> {
    let (first, count) = match dtype {
        FileDtype::F64 => search(bytes, |b| u64::from_le_bytes(b) << 1 >= 0x7ff << 53),
        FileDtype::F32 => search(bytes, |b| u32::from_le_bytes(b) & 0x7f80_0000 == 0x7f80_0000),
        FileDtype::F16 => search(bytes, |b| u16::from_le_bytes(b) & 0x7c00 == 0x7c00),
        FileDtype::Bf16 => search(bytes, |b| u16::from_le_bytes(b) & 0x7f80 == 0x7f80),
        FileDtype::F8E4m3 => search(bytes, |[b]| b & 0x7f == 0x7f),
        FileDtype::F8E5m2 => search(bytes, |[b]| b & 0x7c == 0x7c),
        FileDtype::F8E8m0 => search(bytes, |[b]| b == 0xff),
        _ => None,
    }?;
    let mut index = first;
    let mut at = vec![0; shape.len()];
    for (at, &dim) in at.iter_mut().zip(shape).rev() {
        // A tensor that contains a value has no axis of length zero.
        (*at, index) = (index % dim.max(1), index / dim.max(1));
    }
    Some(NonFinite { first, at, count })
}

/// Returns the index of the first non-finite value and their number.
fn search<const N: usize>(
    bytes: &[u8],
    bad: impl Fn([u8; N]) -> bool + Sync,
) -> Option<(usize, usize)> {
    let counts: Vec<usize> = bytes.par_chunks(SLAB).map(|slab| count_bad(slab, &bad)).collect();
    let slab = counts.iter().position(|&count| count > 0)?;
    let begin = slab * SLAB;
    let (chunks, _) = bytes[begin..].as_chunks::<N>();
    let inside = chunks.iter().position(|&b| bad(b))?;
    let before = bytes[..begin].as_chunks::<N>().0.len();
    Some((before + inside, counts.iter().sum()))
}

/// Returns the number of non-finite values.
fn count_bad<const N: usize>(bytes: &[u8], bad: &impl Fn([u8; N]) -> bool) -> usize {
    // The sums are small integers, so that the compiler vectorizes the count.
    let (chunks, _) = bytes.as_chunks::<N>();
    let pieces = chunks.chunks(128);
    pieces.map(|piece| piece.iter().map(|&b| u8::from(bad(b))).sum::<u8>() as usize).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_is_judged_as_its_value_is() {
        for bits in 0..=u16::MAX {
            let bytes = bits.to_le_bytes();
            assert_eq!(
                scan(FileDtype::F16, &[], &bytes).is_some(),
                !half::f16::from_bits(bits).is_finite()
            );
            assert_eq!(
                scan(FileDtype::Bf16, &[], &bytes).is_some(),
                !half::bf16::from_bits(bits).is_finite()
            );
        }
        for value in [0.0, 1.0, f64::MAX, f64::NAN, f64::INFINITY, -f64::INFINITY, -f64::NAN] {
            assert_eq!(
                scan(FileDtype::F64, &[], &value.to_le_bytes()).is_some(),
                !value.is_finite()
            );
            let single = (value as f32).to_le_bytes();
            assert_eq!(scan(FileDtype::F32, &[], &single).is_some(), !(value as f32).is_finite());
        }
        assert_eq!(scan(FileDtype::I32, &[], &[0xff; 4]), None);
    }

    #[test]
    fn the_first_of_many_is_found_across_slabs() {
        let mut bytes = vec![0; 3 * SLAB + 6];
        assert_eq!(scan(FileDtype::Bf16, &[bytes.len() / 4, 2], &bytes), None);
        let numbers = bytes.len() / 2;
        for index in [SLAB + 5, SLAB + 6, numbers - 1] {
            bytes[2 * index..2 * index + 2].copy_from_slice(&0x7fc0_u16.to_le_bytes());
        }
        let nonfinite = scan(FileDtype::Bf16, &[bytes.len() / 4, 2], &bytes).unwrap();
        assert_eq!(nonfinite, NonFinite { first: SLAB + 5, at: vec![SLAB / 2 + 2, 1], count: 3 });
    }
}
