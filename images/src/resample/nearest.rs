//! The nearest pixel, which the two libraries choose in different precision.

use super::BackEnd;
use crate::picture::{CHANNELS, Picture};

/// Resizes a picture without a filter.
pub(super) fn resize(picture: &Picture, height: usize, width: usize, back_end: BackEnd) -> Picture {
    let rows = places(picture.height(), height, back_end);
    let columns = places(picture.width(), width, back_end);
    let mut bytes = Vec::with_capacity(height * width * CHANNELS);
    for y in rows {
        let row = picture.row(y);
        for &x in &columns {
            bytes.extend_from_slice(&row[x * CHANNELS..][..CHANNELS]);
        }
    }
    Picture::new(height, width, bytes).expect("every row and column has a place")
}

/// Returns the input of each output along one axis.
fn places(input: usize, output: usize, back_end: BackEnd) -> Vec<usize> {
    let mut places = Vec::with_capacity(output);
    match back_end {
        BackEnd::Torchvision => {
            let scale = input as f32 / output as f32;
            for n in 0..output {
                places.push((((n as f32 + 0.5) * scale).floor() as usize).min(input - 1));
            }
        }
        BackEnd::Pil | BackEnd::OlderPil => {
            let step = input as f64 / output as f64;
            let mut center = step * 0.5;
            for _ in 0..output {
                places.push((center as usize).min(input - 1));
                center += step;
            }
        }
    }
    places
}
