//! Ops on a row's position alone.

use super::{Infer, OpRule, ParamKind, Signature, Trait};
use crate::dtype::DtypeRule;
use crate::eval::EvalError;
use crate::graph::show;

/// A value whose first row of a sequence is 0.
pub const ZERO_FIRST: &str = "zero_first";

pub(super) fn rules() -> Vec<OpRule> {
    let tokens = Signature::new().needs("tokens", ParamKind::Tokens);
    let embed = tokens
        .clone()
        .needs("W", ParamKind::Module)
        .needs("n", ParamKind::Dim)
        .needs("d", ParamKind::Dim)
        .takes("offset", ParamKind::Int, crate::scalar::Scalar::Int(0));
    let grid = tokens
        .clone()
        .needs("W", ParamKind::Module)
        .needs("side", ParamKind::Dim)
        .needs("d", ParamKind::Dim)
        .word("mode", &["bilinear", "bicubic", "antialias"])
        .flag("align_corners", false)
        .word("padding", &["border", "zeros"]);
    let sinusoid = tokens.needs("frequencies", ParamKind::Numbers).takes(
        "offset",
        ParamKind::Int,
        crate::scalar::Scalar::Int(0),
    );
    let temperature = Signature::new()
        .needs("x", ParamKind::Value)
        .needs("scale", ParamKind::Float)
        .needs("every", ParamKind::Float)
        .takes("shift", ParamKind::Float, crate::scalar::Scalar::Float(0.0))
        .word("factor", &["rounded", "f32"])
        .neutral()
        .word("form", &["log", "power", "log_ratio"]);
    vec![
        OpRule::new("position_embed", embed, infer_embed)
            .is_a(&[Trait::LooksUp, Trait::FromTokens, Trait::Positional])
            .gives("`[d]`")
            .notes("row `position + offset` of `W.weight [n + offset, d]`"),
        OpRule::new("grid_embed", grid, infer_grid)
            .is_a(&[Trait::LooksUp, Trait::FromTokens, Trait::Positional])
            .gives("`[d]`")
            .notes(
                "learned positions of a square grid, `W.weight [side * side, d]`, resampled to the grid of an \
                 image: the weighted sum of the 2 by 2 places around a row's own (`mode='bicubic'`: 4 by 4; \
                 `'antialias'`: bilinear over all places that a patch covers), in f32, one rounding. The row and the column of each patch are given with the run. \
                 `align_corners`: the corners of both grids are the same places; `padding='zeros'`: places \
                 outside count nothing, in the stead of the border",
            ),
        OpRule::new("sinusoid", sinusoid, infer_sinusoid)
            .is_a(&[Trait::FromTokens, Trait::Positional])
            .gives("`[2 * frequencies]`")
            .notes("sines of `(position + offset) * frequency`, then cosines"),
        OpRule::new("temperature", temperature, infer_temperature)
            .is_a(&[Trait::Positional])
            .gives("like x")
            .notes(
                "times `1 + scale * log(1 + floor((position + shift) / every))`, rounded before \
                 (not with `factor='f32'`) and after; `form='power'`: times `(1 + (position + \
                 shift) / every) ** scale`; `form='log_ratio'`: times `1 + scale * log(max((position + \
                 shift) / every, 1))`",
            ),
        OpRule::new(ZERO_FIRST, Signature::new().needs("x", ParamKind::Value), infer_zero_first)
            .is_a(&[Trait::Positional])
            .gives("like x")
            .notes("the first row of a sequence becomes 0; `nextn: first: zeroed` makes it"),
    ]
}

/// Returns the offset between rows and positions.
fn offset(call: &Infer<'_>) -> Result<usize, EvalError> {
    usize::try_from(call.int("offset")?)
        .map_err(|_| call.error("offset", "an offset is 0 or above").into())
}

fn infer_embed(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let _tokens = call.input("tokens")?;
    let n = call.dim("n")?;
    let d = call.dim("d")?;
    let rows = n.saturating_add(offset(call)?);
    call.weight("weight", "W", "weight", &[rows, d])?;
    call.tap("W");
    call.output(vec![d], DtypeRule::Activation);
    Ok(())
}

fn infer_grid(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let _tokens = call.input("tokens")?;
    let side = call.dim("side")?;
    let d = call.dim("d")?;
    call.weight("weight", "W", "weight", &[side.saturating_mul(side), d])?;
    call.output(vec![d], DtypeRule::Activation);
    Ok(())
}

fn infer_sinusoid(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let _tokens = call.input("tokens")?;
    offset(call)?;
    let frequencies = call.length("frequencies").unwrap_or_default();
    call.output(vec![2 * frequencies], DtypeRule::Activation);
    Ok(())
}

fn infer_zero_first(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    call.output(x.shape, x.dtype);
    Ok(())
}

fn infer_temperature(call: &mut Infer<'_>) -> Result<(), EvalError> {
    let x = call.input("x")?;
    if x.shape.is_empty() {
        return Err(call.error("x", "this has no axis").label(show(&x.shape)).into());
    }
    if call.float("every")? <= 0.0 || call.float("shift")? < 0.0 {
        return Err(call.error("every", "positions are counted forward, in steps above 0").into());
    }
    call.drop_defaults(&["form"]);
    call.output(x.shape, x.dtype);
    Ok(())
}
