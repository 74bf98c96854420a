//! Rows rounded to e4m3 with a scale each, as engines do before they multiply by weights of 8 bits.

use converters::numbers::{f8_e4m3_scale, f8_e4m3_to_f32, f32_to_f8_e4m3};

/// How rows are rounded to 8 bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rounding {
    /// Each row with a scale of its own.
    Each,
    /// All of them with one scale, which was measured before.
    All(f32),
}

impl Rounding {
    /// Rounds rows of `width` numbers.
    pub fn round(self, width: usize, rows: &mut [f32]) {
        match self {
            Self::Each => round_tokens(width, rows),
            Self::All(scale) => round_all(scale, rows),
        }
    }
}

/// Rounds every row of `width` numbers to e4m3 times the row's scale, and back to f32. A row that
/// is not finite stays so.
pub fn round_tokens(width: usize, rows: &mut [f32]) {
    for row in rows.chunks_exact_mut(width.max(1)) {
        let peak = row.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        if !row.iter().all(|x| x.is_finite()) {
            continue;
        }
        let scale = f8_e4m3_scale(peak);
        for x in row.iter_mut() {
            *x = f8_e4m3_to_f32(f32_to_f8_e4m3(*x / scale)) * scale;
        }
    }
}

/// Rounds numbers to e4m3 times one scale, and back to f32. What is beyond the largest becomes it.
pub fn round_all(scale: f32, rows: &mut [f32]) {
    for x in rows {
        *x = f8_e4m3_to_f32(f32_to_f8_e4m3(*x / scale)) * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_scale_for_all_saturates() {
        let mut rows = [4480.0, -9000.0, 170.0, 0.0, f32::NAN];
        round_all(2.0, &mut rows);
        assert_eq!(rows[..4], [896.0, -896.0, 176.0, 0.0]);
        assert!(rows[4].is_nan());
    }

    #[test]
    fn every_row_has_its_own_scale() {
        let mut rows = [448.0, 17.0, -3.3, 0.0, 4480.0, 170.0, -33.0, 1.0];
        round_tokens(4, &mut rows);
        assert_eq!(rows[..4], [448.0, 16.0, -3.25, 0.0]);
        assert_eq!(rows[4..], [4480.0, 160.0, -32.5, 1.015_625]);
        let mut bad = [f32::NAN, 1.3];
        round_tokens(2, &mut bad);
        assert!(bad[0].is_nan() && bad[1] == 1.3);
        let mut none = [0.0; 3];
        round_tokens(3, &mut none);
        assert_eq!(none, [0.0; 3]);
    }
}
