//! PNG and WebP files.

use std::io::Cursor;

use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::{ColorType, ImageDecoder};

use super::{DecodeError, DecodeLimits, check_size, exif};
use crate::picture::{CHANNELS, Picture};

/// Bytes that a decoder may allocate beside the pixels: profiles, texts and tables.
const EXTRA: u64 = 32 << 20;
/// Place of the width in a PNG file: behind the signature, and the length and name of the header.
const PNG_WIDTH: usize = 16;
/// Place of the colour type in a PNG file: behind the signature, the length and name of the header, two sides and the
/// number of bits.
const PNG_COLOUR: usize = 25;

/// Decodes a PNG file; of an animation the default image.
pub(super) fn png(bytes: &[u8], limits: &DecodeLimits) -> Result<Picture, DecodeError> {
    if let (Some(width), Some(height)) = (side(bytes, PNG_WIDTH), side(bytes, PNG_WIDTH + 4)) {
        check_size("PNG", width, height, limits)?;
    }
    let decoder = PngDecoder::with_limits(Cursor::new(bytes), bounds(limits));
    let decoder = decoder.map_err(|error| DecodeError::broken("PNG", error))?;
    picture("PNG", decoder, limits, bytes.get(PNG_COLOUR) == Some(&0))
}

/// Returns a side in the header of a PNG file.
fn side(bytes: &[u8], at: usize) -> Option<usize> {
    let four = bytes.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_be_bytes(four)).ok()
}

/// Decodes a WebP file; of an animation the first frame.
pub(super) fn webp(bytes: &[u8], limits: &DecodeLimits) -> Result<Picture, DecodeError> {
    let decoder = WebPDecoder::new(Cursor::new(bytes));
    let mut decoder = decoder.map_err(|error| DecodeError::broken("WebP", error))?;
    decoder.set_limits(bounds(limits)).map_err(|error| DecodeError::broken("WebP", error))?;
    picture("WebP", decoder, limits, false)
}

fn bounds(limits: &DecodeLimits) -> image::Limits {
    let mut bounds = image::Limits::no_limits();
    // Pixels of 16 bits and four channels.
    bounds.max_alloc = Some((limits.pixels as u64).saturating_mul(8).saturating_add(EXTRA));
    bounds
}

/// Converts what a decoder reads to RGB. `is_grey` says that a file with one grey channel and a transparent colour
/// reads as grey with alpha.
fn picture(
    format: &'static str,
    mut decoder: impl ImageDecoder,
    limits: &DecodeLimits,
    is_grey: bool,
) -> Result<Picture, DecodeError> {
    let (width, height) = decoder.dimensions();
    let width = width as usize;
    let height = height as usize;
    check_size(format, width, height, limits)?;
    let broken = |error| DecodeError::broken(format, error);
    let exif = decoder.exif_metadata().map_err(broken)?;
    let xmp = decoder.xmp_metadata().map_err(broken)?;
    let orientation = exif::orientation(exif.as_deref(), xmp.as_deref());
    let color = decoder.color_type();
    let mut read = vec![0; width * height * usize::from(color.bytes_per_pixel())];
    decoder.read_image(&mut read).map_err(broken)?;
    let mut pixels = Vec::with_capacity(width * height * CHANNELS);
    let each = read.chunks_exact(usize::from(color.bytes_per_pixel()));
    match color {
        ColorType::L8 | ColorType::La8 => {
            pixels.extend(each.flat_map(|pixel| [pixel[0]; CHANNELS]));
        }
        ColorType::Rgb8 => pixels = read,
        ColorType::Rgba8 => pixels.extend(each.flat_map(|pixel| [pixel[0], pixel[1], pixel[2]])),
        ColorType::L16 | ColorType::La16 if is_grey || color == ColorType::L16 => {
            pixels.extend(each.flat_map(|pixel| [clipped(pixel); CHANNELS]));
        }
        ColorType::La16 => pixels.extend(each.flat_map(|pixel| [high(pixel, 0); CHANNELS])),
        ColorType::Rgb16 | ColorType::Rgba16 => {
            pixels.extend(each.flat_map(|pixel| [high(pixel, 0), high(pixel, 1), high(pixel, 2)]));
        }
        _ => return Err(DecodeError::broken(format, format!("unknown pixels {color:?}"))),
    }
    let picture = Picture::new(height, width, pixels);
    let picture = picture.ok_or_else(|| DecodeError::broken(format, "the rows are cut off"))?;
    Ok(picture.oriented(orientation))
}

/// Returns the grey of 16 bits as Pillow's `I16_RGB` clips it.
fn clipped(pixel: &[u8]) -> u8 {
    u8::try_from(u16::from_ne_bytes([pixel[0], pixel[1]])).unwrap_or(u8::MAX)
}

/// Returns the high byte of a channel of 16 bits.
fn high(pixel: &[u8], channel: usize) -> u8 {
    (u16::from_ne_bytes([pixel[2 * channel], pixel[2 * channel + 1]]) >> 8) as u8
}
