//! JPEG files.

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::{DecodeError, DecodeLimits, check_size, exif};
use crate::picture::{CHANNELS, Picture};

const FORMAT: &str = "JPEG";
/// Longest side that a JPEG header can state.
const MAX_SIDE: usize = 65_535;
/// Most scans of a progressive file; encoders write about ten.
const MAX_SCANS: usize = 100;

/// Decodes a JPEG file.
pub(super) fn jpeg(bytes: &[u8], limits: &DecodeLimits) -> Result<Picture, DecodeError> {
    let options = DecoderOptions::default()
        .set_max_width(MAX_SIDE)
        .set_max_height(MAX_SIDE)
        .set_strict_mode(true)
        .jpeg_set_max_scans(MAX_SCANS);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|error| DecodeError::broken(FORMAT, error))?;
    let info =
        decoder.info().ok_or_else(|| DecodeError::broken(FORMAT, "there is no frame header"))?;
    let width = usize::from(info.width);
    let height = usize::from(info.height);
    check_size(FORMAT, width, height, limits)?;
    let exif = decoder.exif().map(Vec::as_slice);
    let orientation = exif::orientation(exif, decoder.xmp().map(Vec::as_slice));
    let space = match decoder.input_colorspace() {
        Some(ColorSpace::Luma) => ColorSpace::Luma,
        Some(ColorSpace::CMYK | ColorSpace::YCCK) => ColorSpace::CMYK,
        _ => ColorSpace::RGB,
    };
    decoder.set_options(options.jpeg_set_out_colorspace(space));
    let decoded = decoder.decode().map_err(|error| DecodeError::broken(FORMAT, error))?;
    let channels = space.num_components();
    if decoded.len() != width * height * channels {
        return Err(DecodeError::broken(FORMAT, "the rows are cut off"));
    }
    let mut pixels = Vec::with_capacity(width * height * CHANNELS);
    match space {
        ColorSpace::Luma => pixels.extend(decoded.iter().flat_map(|&grey| [grey; CHANNELS])),
        ColorSpace::CMYK => pixels.extend(decoded.chunks_exact(4).flat_map(inverted_ink)),
        _ => pixels = decoded,
    }
    let picture = Picture::new(height, width, pixels);
    let picture = picture.ok_or_else(|| DecodeError::broken(FORMAT, "the rows are cut off"))?;
    Ok(picture.oriented(orientation))
}

/// Converts a pixel of inverted CMYK to RGB.
fn inverted_ink(ink: &[u8]) -> [u8; CHANNELS] {
    [0, 1, 2].map(|channel| on_paper(ink[channel], ink[3]))
}

/// Returns the light that an ink leaves, with Pillow's rounding (`cmyk2rgb` in Convert.c). Both are stored inverted.
fn on_paper(stored: u8, paper: u8) -> u8 {
    let product = i32::from(255 - stored) * i32::from(paper) + 128;
    (i32::from(paper) - ((product + (product >> 8)) >> 8)).clamp(0, 255) as u8
}
