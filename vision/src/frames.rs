//! Frames of prepared pictures, and the rows of an encoder that each becomes.

use images::{PreparedPictures, Tensor, Values};
use registry::image::ImageLayout;

use crate::error::Error;

/// The name of pixels among the results of all processors.
const PIXELS: &str = "pixel_values";

/// Rows of one frame, for an encoder.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FrameRows {
    /// The place of each row in a table of learned positions.
    pub(crate) tokens: Vec<u32>,
    /// A row for each.
    pub(crate) patches: Vec<f32>,
    /// The line and the column of each row; empty if rows stand before the patches.
    pub(crate) positions: [Vec<u32>; 2],
    /// Ranges of rows in one window.
    pub(crate) windows: Vec<(usize, usize)>,
    /// For each block in lines of blocks its number in the order of rows.
    pub(crate) blocks: Vec<usize>,
    /// Lines and columns of blocks.
    pub(crate) grid: (usize, usize),
}

/// Patches of one frame, line by line or block by block, as `in_blocks` of the layout says.
struct FramePatches {
    lines: usize,
    columns: usize,
    /// Numbers, patch by patch.
    numbers: Vec<f32>,
}

/// Divides prepared pictures into frames, of which an encoder of `width` numbers a patch runs each.
pub(crate) fn frames(
    prepared: &PreparedPictures,
    layout: &ImageLayout,
    width: usize,
) -> Result<Vec<FrameRows>, Error> {
    let Some((pixels, values)) = prepared.outputs.get(PIXELS).and_then(float) else {
        return Err(Error::Pixels("the processor gives no `pixel_values`".to_owned()));
    };
    let patches = match layout.side {
        Some(side) => cut_all(prepared, pixels, values, side)?,
        None => given_patches(prepared, values, width)?,
    };
    patches.into_iter().map(|frame| placed(frame, layout, width)).collect()
}

fn float(tensor: &Tensor) -> Option<(&[usize], &[f32])> {
    match &tensor.values {
        Values::Float(values) => Some((&tensor.shape, values)),
        Values::Int(_) => None,
    }
}

/// Cuts frames of pixels, `[.., channels, height, width]`, into squares of `side`.
fn cut_all(
    prepared: &PreparedPictures,
    shape: &[usize],
    values: &[f32],
    side: usize,
) -> Result<Vec<FramePatches>, Error> {
    let &[.., channels, height, width] = shape else {
        return Err(Error::Pixels(format!(
            "`pixel_values` is {shape:?}; expected frames of channels, lines and columns"
        )));
    };
    let size = channels * height * width;
    if size == 0 {
        return Err(Error::Pixels(format!("`pixel_values` is {shape:?}, without a pixel")));
    }
    let frames = values.chunks_exact(size);
    let sizes = sizes_of(prepared, frames.len());
    let filled = filled_frames(prepared, frames.len(), height * width);
    let mut cut = Vec::new();
    for (n, frame) in frames.enumerate().filter(|(n, _)| filled[*n]) {
        let (frame_height, frame_width) = sizes.as_ref().map_or((height, width), |sizes| sizes[n]);
        if frame_height > height || frame_width > width {
            return Err(Error::Pixels(format!(
                "a frame of {frame_height} x {frame_width} lies in one of {height} x {width} pixels"
            )));
        }
        let lines = frame_height / side;
        let columns = frame_width / side;
        let mut numbers = Vec::with_capacity(channels * lines * columns * side * side);
        for line in 0..lines {
            for column in 0..columns {
                for channel in frame.chunks_exact(height * width) {
                    for y in 0..side {
                        let from = (line * side + y) * width + column * side;
                        numbers.extend_from_slice(&channel[from..from + side]);
                    }
                }
            }
        }
        cut.push(FramePatches { lines, columns, numbers });
    }
    Ok(cut)
}

/// Returns the integers of a result whose rows have `columns` numbers.
fn integers(prepared: &PreparedPictures, columns: usize) -> Option<Vec<Vec<usize>>> {
    prepared.outputs.values().find_map(|tensor| {
        let Values::Int(values) = &tensor.values else { return None };
        if tensor.shape.len() != 2 || tensor.shape[1] != columns {
            return None;
        }
        let rows = values.chunks_exact(columns);
        rows.map(|row| row.iter().map(|n| usize::try_from(*n).ok()).collect()).collect()
    })
}

/// Returns the sizes of frames that are padded to the largest, if the processor gives them.
fn sizes_of(prepared: &PreparedPictures, frames: usize) -> Option<Vec<(usize, usize)>> {
    let sizes = integers(prepared, 2).filter(|sizes| sizes.len() == frames)?;
    Some(sizes.into_iter().map(|size| (size[0], size[1])).collect())
}

/// Tells for each frame whether a mask of pixels has any of it: some pictures have fewer frames than others.
fn filled_frames(prepared: &PreparedPictures, frames: usize, size: usize) -> Vec<bool> {
    let mut masks = prepared.outputs.values().rev().filter_map(|tensor| match &tensor.values {
        Values::Int(values) if values.len() == frames * size => Some(values),
        _ => None,
    });
    let mask = masks.next();
    let is_filled =
        |values: &Vec<i64>, n: usize| values[n * size..][..size].iter().any(|x| *x != 0);
    (0..frames).map(|n| mask.is_none_or(|values| is_filled(values, n))).collect()
}

/// Divides patches that the processor gives: rows of all frames after one another, or of each frame padded to the longest.
fn given_patches(
    prepared: &PreparedPictures,
    values: &[f32],
    width: usize,
) -> Result<Vec<FramePatches>, Error> {
    let grids = integers(prepared, 3).or_else(|| integers(prepared, 2));
    let Some(grids) = grids.filter(|_| width > 0) else {
        return Err(Error::Pixels(
            "the processor gives patches, and no lines and columns of them".to_owned(),
        ));
    };
    let counts: Vec<usize> = grids.iter().map(|grid| grid.iter().product()).collect();
    let rows = values.len() / width;
    let padded = rows.checked_div(grids.len()).unwrap_or(0);
    let one_after_another = counts.iter().sum::<usize>() == rows;
    let mut from = 0;
    let mut patches = Vec::new();
    for (n, (grid, count)) in grids.iter().zip(&counts).enumerate() {
        let start = if one_after_another { from } else { n * padded };
        from += count;
        let Some(numbers) = values.get(start * width..(start + count) * width) else {
            return Err(Error::Pixels(format!(
                "{rows} patches of {width} numbers do not have the lines and columns {grids:?}"
            )));
        };
        let &[.., lines, columns] = &**grid else { continue };
        // Several steps in time are pictures of their own.
        for picture in numbers.chunks_exact((lines * columns * width).max(1)) {
            patches.push(FramePatches { lines, columns, numbers: picture.to_vec() });
        }
    }
    Ok(patches)
}

/// Puts the patches of a frame into the order of an encoder's rows.
fn placed(frame: FramePatches, layout: &ImageLayout, width: usize) -> Result<FrameRows, Error> {
    let FramePatches { lines, columns, numbers } = frame;
    let count = lines * columns;
    let Some(placed) = layout.place(lines, columns).filter(|_| count > 0) else {
        let block = layout.block;
        return Err(Error::Pixels(format!(
            "{lines} x {columns} patches do not divide into blocks of {block} x {block}"
        )));
    };
    if numbers.len() != count * width {
        return Err(Error::Pixels(format!(
            "a patch has {} numbers; the encoder takes {width}",
            numbers.len() / count
        )));
    }
    let stored = stored_places(layout, lines, columns);
    let mut patches = vec![0.0; layout.skip * width];
    let mut tokens: Vec<u32> = (0..layout.skip).map(|row| row as u32).collect();
    for (line, column) in &placed.places {
        let raster = line * columns + column;
        tokens.push((layout.skip + raster) as u32);
        patches.extend_from_slice(&numbers[stored[raster] * width..][..width]);
    }
    let given = placed.places.iter().filter(|_| layout.skip == 0);
    let (down, across) = given.map(|(line, column)| (*line as u32, *column as u32)).unzip();
    let windows = if layout.window.is_some() { placed.windows } else { Vec::new() };
    let grid = (lines / layout.block, columns / layout.block);
    Ok(FrameRows {
        tokens,
        patches,
        positions: [down, across],
        windows,
        blocks: placed.blocks,
        grid,
    })
}

/// Returns for each patch in lines its number among those that a processor gave.
fn stored_places(layout: &ImageLayout, lines: usize, columns: usize) -> Vec<usize> {
    let blocks = ImageLayout { window: None, ..*layout };
    match blocks.place(lines, columns).filter(|_| layout.in_blocks) {
        None => (0..lines * columns).collect(),
        Some(placed) => {
            let mut stored = vec![0; lines * columns];
            for (n, (line, column)) in placed.places.iter().enumerate() {
                stored[line * columns + column] = n;
            }
            stored
        }
    }
}
