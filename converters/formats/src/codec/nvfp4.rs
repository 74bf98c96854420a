//! NVFP4 with a scale for the whole tensor, which ggml's own quantizer omits. Without it, tensors of small
//! values have block scales that E4M3 can hardly distinguish.

use super::declaration::FactorCodec;
use super::halves::{HALVES, half_e4m3, nearest_halves};
use super::layout::{blocks, peak};
use crate::numbers;

pub(super) const FACTORED: FactorCodec = FactorCodec { encode, factor };

/// Magnitudes of E2M1 that the largest value of a group can have, the likeliest first.
const MAGNITUDES: [f32; 7] = [6.0, 4.0, 3.0, 2.0, 1.5, 1.0, 0.5];

/// Upper bound on the relative error of rounding a product and a quotient.
const ROUNDING: f32 = 4e-7;

/// Returns the tensor scale for values up to `peak`: it gives the largest block the largest scale.
fn factor(peak: f32) -> f32 {
    let factor = peak / (numbers::F8_E4M3_MAX * numbers::F4_E2M1_MAX);
    if factor.is_normal() { factor } else { 1.0 }
}

fn encode(numbers: &[f32], factor: f32, out: &mut [u8]) {
    for (x, block) in blocks::<64, 36>(numbers, out) {
        let (scales, bytes) = block.split_at_mut(4);
        let groups = x.as_chunks::<16>().0.iter().zip(bytes.as_chunks_mut::<8>().0);
        for (to, (x, bytes)) in scales.iter_mut().zip(groups) {
            let x = x.map(|x| x / factor);
            *to = scale(&x);
            let half = half_e4m3(*to);
            let levels = nearest_halves(&x, half);
            for (j, byte) in bytes.iter_mut().enumerate() {
                *byte = levels[j] | levels[j + 8] << 4;
            }
        }
    }
}

/// Returns the scale of a group: one that reproduces every value, else the one that maps the largest to 6.
fn scale(x: &[f32; 16]) -> u8 {
    let largest = peak(x).abs();
    if largest == 0.0 {
        return 0;
    }
    let mut scales = MAGNITUDES.iter().map(|magnitude| rounded_scale(largest / magnitude));
    let exact = scales.find(|&scale| reproduces(scale, x));
    // A scale of zero would turn the whole group into zeros.
    exact.unwrap_or_else(|| rounded_scale(largest / 6.0).max(1))
}

/// Returns the E4M3 bits of the nearest scale, without its sign.
fn rounded_scale(x: f32) -> u8 {
    numbers::f32_to_f8_e4m3(x.min(numbers::F8_E4M3_MAX)) & 0x7f
}

/// True if a scale reproduces every value of a group, up to rounding.
fn reproduces(scale: u8, x: &[f32; 16]) -> bool {
    let half = half_e4m3(scale);
    let levels = nearest_halves(x, half);
    half > 0.0
        && x.iter().zip(levels).all(|(&x, level): (&f32, u8)| {
            (HALVES[level as usize] * half - x).abs() <= ROUNDING * x.abs()
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{BlockType, Error, decode, encode_factored};

    fn encode_nvfp4(numbers: &[f32], factor: f32, out: &mut [u8]) -> Result<(), Error> {
        encode_factored(BlockType::Nvfp4, numbers, factor, out)
    }

    fn random(seed: &mut u32) -> u32 {
        *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *seed >> 8
    }

    #[test]
    fn blocks_are_read_and_written_without_loss() {
        let mut seed = 7;
        for factor in [1.0, 3.1e-4, 0.77, 41.0, 1.9e-7] {
            let mut bytes: Vec<u8> = (0..36 * 50).map(|_| random(&mut seed) as u8).collect();
            for block in bytes.chunks_mut(36) {
                // 0x7f is NaN; values below 8 are subnormal, which packers write too.
                block[..4].iter_mut().for_each(|scale| *scale = (*scale & 0x7f).clamp(1, 0x7e));
            }
            let mut numbers = vec![0.0; 64 * 50];
            decode(BlockType::Nvfp4, &bytes, &mut numbers).unwrap();
            for x in &mut numbers {
                *x *= factor;
            }
            let mut again = vec![0; bytes.len()];
            let mut back = vec![0.0; numbers.len()];
            encode_nvfp4(&numbers, factor, &mut again).unwrap();
            decode(BlockType::Nvfp4, &again, &mut back).unwrap();
            for x in &mut back {
                *x *= factor;
            }
            assert_eq!(numbers, back, "{factor}");
        }
    }

    #[test]
    fn small_numbers_lose_no_more_than_large_ones() {
        let mut seed = 3;
        let normal: Vec<f32> = (0..6400)
            .map(|_| (0..12).map(|_| (random(&mut seed) as f32) / 16_777_216.0).sum::<f32>() - 6.0)
            .collect();
        for size in [1.0, 2e-2, 2e-3, 1e-6] {
            let numbers: Vec<f32> = normal.iter().map(|x| x * size).collect();
            let factor = factor(numbers.iter().fold(0.0, |largest, x| largest.max(x.abs())));
            let mut bytes = vec![0; 6400 / 64 * 36];
            let mut back = vec![0.0; 6400];
            encode_nvfp4(&numbers, factor, &mut bytes).unwrap();
            decode(BlockType::Nvfp4, &bytes, &mut back).unwrap();
            let off: f64 = numbers.iter().zip(&back).map(|(x, y)| square(y * factor - x)).sum();
            let all: f64 = numbers.iter().map(|x| square(*x)).sum();
            let error = (off / all).sqrt();
            assert!((0.085..0.105).contains(&error), "{size}: {error}");
        }
    }

    fn square(x: f32) -> f64 {
        f64::from(x) * f64::from(x)
    }

    #[test]
    fn what_is_no_number_is_refused_and_zeros_stay() {
        let mut out = [1; 36];
        assert!(encode_nvfp4(&[f32::NAN; 64], 1.0, &mut out).is_err());
        assert!(encode_nvfp4(&[0.0; 63], 1.0, &mut out).is_err());
        encode_nvfp4(&[0.0; 64], factor(0.0), &mut out).unwrap();
        assert_eq!(out, [0; 36]);
    }
}
