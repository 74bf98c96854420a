//! `grid_embed`: learned positions of a square grid, resampled to the grid of an image.

use super::embed::Table;
use super::{Args, Ctx, Kernel, Kernels};
use crate::Error;
use crate::kernels::round::round;

pub(super) fn kernels(kernels: &mut Kernels) {
    kernels.prepared("grid_embed", GridEmbed::prepare);
}

/// A row for each patch, between learned ones.
struct GridEmbed {
    table: Table,
    resampling: Resampling,
}

impl GridEmbed {
    fn prepare(args: &Args<'_>) -> Result<Self, Error> {
        let table = Table::of(args)?;
        let side = args.count("side")?;
        if side == 0 || side.checked_mul(side) != Some(table.rows) {
            return Err(args.error(format!("{} places are no square of {side}", table.rows)));
        }
        let resampling = Resampling {
            side,
            filter: args.one_of(
                "mode",
                &[
                    ("bilinear", PlaceFilter::Linear),
                    ("bicubic", PlaceFilter::Cubic),
                    ("antialias", PlaceFilter::Covering),
                ],
            )?,
            align_corners: args.flag("align_corners")?,
            zeros_outside: args.one_of("padding", &[("border", false), ("zeros", true)])?,
        };
        Ok(Self { table, resampling })
    }
}

impl Kernel for GridEmbed {
    fn run(&self, ctx: &mut Ctx<'_>) -> Result<(), Error> {
        let matrix = ctx.matrix("weight")?;
        let weight = matrix.view();
        let width = self.table.width;
        let dtype = ctx.output_dtype(0);
        let mut data = vec![0.0; ctx.tokens().len() * width];
        let mut learned = vec![0.0; width];
        let mut placed = 0;
        for (rows, axes) in ctx.placed() {
            let &[down, across, ..] = *axes else {
                return Err(ctx.error(
                    "the patches have positions in one axis; it needs their rows and columns",
                ));
            };
            placed += rows.len();
            let [height, columns] = [down, across].map(extent);
            for ((y, x), row) in down.iter().zip(across).zip(rows.clone()) {
                let sum = &mut data[row * width..(row + 1) * width];
                let across = self.resampling.taps(*x, columns);
                for (place_down, weight_down) in self.resampling.taps(*y, height) {
                    for (place_across, weight_across) in &across {
                        weight.widen_row(
                            place_down * self.resampling.side + place_across,
                            &mut learned,
                        );
                        let share = weight_down * weight_across;
                        sum.iter_mut().zip(&learned).for_each(|(sum, x)| *sum += x * share);
                    }
                }
                round(dtype, sum);
            }
        }
        if placed != ctx.tokens().len() {
            return Err(ctx.error(
                "some rows were given no positions; it needs the row and column of each patch",
            ));
        }
        ctx.set(0, data)
    }

    fn needs_whole_chunks(&self) -> bool {
        true
    }
}

/// Returns the number of places of an axis whose positions these are.
fn extent(positions: &[u32]) -> usize {
    positions.iter().max().map_or(1, |last| *last as usize + 1)
}

/// The weights of places by their distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlaceFilter {
    /// Of the two next to a position.
    Linear,
    /// Of the four next to it.
    Cubic,
    /// Of all that a position covers where it is wider than a place, as far as it covers them.
    Covering,
}

/// The way in which places of a grid of `side` are found for an axis of another length.
struct Resampling {
    side: usize,
    filter: PlaceFilter,
    align_corners: bool,
    zeros_outside: bool,
}

impl Resampling {
    /// Returns the learned places around a position of an axis, and the weight of each. All arithmetic is that of f32.
    fn taps(&self, position: u32, length: usize) -> Vec<(usize, f32)> {
        let side = self.side as f32;
        let position = position as f32;
        let place = if self.align_corners {
            position * (side - 1.0) / (length.saturating_sub(1).max(1) as f32)
        } else {
            (position + 0.5) * side / length as f32 - 0.5
        };
        if self.filter == PlaceFilter::Covering {
            return self.covered(place, (side / length as f32).max(1.0));
        }
        let floor = place.floor();
        let offsets = if self.filter == PlaceFilter::Cubic { -1..=2 } else { 0..=1 };
        let last = self.side as i64 - 1;
        offsets
            .map(|offset: i32| {
                let raw = floor as i64 + i64::from(offset);
                let outside = self.zeros_outside && !(0..=last).contains(&raw);
                let distance = (place - floor - offset as f32).abs();
                let weight = match self.filter {
                    PlaceFilter::Cubic => cubic(distance),
                    _ => (1.0 - distance).max(0.0),
                };
                (raw.clamp(0, last) as usize, if outside { 0.0 } else { weight })
            })
            .collect()
    }
}

impl Resampling {
    /// Returns the places that a position covers as far as `reach` on each side, with weights that sum to 1.
    fn covered(&self, place: f32, reach: f32) -> Vec<(usize, f32)> {
        let weight = |source: usize| (1.0 - (source as f32 - place).abs() / reach).max(0.0);
        let sum: f32 = (0..self.side).map(weight).sum();
        let shares = (0..self.side).map(|source| (source, weight(source) / sum));
        shares.filter(|(_, share)| *share > 0.0).collect()
    }
}

/// Keys' kernel with a = -0.75, which torch uses.
fn cubic(distance: f32) -> f32 {
    const A: f32 = -0.75;
    if distance <= 1.0 {
        ((A + 2.0) * distance - (A + 3.0)) * distance * distance + 1.0
    } else {
        ((A * distance - 5.0 * A) * distance + 8.0 * A) * distance - 4.0 * A
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linear(align_corners: bool) -> Resampling {
        Resampling { side: 4, filter: PlaceFilter::Linear, align_corners, zeros_outside: false }
    }

    #[test]
    fn corners_of_both_grids_are_the_same_places() {
        assert_eq!(linear(true).taps(0, 7), [(0, 1.0), (1, 0.0)]);
        assert_eq!(linear(true).taps(6, 7), [(3, 1.0), (3, 0.0)]);
        assert_eq!(linear(true).taps(3, 7), [(1, 0.5), (2, 0.5)]);
        // One patch stands at the first place.
        assert_eq!(linear(true).taps(0, 1)[0], (0, 1.0));
    }

    #[test]
    fn centres_of_patches_lie_between_those_of_places() {
        // Twice as many patches: a quarter of a place before the first centre.
        assert_eq!(linear(false).taps(0, 8), [(0, 0.25), (0, 0.75)]);
        assert_eq!(linear(false).taps(1, 8), [(0, 0.75), (1, 0.25)]);
        let zeros = Resampling { zeros_outside: true, ..linear(false) };
        assert_eq!(zeros.taps(0, 8), [(0, 0.0), (0, 0.75)]);
    }

    #[test]
    fn weights_of_a_cubic_sum_to_one() {
        let cubic = Resampling { filter: PlaceFilter::Cubic, ..linear(false) };
        for position in 0..9 {
            let sum: f32 = cubic.taps(position, 9).iter().map(|(_, weight)| weight).sum();
            assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        }
        assert_eq!(cubic.taps(2, 4)[1], (2, 1.0));
    }

    #[test]
    fn a_patch_that_covers_two_places_takes_their_neighbours_too() {
        let covering = Resampling { filter: PlaceFilter::Covering, ..linear(false) };
        // The centre lies between places 0 and 1, and reaches two places on each side.
        assert_eq!(covering.taps(0, 2), [(0, 0.428_571_43), (1, 0.428_571_43), (2, 0.142_857_15)]);
        // More patches than places: as bilinear, but weights of the border sum to 1 there.
        assert_eq!(covering.taps(0, 8), [(0, 1.0)]);
        assert_eq!(covering.taps(1, 8), [(0, 0.75), (1, 0.25)]);
    }
}
