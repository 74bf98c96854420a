//! `previous`: the row of the position before.

use super::{Ctx, Kernels};
use crate::Error;
use crate::states::Memory;
use crate::states::conv::Conv;
use crate::states::recurrent::{Recurrent, RecurrentStep};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.add("previous", run);
}

pub(super) fn run(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let width = x.width();
    let view = x.view();
    let mut y = vec![0.0; view.len()];
    for chunk in ctx.chunks() {
        let wrong = ctx.error("its state does not hold inputs of this shape");
        let rows = &view[chunk.rows.start * width..chunk.rows.end * width];
        let held = match ctx.memory_mut(chunk.slot)? {
            Memory::Conv(memory) => replace_input(memory, chunk.start, width, rows),
            Memory::Recurrent(memory) => replace_block(memory, chunk.start, width, rows),
            _ => None,
        };
        let held = held.ok_or(wrong)?;
        let y = &mut y[chunk.rows.start * width..chunk.rows.end * width];
        let (first, later) = y.split_at_mut(width.min(rows.len()));
        first[..held.len()].copy_from_slice(&held);
        later.copy_from_slice(&rows[..later.len()]);
    }
    ctx.set(0, y)
}

/// Returns the last input before a step, and keeps those of the step; `None` if the memory is of another form.
fn replace_input(memory: &mut Conv, start: usize, width: usize, rows: &[f32]) -> Option<Vec<f32>> {
    if !memory.continues(width, 1, start) {
        return None;
    }
    let held = memory.inputs.tail(start.saturating_sub(1));
    memory.inputs.append(rows);
    Some(held)
}

/// Returns the block before a step, and makes rows of the step the blocks after it; `None` as above.
fn replace_block(
    memory: &mut Recurrent,
    start: usize,
    width: usize,
    rows: &[f32],
) -> Option<Vec<f32>> {
    if width == 0 || memory.width() != width || memory.end() != start {
        return None;
    }
    let count = rows.len() / width;
    let RecurrentStep { before, after } = memory.step(count);
    let held = if start > 0 { before.to_vec() } else { Vec::new() };
    let unkept = count - after.len();
    for (block, row) in after.into_iter().zip(rows.chunks_exact(width).skip(unkept)) {
        block.copy_from_slice(row);
    }
    Some(held)
}
