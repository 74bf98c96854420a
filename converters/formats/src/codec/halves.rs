//! Values of 4 bits (E2M1), counted in halves.

use super::layout::each;

/// E2M1 in halves; the sign is the fourth bit, and both zeros are 0.
pub(super) const HALVES: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// Returns the levels whose values are nearest; in a tie, the first.
///
/// A value of the other sign is never nearer than zero, so the magnitudes decide, and the first level of
/// equal distance is the same.
#[inline(always)]
pub(super) fn nearest_halves<const N: usize>(x: &[f32; N], scale: f32) -> [u8; N] {
    let size = each(x, f32::abs);
    let mut least = size;
    let mut best = [0_u32; N];
    for (level, half) in (1..).zip(&HALVES[1..8]) {
        let value = half * scale;
        for n in 0..N {
            let off = (value - size[n]).abs();
            let nearer = off < least[n];
            best[n] = if nearer { level } else { best[n] };
            least[n] = if nearer { off } else { least[n] };
        }
    }
    std::array::from_fn(|n| {
        let sign = u32::from(x[n] < 0.0 && best[n] > 0) << 3;
        (best[n] | sign) as u8
    })
}

/// Returns half of the value of E4M3 bits. The sign bit is ignored, and NaN is 0.
#[inline(always)]
pub(super) fn half_e4m3(bits: u8) -> f32 {
    if bits == 0x7f {
        return 0.0;
    }
    crate::numbers::f8_e4m3_to_f32(bits & 0x7f) * 0.5
}
