//! `causal_conv`: each channel over its last `width` inputs.

use rayon::prelude::*;

use super::{Ctx, activation};
use crate::Error;
use crate::kernels::round::round;
use crate::states::Memory;

pub(super) fn run(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let channels = x.width();
    let weight = ctx.need_vector("weight")?; // [channels, 1, width]
    let bias = ctx.vector("bias");
    let taps = weight.len().checked_div(channels).unwrap_or(0);
    if taps == 0 || taps * channels != weight.len() || bias.is_some_and(|b| b.len() != channels) {
        return Err(
            ctx.error(format!("a weight of {} numbers for {channels} channels", weight.len()))
        );
    }
    // [tap][channel], so that the loop over channels runs along memory.
    let by_tap: Vec<f32> =
        (0..taps).flat_map(|t| (0..channels).map(move |c| weight[c * taps + t])).collect();
    let dtype = ctx.output_dtype(0);
    let then = match ctx.text("activation", "none") {
        "none" => None,
        name => {
            Some(activation::of(name).ok_or_else(|| ctx.error(format!("no activation `{name}`")))?)
        }
    };
    let view = x.view();
    let mut y = vec![0.0; view.len()];
    for chunk in ctx.chunks() {
        let wrong = ctx.error("its state does not hold inputs of this shape");
        let rows = &view[chunk.rows.start * channels..chunk.rows.end * channels];
        let Memory::Conv(memory) = ctx.memory_mut(chunk.slot)? else { return Err(wrong) };
        if memory.inputs.width() != channels
            || memory.needed != taps - 1
            || memory.inputs.end() != chunk.start
        {
            return Err(wrong);
        }
        // Earlier inputs come from the state, in its dtype; this step's are still in the run's.
        let held = memory.inputs.tail(chunk.start.saturating_sub(memory.needed));
        let mut all = vec![0.0; memory.needed * channels - held.len()];
        all.extend_from_slice(&held);
        all.extend_from_slice(rows);
        memory.inputs.append(rows);
        y[chunk.rows.start * channels..chunk.rows.end * channels]
            .par_chunks_exact_mut(channels)
            .with_min_len((1 << 14) / channels + 1)
            .enumerate()
            .for_each(|(row, y)| {
                for (tap, weight) in by_tap.chunks_exact(channels).enumerate() {
                    let x = &all[(row + tap) * channels..][..channels];
                    for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                        *y += x * w;
                    }
                }
                if let Some(bias) = bias {
                    y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
                }
                round(dtype, y);
                if let Some(then) = then {
                    then(dtype, y);
                }
            });
    }
    ctx.set(0, y)
}
