//! Rounding functions of ggml's C code on x86-64. Encoded bytes match only if each of them matches.
#![expect(unsafe_code, reason = "a conversion that is vectorized")]

/// Rounds to the nearest integer, ties to even: `nearest_int` of ggml-quants.c.
///
/// The sum's last place is 1, so the adder rounds and the mantissa holds the result. Beyond 2^22 the
/// mantissa holds something else, which is then part of the format's bytes.
#[inline(always)]
pub(super) fn nearest(x: f32) -> i32 {
    ((x + 12_582_912.0).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// Truncates the fraction, as `cvttss2si` does: values out of range become `i32::MIN`.
#[inline(always)]
pub(super) fn cut(x: f32) -> i32 {
    let within = (-2_147_483_648.0..2_147_483_648.0).contains(&x);
    let x = if within { x } else { -2_147_483_648.0 };
    // SAFETY: the number is within the range of i32, so it is not NaN either. The checked conversion is
    // not vectorized.
    unsafe { x.to_int_unchecked() }
}

/// Rounds to the nearest integer, ties away from zero: `(int) roundf(x)`.
///
/// The addend is the largest f32 below one half, so that adding it to itself stays below 1.
#[inline(always)]
pub(super) fn away(x: f32) -> i32 {
    cut(x + 0.499_999_97_f32.copysign(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_even_or_away() {
        for (x, even, far) in [(0.5, 0, 1), (1.5, 2, 2), (2.5, 2, 3), (-0.5, 0, -1), (-2.5, -2, -3)]
        {
            assert_eq!((nearest(x), away(x)), (even, far), "{x}");
        }
    }

    #[test]
    fn away_is_round_for_every_number_near_a_tie() {
        for half in -300..300 {
            let tie = half as f32 * 0.5;
            for bits in tie.to_bits().saturating_sub(3)..=tie.to_bits() + 3 {
                let x = f32::from_bits(bits);
                assert_eq!(away(x), x.round() as i32, "{x}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_the_least_integer() {
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 2_147_483_648.0, -3e9] {
            assert_eq!(cut(x), i32::MIN, "{x}");
        }
        assert_eq!(nearest(f32::NAN), 0);
        assert_eq!(cut(-2.9), -2);
    }
}
