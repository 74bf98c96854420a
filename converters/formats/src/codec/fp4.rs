//! MXFP4 and NVFP4: values of 4 bits (E2M1), scales of 8.
//!
//! MXFP4: `e` (E8M0) and `qs[16]` as in Q4_0 for 32 values. NVFP4: `d[4]` (E4M3 without sign) for 16 values
//! each, then for each 8 bytes with value `j` low and `j + 8` high. Both count E2M1 in halves, so decoding
//! halves the scale.

use super::declaration::{BlockDeclaration, FileType, ScaleRule};
use super::layout::{blocks, each_block, peak};
use super::nibbles::{join4, split4};
use super::nvfp4;
use super::rounding::cut;

pub(super) const MXFP4: BlockDeclaration = BlockDeclaration {
    levels: Some(|block, to| to.set(half_e8m0(block[0]), &split4(&block[1..]), entry)),
    scales: ScaleRule::Exponent(0),
    error: Some(0.114),
    e2m1: Some(32),
    file_types: &[FileType::new("MXFP4_MOE", 38)],
    encode: Some(|numbers, _, _, out| {
        for (x, block) in blocks::<32, 17>(numbers, out) {
            let e = exponent(peak(x).abs());
            block[0] = e;
            let scale = half_e8m0(e);
            join4(&x.map(|x| nearest_half(x, scale)), &mut block[1..]);
        }
    }),
    decode: Some(|bytes, out| {
        each_block::<17, 32>(bytes, out, |block, out| {
            let scale = half_e8m0(block[0]);
            *out = split4(&block[1..]).map(|q| HALVES[q as usize & 15] * scale);
        });
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
            let (scales, bytes) = block.split_at_mut(4);
            let groups = x.as_chunks::<16>().0.iter().zip(bytes.as_chunks_mut::<8>().0);
            for (to, (x, bytes)) in scales.iter_mut().zip(groups) {
                *to = to_e4m3(peak(x).abs() / 6.0);
                let scale = half_e4m3(*to);
                let levels = x.map(|x| nearest_half(x, scale));
                for (j, byte) in bytes.iter_mut().enumerate() {
                    *byte = levels[j] | levels[j + 8] << 4;
                }
            }
        }
    }),
    decode: Some(|bytes, out| {
        each_block::<36, 64>(bytes, out, |block, out| {
            let (scales, bytes) = block.split_at(4);
            let groups = out.as_chunks_mut::<16>().0.iter_mut().zip(bytes.as_chunks::<8>().0);
            for (&scale, (out, bytes)) in scales.iter().zip(groups) {
                let scale = half_e4m3(scale);
                for (j, byte) in bytes.iter().enumerate() {
                    out[j] = HALVES[*byte as usize & 15] * scale;
                    out[j + 8] = HALVES[*byte as usize >> 4] * scale;
                }
            }
        });
    }),
    ..BlockDeclaration::new("NVFP4", 40, 64, 36)
};

/// E2M1 in halves; the sign is the fourth bit, and both zeros are 0.
pub(super) const HALVES: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// Returns the level whose value is nearest; in a tie, the first.
pub(super) fn nearest_half(x: f32, scale: f32) -> u8 {
    let mut best = 0;
    let mut least = (HALVES[0] * scale - x).abs();
    for (level, half) in HALVES.iter().enumerate().skip(1) {
        let off = (half * scale - x).abs();
        if off < least {
            best = level;
            least = off;
        }
    }
    best as u8
}

/// Returns the block exponent: `floor(log2(max)) - 2`, as a byte with bias 127.
///
/// Below 2^-125 the byte wraps, as in the reference. The byte 255, which encodes NaN and which the
/// reference refuses to write, becomes 0.
fn exponent(max: f32) -> u8 {
    if max <= 0.0 {
        return 0;
    }
    // log2f rounds to f32: slightly below a power of two it returns that power's exponent.
    let log = (max as f64).log2() as f32;
    match cut(log.floor() - 2.0 + 127.0) as u8 {
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

/// Returns half of the value of E4M3 bits. The sign bit is ignored, and NaN is 0.
pub(super) fn half_e4m3(bits: u8) -> f32 {
    if bits == 0x7f {
        return 0.0;
    }
    crate::numbers::f8_e4m3_to_f32(bits & 0x7f) * 0.5
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
}
