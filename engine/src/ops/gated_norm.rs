//! `gated_norm`: a norm of the root mean square per group, with a gate before or after it.
//! The gate's activation is in f32 and never rounded by itself.

use super::{Ctx, rows, scan};
use crate::Error;
use crate::kernels::math::{fold, sigmoid, silu};
use crate::kernels::round::round;

/// When the normalised numbers are rounded before the weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cast {
    Before,
    After,
}

pub(super) fn run(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let (x, gate) = (ctx.input(0)?, ctx.input(1)?);
    let eps = ctx.number("eps")? as f32;
    let cast = if ctx.text("cast", "before") == "after" { Cast::After } else { Cast::Before };
    let gate_first = ctx.text("order", "gate_first") == "gate_first";
    let act = if ctx.text("activation", "silu") == "sigmoid" { sigmoid } else { silu };
    let weight = ctx.need_vector("weight")?;
    let axis = x.shape().iter().skip(1).next_back().copied().unwrap_or(1);
    let group = match ctx.attr("groups") {
        Some(_) => axis.checked_div(ctx.count("groups")?).unwrap_or(0),
        None => axis,
    };
    // An f32 value of a sequence's first step is one of the run's dtype in rows that continue it.
    let continued = if ctx.flag("stepwise") { scan::continued(ctx) } else { Vec::new() };
    if group == 0
        || axis % group != 0
        || weight.len() != axis
        || gate.width() != x.width()
        || (!continued.is_empty() && continued.len() != x.rows())
    {
        return Err(ctx.error(format!(
            "its weight has {} numbers and its gate {}, for {axis} in groups of {group}",
            weight.len(),
            gate.width()
        )));
    }
    let (own, activation) = (ctx.output_dtype(0), ctx.activation());
    let gates = gate.view();
    let gates: &[f32] = &gates;
    let width = x.width();
    let y = rows::map(&x.view(), width, width, |row, x, y| {
        let gates = &gates[row * width..][..width];
        let dtype = if continued.get(row) == Some(&true) { activation } else { own };
        y.copy_from_slice(x);
        if gate_first {
            y.iter_mut().zip(gates).for_each(|(y, g)| *y *= act(*g));
        }
        for y in y.chunks_exact_mut(group) {
            let scale = 1.0 / (fold(y, |y| y * y) / group as f32 + eps).sqrt();
            for y in y.iter_mut() {
                *y *= scale;
            }
        }
        if cast == Cast::Before {
            round(dtype, y);
        }
        for y in y.chunks_exact_mut(axis) {
            y.iter_mut().zip(weight).for_each(|(y, w)| *y *= w);
        }
        if cast == Cast::Before {
            round(dtype, y);
        }
        if !gate_first {
            y.iter_mut().zip(gates).for_each(|(y, g)| *y *= act(*g));
        }
        round(dtype, y);
    });
    ctx.set(0, y)
}
