//! Frames as rows of patches.

use registry::diag::Finding;

use super::{FramePixels, PictureFrame, PictureScope};
use crate::picture::CHANNELS;
use crate::sheet::{PatchAxis, PatchLayout};

/// Length of an axis and the distance of its steps in a frame.
#[derive(Clone, Copy)]
struct AxisWalk {
    length: usize,
    stride: usize,
}

/// Sides of patches, patches in a block, and repetitions.
struct PatchBlocks {
    height: usize,
    width: usize,
    merge: usize,
    time: usize,
}

impl PatchBlocks {
    fn walk(&self, axis: PatchAxis, frame: &PictureFrame) -> AxisWalk {
        let (length, stride) = match axis {
            PatchAxis::BlockRow => {
                let block = self.merge * self.height;
                (frame.height / block, block * frame.width)
            }
            PatchAxis::BlockColumn => {
                let block = self.merge * self.width;
                (frame.width / block, block)
            }
            PatchAxis::Row => (self.merge, self.height * frame.width),
            PatchAxis::Column => (self.merge, self.width),
            PatchAxis::Channel => (CHANNELS, frame.height * frame.width),
            PatchAxis::Time => (self.time, 0),
            PatchAxis::Y => (self.height, frame.width),
            PatchAxis::X => (self.width, 1),
        };
        AxisWalk { length, stride }
    }
}

impl PictureScope {
    /// Divides a frame of numbers into patches, and gives names to the counts.
    pub(super) fn patch(
        &mut self,
        frame: &PictureFrame,
        layout: &PatchLayout,
    ) -> Result<PictureFrame, Finding> {
        let at = &layout.height.at;
        let FramePixels::Numbers(values, _) = &frame.pixels else {
            return Err(Finding::error(at, "patches are cut from numbers")
                .help("write the step `scale` before this one"));
        };
        let height = self.size(&layout.height)?;
        let width = self.size(&layout.width)?;
        let merge = layout.merge.as_ref().map_or(Ok(1), |expr| self.size(expr))?;
        let time = layout.time.as_ref().map_or(Ok(1), |expr| self.size(expr))?;
        let block_height = height.saturating_mul(merge);
        let block_width = width.saturating_mul(merge);
        let divides = block_height > 0
            && block_width > 0
            && frame.height.is_multiple_of(block_height)
            && frame.width.is_multiple_of(block_width);
        if !divides {
            let message = format!(
                "a frame of {} x {} pixels has no whole blocks of {block_height} x {block_width}",
                frame.height, frame.width
            );
            return Err(Finding::error(at, message).help("resize frames to multiples of the block"));
        }
        let rows = frame.height / height;
        let columns = frame.width / width;
        self.count("patch_rows", rows);
        self.count("patch_columns", columns);
        let count = values.len().saturating_mul(time);
        if time == 0 || count > self.limits.numbers {
            let label = format!("found {count} numbers, expected 1 to {}", self.limits.numbers);
            return Err(
                Finding::error(at, "the patches have too many numbers, or none").label(label)
            );
        }
        let blocks = PatchBlocks { height, width, merge, time };
        let axes: Vec<AxisWalk> =
            layout.order.iter().map(|axis| blocks.walk(*axis, frame)).collect();
        let mut output = Vec::with_capacity(count);
        copy(values, 0, &axes, &mut output);
        let shape = vec![rows * columns, CHANNELS * time * height * width];
        Ok(PictureFrame {
            height: frame.height,
            width: frame.width,
            pixels: FramePixels::Numbers(output, shape),
        })
    }
}

/// Appends the numbers of all axes from a place on.
fn copy(values: &[f32], from: usize, axes: &[AxisWalk], output: &mut Vec<f32>) {
    let Some((axis, inner)) = axes.split_first() else {
        output.push(values[from]);
        return;
    };
    if inner.is_empty() && axis.stride == 1 {
        output.extend_from_slice(&values[from..from + axis.length]);
        return;
    }
    for n in 0..axis.length {
        copy(values, from + n * axis.stride, inner, output);
    }
}
