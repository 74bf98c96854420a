//! MXFP4 and NVFP4: values of 4 bits (E2M1), scales of 8.
//!
//! MXFP4: `e` (E8M0) and `qs[16]` as in Q4_0 for 32 values. NVFP4: `d[4]` (E4M3 without sign) for 16 values
//! each, then for each 8 bytes with value `j` low and `j + 8` high. Both count E2M1 in halves, so decoding
//! halves the scale.

use super::by_peak::{ByPeak, PeakFormat, by_peak};
use super::declaration::{BlockDeclaration, FileType, ScaleRule};
use super::halves::{HALVES, half_e4m3, nearest_halves};
use super::layout::{blocks, peak};
use super::nibbles::{join4, split4, values4};
use super::nvfp4;
use super::rounding::cut;
use super::simd::{self, Groups, SimdEncoder};

pub(super) const MXFP4: BlockDeclaration = BlockDeclaration {
    levels: Some(|block, to| to.set(half_e8m0(block[0]), &split4(&block[1..]), entry)),
    scales: ScaleRule::Exponent(0),
    error: Some(0.114),
    e2m1: Some(32),
    file_types: &[FileType::new("MXFP4_MOE", 38)],
    encode: Some(by_peak::<Mxfp4Blocks, 32, 17>),
    wide: Some(simd::encoder::<ByPeak<Mxfp4Blocks, 32, 17>>),
    decode: vectors!(17, 32, |ops, block, out| {
        let scale = half_e8m0(block[0]);
        values4(ops, ops.times(ops.load16(&HALVES), scale), &block[1..], out);
    }),
    ..BlockDeclaration::new("MXFP4", 39, 32, 17)
};

pub(super) const NVFP4: BlockDeclaration = BlockDeclaration {
    error: Some(0.0949),
    e2m1: Some(16),
    factored: Some(nvfp4::FACTORED),
    file_types: &[FileType::kept("NVFP4", 39)],
    encode: Some(|numbers, _, _, out| {
        for (x, block) in blocks::<64, 36>(numbers, out) {
            for (j, x) in x.as_chunks().0.iter().enumerate() {
                pack_group(x, j, peak(x), block);
            }
        }
    }),
    wide: Some(simd::encoder::<Nvfp4Lanes>),
    decode: vectors!(36, 64, |ops, block, out| {
        let (scales, bytes) = block.split_at(4);
        // The bytes of two groups are looked up at once.
        let scales = scales.as_chunks::<2>().0;
        let bytes = bytes.as_chunks::<16>().0;
        let halves = ops.load16(&HALVES);
        for (bytes, &scales) in bytes.iter().zip(scales) {
            let mut looked_up = [[0.0; 16]; 2];
            for (values, to) in ops.lookup4([halves; 2], bytes).into_iter().zip(&mut looked_up) {
                ops.store16(values, to);
            }
            for (n, scale) in scales.into_iter().enumerate() {
                let mut values = [0.0; 16];
                for (values, from) in values.as_chunks_mut::<8>().0.iter_mut().zip(&looked_up) {
                    *values = from.as_chunks().0[n];
                }
                out.push(ops.times(ops.load16(&values), half_e4m3(scale)));
            }
        }
    }),
    ..BlockDeclaration::new("NVFP4", 40, 64, 36)
};

struct Mxfp4Blocks;

impl PeakFormat<32, 17> for Mxfp4Blocks {
    #[inline(always)]
    fn pack(x: &[f32; 32], peak: f32, block: &mut [u8; 17]) {
        block[0] = exponent(peak.abs());
        join4(&nearest_halves(x, half_e8m0(block[0])), &mut block[1..]);
    }
}

/// Vectorized encoder of NVFP4, with a group of 16 values per lane.
pub(super) struct Nvfp4Lanes;

impl SimdEncoder for Nvfp4Lanes {
    #[inline(always)]
    fn encode<S: Groups>(
        s: S,
        numbers: &[f32],
        _row: usize,
        _importance: Option<&[f32]>,
        out: &mut [u8],
    ) {
        let runs = numbers.chunks(16 * S::LANES).zip(out.chunks_mut(S::LANES / 4 * 36));
        for (numbers, out) in runs {
            let peaks = s.peaks::<16>(numbers.as_chunks().0);
            for (n, (x, block)) in blocks::<64, 36>(numbers, out).enumerate() {
                for (j, x) in x.as_chunks().0.iter().enumerate() {
                    pack_group(x, j, peaks[4 * n + j], block);
                }
            }
        }
    }
}

/// Packs group `j` of a block of NVFP4.
#[inline(always)]
fn pack_group(x: &[f32; 16], j: usize, peak: f32, block: &mut [u8; 36]) {
    block[j] = to_e4m3(peak.abs() / 6.0);
    let levels = nearest_halves(x, half_e4m3(block[j]));
    for (k, byte) in block[4 + 8 * j..][..8].iter_mut().enumerate() {
        *byte = levels[k] | levels[k + 8] << 4;
    }
}

/// Returns the block exponent: `floor(log2(max)) - 2`, as a byte with bias 127.
///
/// Below 2^-125 the byte wraps, as in the reference. The byte 255, which encodes NaN and which the
/// reference refuses to write, becomes 0.
fn exponent(max: f32) -> u8 {
    if max <= 0.0 {
        return 0;
    }
    let bits = max.to_bits();
    // The logarithm is rounded to f32: slightly below a power of two it is that power's exponent. At 128
    // the rounding reaches 2^-18 down, far less than the 2^-15 below which no logarithm is taken.
    let floor = if max.is_normal() && bits & 0x007f_ffff < 0x007f_ff00 {
        (bits >> 23) as i32 - 127
    } else {
        cut(((max as f64).log2() as f32).floor())
    };
    match (floor - 2 + 127) as u8 {
        255 => 0,
        e => e,
    }
}

/// Returns `2^(e - 128)`.
pub(super) fn half_e8m0(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e as u32 - 1) << 23 })
}

/// Returns the integer that a level encodes, in halves.
pub(super) fn entry(level: u8) -> i8 {
    HALVES[level as usize & 15] as i8
}

/// Rounds to E4M3 without sign by the first dropped bit alone (`ggml_fp32_to_ue4m3`). From 256 on
/// it is the largest, 448.
fn to_e4m3(x: f32) -> u8 {
    if x.is_nan() || x <= 0.0 {
        return 0;
    }
    let bits = x.min(crate::numbers::F8_E4M3_MAX).to_bits();
    let exponent = (bits >> 23) as i32 - 120;
    if exponent <= 0 {
        return cut(x * 512.0 + 0.5).min(7) as u8;
    }
    // A carry out of the mantissa raises the exponent.
    let rounded = ((exponent as u32) << 3 | (bits >> 20 & 7)) + (bits >> 19 & 1);
    if rounded < 15 << 3 { rounded as u8 } else { 0x7e }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_round_as_the_reference_does() {
        let cases = [
            (f32::NAN, 0),
            (-1.0, 0),
            (0.000_976, 0),
            (0.000_977, 1),
            (0.0156, 7),
            (0.015_625, 8),
            (1.0, 0x38),
            (1.0625, 0x39),
            (1.1874, 0x39),
            (247.9, 0x77),
            (248.0, 0x7e),
            (300.0, 0x7e),
            (1e30, 0x7e),
        ];
        for (x, bits) in cases {
            assert_eq!(to_e4m3(x), bits, "{x}");
        }
    }

    #[test]
    fn exponents_never_stand_for_nan() {
        assert_eq!((exponent(0.0), exponent(1.0), exponent(6.0)), (0, 125, 127));
        assert_eq!((exponent(3.999_999_5), exponent(15.999_999)), (126, 129), "log2f rounds up");
        assert_eq!((exponent(1.5e-38), exponent(2.4e-38), exponent(1e-45)), (0, 0, 232));
    }

    #[test]
    fn exponents_are_those_of_the_rounded_logarithm() {
        for power in 1..255_u32 {
            let edge = power << 23;
            let near = (edge - 600..edge + 600).chain((edge..edge + (1 << 23)).step_by(99_991));
            for max in near.map(f32::from_bits) {
                assert_eq!(exponent(max), reference_exponent(max), "{max:e}");
            }
        }
    }

    fn reference_exponent(max: f32) -> u8 {
        match cut(((max as f64).log2() as f32).floor() - 2.0 + 127.0) as u8 {
            255 => 0,
            e => e,
        }
    }

    #[test]
    fn the_nearest_level_is_the_first_of_all() {
        for scale in [0.0_f32, 1e-45, 1e-40, 0.37, 0.5, 1.0, 3.3e37] {
            for n in -2000..=2000 {
                let x = n as f32 * scale.max(1e-40) / 150.0;
                assert_eq!(
                    nearest_halves(&[x; 3], scale),
                    [reference_level(x, scale); 3],
                    "{x} of {scale}"
                );
            }
            for x in [f32::MAX, f32::MIN, -0.0, 1e-45] {
                assert_eq!(
                    nearest_halves(&[x], scale),
                    [reference_level(x, scale)],
                    "{x} of {scale}"
                );
            }
        }
    }

    fn reference_level(x: f32, scale: f32) -> u8 {
        let off = HALVES.map(|half| (half * scale - x).abs());
        (0..16).fold(0, |best, level| if off[level] < off[best] { level } else { best }) as u8
    }
}
