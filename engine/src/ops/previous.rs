//! `previous`: the row of the position before.

use super::{Ctx, Kernels};
use crate::Error;
use crate::states::Memory;

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
        let Memory::Conv(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
        if !memory.continues(width, 1, chunk.start) {
            return Err(wrong);
        }
        let held = memory.inputs.tail(chunk.start.saturating_sub(1));
        memory.inputs.append(rows);
        let y = &mut y[chunk.rows.start * width..chunk.rows.end * width];
        let (first, later) = y.split_at_mut(width.min(rows.len()));
        first[..held.len()].copy_from_slice(&held);
        later.copy_from_slice(&rows[..later.len()]);
    }
    ctx.set(0, y)
}
