//! Rows rounded to codes of few bits with a scale, and back, as engines do before they multiply by
//! weights that are codes too.
//!
//! The order of operations is that of compressed-tensors (`compute_dynamic_scales_and_zp` and
//! `calculate_qparams` in `quantization/utils/helpers.py`, `_quantize_dequantize` in
//! `quantization/lifecycle/forward_helpers.py`), in the dtype of the run: every result is rounded
//! to its grid, as torch rounds it.
//!
//! A run rounds as its reference did ([decision 33](../../../docs/decisions/0033-activation-rounding.md)).

use checkpoints::checkpoint::{CodeType, Rounding, ScaleSharing};
use formats::numbers::{f8_e4m3_to_f32, f32_to_f8_e4m3};
use registry::dtype::Dtype;

use super::round::{round, round1};

/// The largest number of e4m3.
const E4M3_MOST: f32 = 448.0;

/// Rounds rows of `width` numbers. Numbers that share a scale with one that is not finite stay as
/// they are.
pub fn round_rows(how: Rounding, dtype: Dtype, width: usize, rows: &mut [f32]) {
    let width = width.max(1);
    if let CodeType::Float(narrow) = how.codes {
        return round(narrow, rows);
    }
    match how.shared {
        ScaleSharing::Row => {
            rows.chunks_mut(width).for_each(|row| by_its_own(how.codes, dtype, row));
        }
        ScaleSharing::Group(size) => {
            for row in rows.chunks_mut(width) {
                row.chunks_mut(size.max(1)).for_each(|group| by_its_own(how.codes, dtype, group));
            }
        }
        ScaleSharing::Fixed { scale, zero } => {
            round_with(how.codes, dtype, round1(dtype, scale), zero, rows);
        }
    }
}

/// Rounds numbers with the scale that follows from them.
fn by_its_own(codes: CodeType, dtype: Dtype, numbers: &mut [f32]) {
    if !numbers.iter().all(|x| x.is_finite()) {
        return;
    }
    let mut low = 0.0_f32;
    let mut high = 0.0_f32;
    for x in &*numbers {
        (low, high) = (low.min(*x), high.max(*x));
    }
    let (least, largest) = ends(codes);
    let (scale, zero) = if let CodeType::Integer { symmetric: false, .. } = codes {
        let scale = round1(dtype, round1(dtype, high - low) / (largest - least));
        let zero = round1(dtype, least - round1(dtype, low / scale)).clamp(least, largest);
        // For a row of zeros the quotient is NaN, and any zero point will do.
        (nonzero(scale, dtype), if zero.is_nan() { 0.0 } else { zero.round_ties_even() })
    } else {
        let scale = round1(dtype, high.max(-low) / ((largest - least) / 2.0));
        (nonzero(scale, dtype), 0.0)
    };
    round_with(codes, dtype, scale, zero, numbers);
}

/// Returns the scale, or the replacement for a scale of 0.
fn nonzero(scale: f32, dtype: Dtype) -> f32 {
    if scale == 0.0 { epsilon(dtype) } else { scale }
}

/// Rounds numbers with a scale, and a code for 0. What is beyond the ends becomes one of them.
fn round_with(codes: CodeType, dtype: Dtype, scale: f32, zero: f32, numbers: &mut [f32]) {
    let (least, largest) = ends(codes);
    for x in numbers {
        let scaled = round1(dtype, round1(dtype, *x / scale) + zero).clamp(least, largest);
        let code = match codes {
            CodeType::E4m3 => f8_e4m3_to_f32(f32_to_f8_e4m3(scaled)),
            CodeType::Integer { .. } => scaled.round_ties_even(),
            CodeType::Float(narrow) => round1(narrow, scaled),
        };
        *x = round1(dtype, (code - zero) * scale);
    }
}

/// Returns the least and the largest code (`calculate_range`).
pub(crate) fn ends(codes: CodeType) -> (f32, f32) {
    match codes {
        CodeType::E4m3 => (-E4M3_MOST, E4M3_MOST),
        CodeType::Integer { bits, .. } => {
            let half = (1_u32 << (bits.clamp(1, 8) - 1)) as f32;
            (-half, half - 1.0)
        }
        CodeType::Float(_) => (f32::NEG_INFINITY, f32::INFINITY),
    }
}

/// Returns the replacement for a scale of 0: `torch.finfo(dtype).eps`.
pub(crate) fn epsilon(dtype: Dtype) -> f32 {
    match dtype {
        Dtype::F32 => f32::EPSILON,
        Dtype::Bf16 => 0.007_812_5,
        Dtype::F16 => 0.000_976_562_5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(how: Rounding, dtype: Dtype, width: usize, rows: &[f32]) -> Vec<f32> {
        let mut rows = rows.to_vec();
        round_rows(how, dtype, width, &mut rows);
        rows
    }

    fn whole(bits: u32, symmetric: bool, shared: ScaleSharing) -> Rounding {
        Rounding { codes: CodeType::Integer { bits, symmetric }, shared }
    }

    #[test]
    fn one_scale_for_all_saturates() {
        let how = Rounding {
            codes: CodeType::E4m3,
            shared: ScaleSharing::Fixed { scale: 2.0, zero: 0.0 },
        };
        let rows = rounded(how, Dtype::F32, 5, &[4480.0, -9000.0, 170.0, 0.0, f32::NAN]);
        assert_eq!(rows[..4], [896.0, -896.0, 176.0, 0.0]);
        assert!(rows[4].is_nan());
        let how = whole(8, false, ScaleSharing::Fixed { scale: 0.5, zero: -100.0 });
        let rows = rounded(how, Dtype::F32, 4, &[0.0, 0.74, -90.0, 200.0]);
        assert_eq!(rows, [0.0, 0.5, -14.0, 113.5]);
    }

    #[test]
    fn every_row_has_its_own_scale() {
        let how = Rounding { codes: CodeType::E4m3, shared: ScaleSharing::Row };
        let rows = [448.0, 17.0, -3.3, 0.0, 4480.0, 170.0, -33.0, 1.0];
        let rows = rounded(how, Dtype::F32, 4, &rows);
        assert_eq!(rows[..4], [448.0, 16.0, -3.25, 0.0]);
        assert_eq!(rows[4..], [4480.0, 160.0, -32.5, 1.015_625]);
        let bad = rounded(how, Dtype::F32, 2, &[f32::NAN, 1.3]);
        assert!(bad[0].is_nan() && bad[1] == 1.3);
        assert_eq!(rounded(how, Dtype::F32, 3, &[0.0; 3]), [0.0; 3]);
    }

    #[test]
    fn whole_numbers_are_steps_of_a_scale() {
        // A step is 1: the largest is half a step beyond the last code.
        let symmetric = whole(8, true, ScaleSharing::Row);
        let rows = rounded(symmetric, Dtype::F32, 4, &[127.5, 0.5, -1.5, 2.51]);
        assert_eq!(rows, [127.0, 0.0, -2.0, 3.0]);
        assert_eq!(rounded(symmetric, Dtype::F32, 2, &[-127.5, 1.0]), [-128.0, 1.0]);
        // From -51 to 204 is 255 steps, and 0 is 51 above the least code.
        let asymmetric = whole(8, false, ScaleSharing::Row);
        let rows = rounded(asymmetric, Dtype::F32, 4, &[-51.0, 204.0, 3.4, 0.0]);
        assert_eq!(rows, [-51.0, 204.0, 3.0, 0.0]);
        // 0 is a number of every row, whatever its least is.
        assert_eq!(rounded(asymmetric, Dtype::F32, 2, &[255.0, 100.2]), [255.0, 100.0]);
        assert_eq!(rounded(asymmetric, Dtype::F32, 2, &[0.0; 2]), [0.0; 2]);
        let halves = Rounding { codes: CodeType::Float(Dtype::F16), shared: ScaleSharing::Row };
        // The least f16 is 2^-24.
        assert_eq!(
            rounded(halves, Dtype::F32, 3, &[1.000_3, 5e-8, 2e-8]),
            [1.0, 2.0_f32.powi(-24), 0.0]
        );
        let four = whole(4, true, ScaleSharing::Group(2));
        let rows = rounded(four, Dtype::F32, 4, &[7.5, 1.2, 75.0, 12.0]);
        assert_eq!(rows, [7.0, 1.0, 70.0, 10.0]);
    }

    #[test]
    fn runs_of_16_bits_round_every_step() {
        // torch: x = torch.tensor([[[1.0, 0.3359375, -0.7109375]]], dtype=torch.bfloat16) through
        // `fake_quantize` with scales of `compute_dynamic_scales_and_zp`.
        let rows = [1.0, 0.335_937_5, -0.710_937_5];
        let symmetric = rounded(whole(8, true, ScaleSharing::Row), Dtype::Bf16, 3, &rows);
        assert_eq!(symmetric, [1.0, 173.0 / 512.0, -0.707_031_25]);
        let asymmetric = rounded(whole(8, false, ScaleSharing::Row), Dtype::Bf16, 3, &rows);
        assert_eq!(asymmetric, [1.0, 0.335_937_5, -0.710_937_5]);
    }
}
