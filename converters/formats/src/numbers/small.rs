//! 4-bit values, and power-of-two scales.

/// Magnitudes of the eight E2M1 codes; the fourth bit is the sign.
pub const F4_E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Widens four bits of E2M1; higher bits are ignored.
#[inline]
pub fn f4_e2m1_to_f32(bits: u8) -> f32 {
    let size = F4_E2M1[usize::from(bits & 7)];
    if bits & 8 == 0 { size } else { -size }
}

/// Rounds to four bits of E2M1, ties to even; values beyond 6 become 6. A zero keeps its sign. NaN becomes
/// 6: the format has none.
#[inline]
pub fn f32_to_f4_e2m1(value: f32) -> u8 {
    let size = value.abs();
    // Each threshold is the midpoint of two magnitudes; a tie goes to the even one.
    let code = u8::from(size > 0.25)
        + u8::from(size >= 0.75)
        + u8::from(size > 1.25)
        + u8::from(size >= 1.75)
        + u8::from(size > 2.5)
        + u8::from(size >= 3.5)
        + u8::from(size > 5.0);
    let code = if size.is_nan() { 7 } else { code };
    code | (u8::from(value.is_sign_negative()) << 3)
}

/// Returns the largest power of two that is not above a positive value, as e8m0 bits. Returns 0 for values
/// below 2^-127 (and for zero), 254 for infinity and NaN.
#[inline]
pub fn f32_to_f8_e8m0_floor(value: f32) -> u8 {
    // A value below 2^-126 has exponent bits of 0, and its power of two is 2^-127 or less.
    ((value.abs().to_bits() >> 23) as u8).min(254)
}

/// Returns the smallest power of two that is not below a positive value.
#[inline]
pub fn ceil_to_power(value: f32) -> f32 {
    let bits = value.to_bits();
    if bits.trailing_zeros() >= 23 || bits < 0x0080_0000 {
        return value.max(f32::MIN_POSITIVE);
    }
    f32::from_bits((bits & 0x7f80_0000) + (1 << 23))
}
