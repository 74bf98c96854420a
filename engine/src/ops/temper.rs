//! `temper`: queries grow with their position, so that attention over long contexts stays sharp
//! (Nakanishi 2025, arXiv 2501.19399).

use super::Ctx;
use crate::Error;
use crate::kernels::round::round;

/// Times `1 + by * ln(1 + floor((position + shift) / every))`: the factor in f32, one rounding
/// after the product.
pub(super) fn run(ctx: &mut Ctx<'_>) -> Result<(), Error> {
    let x = ctx.input(0)?;
    let dtype = ctx.output_dtype(0);
    let (every, by) = (ctx.count("every")?.max(1) as f32, ctx.number("by")? as f32);
    let shift = ctx.number_or_null("shift")?.unwrap_or(0.0) as f32;
    let (mut y, width) = (x.to_vec(), x.width());
    for chunk in ctx.chunks() {
        for (n, row) in chunk.rows.clone().enumerate() {
            let factor = factor((chunk.start + n) as f32, every, by, shift);
            for x in y.get_mut(row * width..(row + 1) * width).unwrap_or_default() {
                *x *= factor;
            }
        }
    }
    round(dtype, &mut y);
    ctx.set(0, y)
}

fn factor(position: f32, every: f32, by: f32, shift: f32) -> f32 {
    ((position + shift) / every).floor().ln_1p() * by + 1.0
}

#[cfg(test)]
mod tests {
    use super::factor;

    #[test]
    fn factors_step_with_the_position() {
        for (position, want) in [(0.0, 1.0), (6.0, 1.0), (7.0, 1.069_314_7), (15.0, 1.109_861_2)] {
            assert!((factor(position, 8.0, 0.1, 1.0) - want).abs() < 1e-6, "{position}");
        }
    }
}
