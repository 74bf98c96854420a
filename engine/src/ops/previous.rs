//! `previous`: the row of the position before.

use registry::graph::StateKind;

use super::causal_conv::expect_inputs;
use super::{Args, Ctx, Kernel, Kernels};
use crate::Error;
use crate::states::Memory;
use crate::states::recurrent::{Recurrent, RecurrentStep};

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("previous", Previous::prepare);
}

/// Rows of so many numbers, the last of which the state keeps.
pub(super) struct Previous {
    pub(super) width: usize,
}

impl Previous {
    pub(super) fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let width = args.width(0)?;
        if args.state()?.kind == StateKind::Conv {
            expect_inputs(args, width, 1)?;
        } else if width == 0 || args.state_width()? != width {
            return Err(args.error(format!("its state does not hold a row of {width} numbers")));
        }
        args.expect_output(width)?;
        Ok(Self { width })
    }
}

impl Kernel for Previous {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let x = ctx.input(0)?;
        let width = self.width;
        let view = x.view();
        let mut y = vec![0.0; view.len()];
        for chunk in ctx.chunks() {
            let wrong = ctx.error("its state does not hold the row before this step");
            let places = chunk.rows.start * width..chunk.rows.end * width;
            let rows = &view[places.clone()];
            let all = match ctx.memory_mut(chunk.slot)? {
                Memory::Conv(memory) => memory.extend(chunk.start, rows),
                Memory::Recurrent(memory) => extend_block(memory, chunk.start, rows),
                _ => None,
            };
            y[places].copy_from_slice(&all.ok_or(wrong)?[..rows.len()]);
        }
        ctx.set(0, y)
    }
}

/// Makes rows of a step the blocks after it. Returns the block before the step, zeros if there is none, and the rows. None
/// if the step does not continue the sequence.
fn extend_block(memory: &mut Recurrent, start: usize, rows: &[f32]) -> Option<Vec<f32>> {
    let width = memory.width();
    if memory.end() != start {
        return None;
    }
    let count = rows.len() / width;
    let RecurrentStep { before, after } = memory.step(count);
    let mut all = if start > 0 { before.to_vec() } else { vec![0.0; width] };
    all.extend_from_slice(rows);
    let unkept = count - after.len();
    for (block, row) in after.into_iter().zip(rows.chunks_exact(width).skip(unkept)) {
        block.copy_from_slice(row);
    }
    Some(all)
}
