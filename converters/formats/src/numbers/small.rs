//! Numbers of four bits, and scales that are powers of two.

/// What the eight sizes of E2M1 stand for; the fourth bit is the sign.
pub const F4_E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Widens four bits of E2M1; higher bits are not looked at.
#[inline]
pub fn f4_e2m1_to_f32(bits: u8) -> f32 {
    let size = F4_E2M1[usize::from(bits & 7)];
    if bits & 8 == 0 { size } else { -size }
}

/// Rounds to four bits of E2M1, ties to even; what is beyond 6 becomes 6. A zero keeps its sign,
/// NaN becomes 6: the format has none.
#[inline]
pub fn f32_to_f4_e2m1(value: f32) -> u8 {
    let size = value.abs();
    // Each border is a number between two sizes; on it the even one of the two wins.
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

/// The largest power of two that is not above a positive number, as e8m0 bits; 0 for what is
/// below 2^-127 (and for zero), 254 for infinity and NaN.
#[inline]
pub fn f32_to_f8_e8m0_floor(value: f32) -> u8 {
    // A number below 2^-126 has no exponent of its own, and its power is 2^-127 or less.
    ((value.abs().to_bits() >> 23) as u8).min(254)
}

/// The smallest power of two that is not below a positive number.
#[inline]
pub fn ceil_to_power(value: f32) -> f32 {
    let bits = value.to_bits();
    if bits.trailing_zeros() >= 23 || bits < 0x0080_0000 {
        return value.max(f32::MIN_POSITIVE);
    }
    f32::from_bits((bits & 0x7f80_0000) + (1 << 23))
}
