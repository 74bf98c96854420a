//! Resampling of bytes, bit for bit as two libraries do it.
//!
//! Both compute, for each output, the weights of the inputs that a filter covers, widened by the factor of a reduction,
//! and make two passes: along rows, then along columns. They differ in the weights:
//!
//! | back end | weights | nearest |
//! |---|---|---|
//! | [`BackEnd::Pil`] | 22 bits after the point (Pillow, `Resample.c`) | sums of a step in double precision |
//! | [`BackEnd::Torchvision`] | 16 bits, the point where the largest weight just fits (ATen, `UpSampleKernel.cpp`) | products in single precision |
//!
//! The results differ by one level in most pictures, and by more where a filter with negative lobes meets noise.

use crate::picture::{CHANNELS, Picture};

mod filter;
mod nearest;
mod weights;

pub use filter::ResampleFilter;
use weights::Windows;

/// Library whose arithmetic a processor follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackEnd {
    /// Torch and torchvision, which `AutoImageProcessor` takes where torchvision is installed.
    #[default]
    Torchvision,
    /// Pillow and NumPy, which it takes elsewhere. Pillow is of release 13 or later.
    Pil,
    /// Pillow of release 12 or earlier, which resizes along rows first always.
    OlderPil,
}

impl BackEnd {
    /// True for each release of Pillow.
    pub fn is_pil(self) -> bool {
        self != Self::Torchvision
    }

    /// Returns the name that transformers gives to the back end.
    pub fn name(self) -> &'static str {
        match self {
            Self::Torchvision => "torchvision",
            Self::Pil | Self::OlderPil => "pil",
        }
    }
}

/// Resizes a picture. The sizes are at least 1 and within the caller's limits.
pub(crate) fn resize(
    picture: &Picture,
    height: usize,
    width: usize,
    filter: ResampleFilter,
    back_end: BackEnd,
) -> Picture {
    if picture.height() == height && picture.width() == width {
        return picture.clone();
    }
    if filter == ResampleFilter::Nearest {
        return nearest::resize(picture, height, width, back_end);
    }
    let rows = (picture.height() != height)
        .then(|| Windows::new(picture.height(), height, filter, back_end));
    let columns =
        (picture.width() != width).then(|| Windows::new(picture.width(), width, filter, back_end));
    let mut bytes = picture.bytes().to_vec();
    let rows_first = back_end == BackEnd::Pil && shrinks_rows_first(picture, height, width);
    if rows_first && let Some(windows) = &rows {
        bytes = along_columns(&bytes, picture.width(), windows);
    }
    if let Some(windows) = &columns {
        bytes = along_rows(&bytes, picture.width(), windows);
    }
    if !rows_first && let Some(windows) = &rows {
        bytes = along_columns(&bytes, width, windows);
    }
    Picture::new(height, width, bytes).expect("both passes make every row and column")
}

/// True if Pillow 13 reduces the number of rows before their length: where more than twice as many rows as columns
/// vanish. The order was found by comparing both orders with Pillow on 4,000 pairs of sizes.
fn shrinks_rows_first(picture: &Picture, height: usize, width: usize) -> bool {
    let lost_rows = picture.height() as i64 - height as i64;
    let lost_columns = picture.width() as i64 - width as i64;
    lost_rows > 0 && lost_rows > 2 * lost_columns
}

/// Makes rows of another width.
fn along_rows(bytes: &[u8], width: usize, windows: &Windows) -> Vec<u8> {
    let rows = bytes.len() / (width * CHANNELS);
    let mut output = Vec::with_capacity(rows * windows.count() * CHANNELS);
    for row in bytes.chunks_exact(width * CHANNELS) {
        for (start, weights) in windows.iter() {
            let pixels = row[start * CHANNELS..].chunks_exact(CHANNELS);
            let mut sums = [windows.half(); CHANNELS];
            for (pixel, &weight) in pixels.zip(weights) {
                sums[0] += i32::from(pixel[0]) * weight;
                sums[1] += i32::from(pixel[1]) * weight;
                sums[2] += i32::from(pixel[2]) * weight;
            }
            output.extend(sums.map(|sum| windows.level(sum)));
        }
    }
    output
}

/// Makes another number of rows.
fn along_columns(bytes: &[u8], width: usize, windows: &Windows) -> Vec<u8> {
    let length = width * CHANNELS;
    let mut output = Vec::with_capacity(windows.count() * length);
    let mut sums = vec![0; length];
    for (start, weights) in windows.iter() {
        sums.fill(windows.half());
        let rows = bytes[start * length..].chunks_exact(length);
        for (row, &weight) in rows.zip(weights) {
            for (sum, &byte) in sums.iter_mut().zip(row) {
                *sum += i32::from(byte) * weight;
            }
        }
        output.extend(sums.iter().map(|&sum| windows.level(sum)));
    }
    output
}

#[cfg(test)]
mod tests;
