//! Bytes as numbers: rescaling and normalising in the arithmetic of a back end.

use registry::diag::{Finding, Span};
use registry::eval::truth;
use registry::scalar::Scalar;

use super::PictureScope;
use crate::picture::{CHANNELS, Picture};
use crate::resample::BackEnd;
use crate::sheet::PixelRounding;

/// The number of each byte of each channel.
pub(super) type LevelTable = [[f32; 256]; CHANNELS];

impl PictureScope {
    /// Computes the table of a back end by the settings of rescaling and normalising.
    pub(super) fn levels(&self, rounding: PixelRounding, at: &Span) -> Result<LevelTable, Finding> {
        let rescales = truth(self.named("do_rescale", at)?);
        let normalises = truth(self.named("do_normalize", at)?);
        let factor = match (rescales, self.named("rescale_factor", at)?.as_f64()) {
            (true, Some(factor)) => Some(factor),
            (true, None) => return Err(Finding::error(at, "`rescale_factor` is no number")),
            (false, _) => None,
        };
        let mut table = [[0.0; 256]; CHANNELS];
        for (channel, levels) in table.iter_mut().enumerate() {
            let mean = normalises.then(|| self.channel("image_mean", channel, at)).transpose()?;
            let deviation =
                normalises.then(|| self.channel("image_std", channel, at)).transpose()?;
            let norm = mean.zip(deviation);
            for (byte, level) in levels.iter_mut().enumerate() {
                *level = match (rounding, self.back_end) {
                    (PixelRounding::BFloat16, _) => bf16_level(byte as f32, factor, norm),
                    (_, BackEnd::Torchvision) => torch_level(byte as f32, factor, norm),
                    (_, BackEnd::Pil | BackEnd::OlderPil) => numpy_level(byte as f64, factor, norm),
                };
            }
        }
        Ok(table)
    }

    /// Returns the number of a channel in a setting that has one for each, or one for all.
    fn channel(&self, name: &str, channel: usize, at: &Span) -> Result<f64, Finding> {
        let setting = self.named(name, at)?;
        let number = match setting {
            Scalar::List(items) if items.len() == CHANNELS => items[channel].as_f64(),
            other => other.as_f64(),
        };
        number.ok_or_else(|| {
            Finding::error(at, format!("`{name}` has to be {CHANNELS} numbers"))
                .label(format!("found {}", super::shown(setting)))
        })
    }
}

/// Mean and deviation are multiplied by the inverse of the factor first, in single precision.
fn torch_level(byte: f32, factor: Option<f64>, norm: Option<(f64, f64)>) -> f32 {
    let Some((mean, deviation)) = norm else {
        return factor.map_or(byte, |factor| byte * factor as f32);
    };
    let unit = factor.map_or(1.0, |factor| (1.0 / factor) as f32);
    (byte - mean as f32 * unit) / (deviation as f32 * unit)
}

/// The product has double precision and is rounded to single.
fn numpy_level(byte: f64, factor: Option<f64>, norm: Option<(f64, f64)>) -> f32 {
    let scaled = factor.map_or(byte, |factor| byte * factor) as f32;
    norm.map_or(scaled, |(mean, deviation)| (scaled - mean as f32) / deviation as f32)
}

/// Every product, difference and quotient is rounded to 16 bits if the factor is used, and none otherwise.
fn bf16_level(byte: f32, factor: Option<f64>, norm: Option<(f64, f64)>) -> f32 {
    match (factor, norm) {
        (Some(factor), Some((mean, deviation))) => {
            let scaled = bf16(byte * factor as f32);
            bf16(bf16(scaled - bf16(mean as f32)) / bf16(deviation as f32))
        }
        _ => torch_level(byte, factor, norm),
    }
}

/// Rounds to the nearest number of 16 bits, halves to even.
fn bf16(number: f32) -> f32 {
    let bits = number.to_bits();
    let odd = (bits >> 16) & 1;
    f32::from_bits(bits.wrapping_add(0x7fff + odd) & 0xffff_0000)
}

/// Converts a picture to numbers: channels, rows, columns.
pub(super) fn planes(picture: &Picture, table: &LevelTable) -> Vec<f32> {
    let mut planes = Vec::with_capacity(picture.bytes().len());
    for (channel, levels) in table.iter().enumerate() {
        let bytes = picture.bytes().iter().skip(channel).step_by(CHANNELS);
        planes.extend(bytes.map(|&byte| levels[usize::from(byte)]));
    }
    planes
}
