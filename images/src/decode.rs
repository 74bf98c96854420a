//! Image files as pictures, as `load_image` of transformers reads them.
//!
//! `load_image` opens a file with Pillow, turns it by its EXIF orientation and converts it to RGB:
//!
//! * alpha is dropped and not blended, and palettes are looked up;
//! * grey of 16 bits becomes 255 above 255, and other channels of 16 bits lose their low byte;
//! * CMYK of JPEG is taken as inverted, as Adobe writes it;
//! * of an animation the first frame is read.
//!
//! A file is refused by its header if it claims more than [`DecodeLimits`] allow, before anything is decoded.

use std::path::Path;

use registry::file::FileLimit;

use crate::picture::Picture;

mod exif;
mod jpeg;
mod lossless;

/// Bounds of one image file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Most bytes of a file.
    pub bytes: usize,
    /// Most pixels of a picture. The default is the number from which Pillow warns of a decompression bomb.
    pub pixels: usize,
}

impl Default for DecodeLimits {
    fn default() -> Self {
        Self { bytes: 64 << 20, pixels: 89_478_485 }
    }
}

/// Reasons that a file is no picture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The file cannot be read.
    #[error("cannot read `{path}`: {reason}; give the path of an image file")]
    Unreadable {
        /// Path of the file.
        path: String,
        /// Reason of the system.
        reason: String,
    },
    /// The first bytes are of no known format.
    #[error(
        "the file begins with {start}, expected a PNG, JPEG or WebP file; convert it to one of these"
    )]
    UnknownFormat {
        /// The first bytes, in hexadecimal digits.
        start: String,
    },
    /// The file is longer than the limit.
    #[error(
        "the file has {bytes} bytes, expected at most {limit}; make the picture smaller, or raise `DecodeLimits::bytes`"
    )]
    TooLong {
        /// Bytes of the file.
        bytes: usize,
        /// Most bytes.
        limit: usize,
    },
    /// The header claims more pixels than the limit.
    #[error(
        "the {format} header says {width} x {height} pixels, expected from 1 to {limit} pixels; make the picture smaller, or raise `DecodeLimits::pixels`"
    )]
    TooLarge {
        /// Name of the format.
        format: &'static str,
        /// Claimed width.
        width: usize,
        /// Claimed height.
        height: usize,
        /// Most pixels.
        limit: usize,
    },
    /// The contents are broken or cut off.
    #[error(
        "the {format} data is broken: {reason}; expected a whole file, so fetch or write it again"
    )]
    Broken {
        /// Name of the format.
        format: &'static str,
        /// Reason of the decoder.
        reason: String,
    },
}

impl DecodeError {
    fn broken(format: &'static str, reason: impl std::fmt::Display) -> Self {
        Self::Broken { format, reason: reason.to_string() }
    }
}

/// Formats by their first bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ImageFormat {
    Png,
    Jpeg,
    WebP,
}

impl ImageFormat {
    fn of(bytes: &[u8]) -> Option<Self> {
        if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
            Some(Self::Png)
        } else if bytes.starts_with(b"\xff\xd8\xff") {
            Some(Self::Jpeg)
        } else if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
            Some(Self::WebP)
        } else {
            None
        }
    }
}

/// Decodes the bytes of an image file.
pub fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<Picture, DecodeError> {
    if bytes.len() > limits.bytes {
        return Err(DecodeError::TooLong { bytes: bytes.len(), limit: limits.bytes });
    }
    match ImageFormat::of(bytes) {
        Some(ImageFormat::Png) => lossless::png(bytes, limits),
        Some(ImageFormat::Jpeg) => jpeg::jpeg(bytes, limits),
        Some(ImageFormat::WebP) => lossless::webp(bytes, limits),
        None => Err(DecodeError::UnknownFormat {
            start: format!("{:02x?}", &bytes[..bytes.len().min(4)]),
        }),
    }
}

/// Reads and decodes an image file.
pub fn read(path: &Path, limits: &DecodeLimits) -> Result<Picture, DecodeError> {
    let limit = FileLimit { kind: "an image", bytes: limits.bytes as u64 };
    let bytes = registry::file::read(path, limit).map_err(|error| DecodeError::Unreadable {
        path: path.display().to_string(),
        reason: error.to_string(),
    })?;
    decode(&bytes, limits)
}

/// Checks the size that a header claims.
fn check_size(
    format: &'static str,
    width: usize,
    height: usize,
    limits: &DecodeLimits,
) -> Result<(), DecodeError> {
    let pixels = width.saturating_mul(height);
    if pixels == 0 || pixels > limits.pixels {
        return Err(DecodeError::TooLarge { format, width, height, limit: limits.pixels });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
