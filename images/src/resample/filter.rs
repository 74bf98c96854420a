//! Filters of resampling.

use std::f64::consts::PI;

/// A filter, by its name in Pillow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResampleFilter {
    /// The nearest pixel.
    Nearest,
    /// The mean of the covered pixels.
    Box,
    /// A triangle.
    Bilinear,
    /// A raised cosine.
    Hamming,
    /// A cubic with the parameter -0.5.
    Bicubic,
    /// A sinc in three lobes.
    Lanczos,
}

impl ResampleFilter {
    /// Returns the filter of a number in `preprocessor_config.json`, as `PIL.Image.Resampling` counts.
    pub fn numbered(number: i64) -> Option<Self> {
        Some(match number {
            0 => Self::Nearest,
            1 => Self::Lanczos,
            2 => Self::Bilinear,
            3 => Self::Bicubic,
            4 => Self::Box,
            5 => Self::Hamming,
            _ => return None,
        })
    }

    /// Returns the name in Pillow.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nearest => "nearest",
            Self::Box => "box",
            Self::Bilinear => "bilinear",
            Self::Hamming => "hamming",
            Self::Bicubic => "bicubic",
            Self::Lanczos => "lanczos",
        }
    }

    /// Returns the distance from which weights are zero.
    pub(super) fn support(self) -> f64 {
        match self {
            Self::Nearest | Self::Box => 0.5,
            Self::Bilinear | Self::Hamming => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    /// Returns the weight at a distance.
    pub(super) fn weight(self, distance: f64) -> f64 {
        let x = distance.abs();
        match self {
            Self::Nearest | Self::Box => {
                if distance > -0.5 && distance <= 0.5 {
                    1.0
                } else {
                    0.0
                }
            }
            Self::Bilinear => (1.0 - x).max(0.0),
            Self::Hamming if x == 0.0 => 1.0,
            Self::Hamming if x >= 1.0 => 0.0,
            Self::Hamming => {
                let turn = x * PI;
                turn.sin() / turn * (0.54 + 0.46 * turn.cos())
            }
            Self::Bicubic if x < 1.0 => ((-0.5 + 2.0) * x - (-0.5 + 3.0)) * x * x + 1.0,
            Self::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5,
            Self::Lanczos if (-3.0..3.0).contains(&distance) => {
                sinc(distance) * sinc(distance / 3.0)
            }
            Self::Bicubic | Self::Lanczos => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let turn = x * PI;
    turn.sin() / turn
}
