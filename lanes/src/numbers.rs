//! Scalar forms of conversions.

/// Widens f16 bits.
#[inline]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = ((bits & 0x8000) as u32) << 16;
    let body = ((bits & 0x7fff) as u32) << 13;
    let normal = body + (112 << 23);
    // Puts the mantissa behind 2^-14 and takes 2^-14 away, which normalizes it exactly.
    let tiny = (f32::from_bits(body + (113 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let quiet = if body > 0x0f80_0000 { 0x0040_0000 } else { 0 };
    let special = body | 0x7f80_0000 | quiet;
    let finite = if body < 0x0080_0000 { tiny } else { normal };
    f32::from_bits(sign | if body >= 0x0f80_0000 { special } else { finite })
}
