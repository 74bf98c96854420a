//! Slices of values that share a scale, in 8 and 4 bits.

use super::{F4_E2M1, f4_e2m1_to_f32, f8_e4m3_to_f32, f32_to_f4_e2m1, f32_to_f8_e4m3};

lanes::widest! {
    /// Returns the largest magnitude; NaN counts as none.
    pub fn largest_magnitude(values: &[f32]) -> f32 = plain_largest;
}

lanes::widest! {
    /// Rounds quotients by a scale to f8 e4m3 bits; both slices have one length.
    pub fn divide_to_f8_e4m3(values: &[f32], scale: f32, out: &mut [u8]) = plain_divide_to_f8;
}

lanes::widest! {
    /// Rounds quotients by a scale to f4 e2m1, two values a byte, the first one low. A scale of zero gives
    /// zeros.
    pub fn divide_to_f4_e2m1(values: &[f32], scale: f32, out: &mut [u8]) = plain_divide_to_f4;
}

lanes::widest! {
    /// Widens f8 e4m3 bits and multiplies them by a scale; both slices have one length.
    pub fn multiply_f8_e4m3(bits: &[u8], scale: f32, out: &mut [f32]) = plain_multiply_f8;
}

lanes::widest! {
    /// Widens pairs of f4 e2m1 and multiplies them by a scale.
    pub fn multiply_f4_e2m1(pairs: &[u8], scale: f32, out: &mut [f32]) = plain_multiply_f4;
}

lanes::widest! {
    /// Returns the sum of squared errors of values that are rounded to f4 e2m1 with a scale, in order.
    pub fn f4_e2m1_error(values: &[f32], scale: f32) -> f64 = plain_f4_error;
}

#[inline(always)]
fn plain_largest(values: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 16];
    let (chunks, remaining) = values.as_chunks::<16>();
    for chunk in chunks {
        for (largest, x) in lanes.iter_mut().zip(chunk) {
            *largest = if x.abs() > *largest { x.abs() } else { *largest };
        }
    }
    remaining.iter().fold(lanes.into_iter().fold(0.0, f32::max), |largest, x| largest.max(x.abs()))
}

#[inline(always)]
fn plain_divide_to_f8(values: &[f32], scale: f32, out: &mut [u8]) {
    for (to, &x) in out.iter_mut().zip(values) {
        *to = f32_to_f8_e4m3(x / scale);
    }
}

#[inline(always)]
fn plain_divide_to_f4(values: &[f32], scale: f32, out: &mut [u8]) {
    if scale == 0.0 {
        return out.fill(0);
    }
    for (to, [low, high]) in out.iter_mut().zip(values.as_chunks::<2>().0) {
        *to = f32_to_f4_e2m1(low / scale) | f32_to_f4_e2m1(high / scale) << 4;
    }
}

#[inline(always)]
fn plain_multiply_f8(bits: &[u8], scale: f32, out: &mut [f32]) {
    for (to, &bits) in out.iter_mut().zip(bits) {
        *to = scale * f8_e4m3_to_f32(bits);
    }
}

#[inline(always)]
fn plain_multiply_f4(pairs: &[u8], scale: f32, out: &mut [f32]) {
    let products: [f32; 16] = std::array::from_fn(|code| {
        let size = F4_E2M1[code & 7];
        scale * if code < 8 { size } else { -size }
    });
    for ([low, high], &pair) in out.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
        (*low, *high) = (products[usize::from(pair & 15)], products[usize::from(pair >> 4)]);
    }
}

#[inline(always)]
fn plain_f4_error(values: &[f32], scale: f32) -> f64 {
    let mut sum = 0.0;
    for values in values.chunks(32) {
        let mut squares = [0.0; 32];
        for (square, &x) in squares.iter_mut().zip(values) {
            let seen = f4_e2m1_to_f32(f32_to_f4_e2m1(x / scale)) * scale;
            let off = f64::from(seen - x);
            *square = off * off;
        }
        for square in &squares[..values.len()] {
            sum += square;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_give_the_bits_of_single_values() {
        let mut seed = 5_u32;
        for count in [0, 2, 16, 34, 1000] {
            for scale in [0.0, 1e-42, 0.013, 1.0, 3e38] {
                let numbers = (0..count).map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    f32::from_bits(seed)
                });
                let mut values: Vec<f32> = numbers.collect();
                for (n, x) in values.iter_mut().enumerate().filter(|(n, _)| n % 3 > 0) {
                    *x = (n as f32 * 0.37).sin() * 7.0 * scale;
                }
                assert_eq!(largest_magnitude(&values), plain_largest(&values));
                let fold = values.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
                assert_eq!(largest_magnitude(&values), fold);
                let mut eight = vec![0; count];
                let mut four = vec![0; count / 2];
                divide_to_f8_e4m3(&values, scale, &mut eight);
                divide_to_f4_e2m1(&values, scale, &mut four);
                let mut wide = vec![0.0; count];
                let mut half = vec![0.0; count];
                multiply_f8_e4m3(&eight, scale, &mut wide);
                multiply_f4_e2m1(&four, scale, &mut half);
                let mut error = 0.0;
                for (n, &x) in values.iter().enumerate() {
                    assert_eq!(eight[n], f32_to_f8_e4m3(x / scale), "{x} of {scale}");
                    let code = if scale == 0.0 { 0 } else { f32_to_f4_e2m1(x / scale) };
                    assert_eq!(four[n / 2] >> (4 * (n % 2)) & 15, code, "{x} of {scale}");
                    assert_eq!(
                        bits_but_nan(wide[n]),
                        bits_but_nan(scale * f8_e4m3_to_f32(eight[n]))
                    );
                    assert_eq!(half[n].to_bits(), (scale * f4_e2m1_to_f32(code)).to_bits());
                    let seen = f4_e2m1_to_f32(f32_to_f4_e2m1(x / scale)) * scale;
                    error += f64::from(seen - x) * f64::from(seen - x);
                }
                let actual = f4_e2m1_error(&values, scale);
                assert!(actual == error || actual.is_nan() && error.is_nan(), "{actual} {error}");
            }
        }
    }

    fn bits_but_nan(x: f32) -> u32 {
        if x.is_nan() { 0 } else { x.to_bits() }
    }
}
