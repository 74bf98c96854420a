//! Scales that map values into the range of a small format.

/// Largest e4m3 value.
pub const F8_E4M3_MAX: f32 = 448.0;

/// Largest e2m1 value.
pub const F4_E2M1_MAX: f32 = 6.0;

/// Returns the scale that maps values up to `peak` to the range of e4m3. It is a valid divisor: 1 for
/// zeros, and never below the smallest normal number.
#[inline]
pub fn f8_e4m3_scale(peak: f32) -> f32 {
    if peak == 0.0 { 1.0 } else { (peak / F8_E4M3_MAX).max(f32::MIN_POSITIVE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_can_be_divided_by() {
        assert_eq!(f8_e4m3_scale(448.0), 1.0);
        assert_eq!(f8_e4m3_scale(0.0), 1.0);
        // 1e-40 / 448 is below the smallest normal number.
        assert_eq!(f8_e4m3_scale(1e-40), f32::MIN_POSITIVE);
    }
}
