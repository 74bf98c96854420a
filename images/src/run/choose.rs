//! Choices among grids and resolutions.

use registry::diag::{Finding, Span};
use registry::scalar::Scalar;
use registry::syntax::Expr;

use super::geometry::Sides;
use super::{PictureFrame, PictureScope};
use crate::sheet::Choice;

/// Most tiles of a grid, so that a search ends.
const MAX_TILES: usize = 1024;

impl PictureScope {
    /// Makes a choice for a frame and gives names to the result.
    pub(super) fn choose(
        &mut self,
        choice: &Choice,
        frame: &PictureFrame,
        at: &Span,
    ) -> Result<(), Finding> {
        let sides = Sides { height: frame.height, width: frame.width };
        match choice {
            Choice::Ratio { least, limit, area } => {
                let area = self.size(area)?;
                let grid = nearest_ratio(sides, self.tiles(least)?, self.tiles(limit)?, area);
                self.count("tile_rows", grid.height);
                self.count("tile_columns", grid.width);
            }
            Choice::Resolution(list) => {
                let best = best_resolution(sides, &resolutions(&self.value(list)?, list)?);
                let best = best.ok_or_else(|| {
                    Finding::error(at, "no resolution fits").label("expected a list with some")
                })?;
                self.count("target_height", best.height);
                self.count("target_width", best.width);
            }
            Choice::Canvas { limit, side, largest } => {
                let canvases = canvases(self.tiles(limit)?, self.size(side)?);
                let best = best_canvas(sides, &canvases, self.holds(Some(largest))?);
                let best = best.ok_or_else(|| {
                    Finding::error(at, "no canvas fits").label("expected tiles and a side")
                })?;
                self.count("target_height", best.height);
                self.count("target_width", best.width);
            }
        }
        Ok(())
    }

    /// Returns a number of tiles.
    fn tiles(&self, expr: &Expr) -> Result<usize, Finding> {
        let count = self.size(expr)?;
        if count > MAX_TILES {
            let label = format!("found {count}, expected at most {MAX_TILES}");
            return Err(Finding::error(&expr.at, "these are too many tiles").label(label));
        }
        Ok(count)
    }
}

/// Returns the grid whose ratio is nearest to the frame's; among equally near ones a larger grid only if the frame has
/// more than half of its pixels.
fn nearest_ratio(frame: Sides, least: usize, limit: usize, area: usize) -> Sides {
    let mut grids = Vec::new();
    for width in 1..=limit {
        for height in 1..=limit / width {
            if width * height >= least {
                grids.push(Sides { height, width });
            }
        }
    }
    grids.sort_by_key(|grid| grid.width * grid.height);
    let ratio = frame.width as f64 / frame.height as f64;
    let pixels = frame.width as f64 * frame.height as f64;
    let mut best = Sides { height: 1, width: 1 };
    let mut nearest = f64::INFINITY;
    for grid in grids {
        let distance = (ratio - grid.width as f64 / grid.height as f64).abs();
        let tiles = (grid.width * grid.height) as f64;
        if distance < nearest {
            nearest = distance;
            best = grid;
        } else if distance == nearest && pixels > 0.5 * area as f64 * tiles {
            best = grid;
        }
    }
    best
}

/// Reads a height and a width.
fn pair(item: &Scalar) -> Option<Sides> {
    match item {
        Scalar::List(sides) if sides.len() == 2 => {
            Some(Sides { height: sides[0].as_usize()?, width: sides[1].as_usize()? })
        }
        _ => None,
    }
}

/// Reads a list of heights and widths.
fn resolutions(list: &Scalar, expr: &Expr) -> Result<Vec<Sides>, Finding> {
    let Scalar::List(items) = list else {
        let label = format!("found {}, expected a list of pairs", list.kind());
        return Err(Finding::error(&expr.at, "these are no resolutions").label(label));
    };
    items.iter().map(pair).collect::<Option<Vec<Sides>>>().ok_or_else(|| {
        Finding::error(&expr.at, "these are no resolutions")
            .label("expected a height and a width in each item")
    })
}

/// Returns the resolution that keeps most pixels of the frame, and of those the one that wastes least.
fn best_resolution(frame: Sides, resolutions: &[Sides]) -> Option<Sides> {
    let height = frame.height as f64;
    let width = frame.width as f64;
    let mut best = None;
    let mut most_kept = 0.0;
    let mut least_wasted = f64::INFINITY;
    for sides in resolutions {
        let scale = (sides.width as f64 / width).min(sides.height as f64 / height);
        let scaled = (width * scale).trunc() * (height * scale).trunc();
        let kept_pixels = scaled.min(width * height);
        let wasted = sides.width as f64 * sides.height as f64 - kept_pixels;
        if kept_pixels > most_kept || (kept_pixels == most_kept && wasted < least_wasted) {
            most_kept = kept_pixels;
            least_wasted = wasted;
            best = Some(*sides);
        }
    }
    best
}

/// Returns all canvases of up to so many square tiles, those of one ratio together, as the ratios appear.
fn canvases(limit: usize, side: usize) -> Vec<Sides> {
    let mut ratios: Vec<(f64, Vec<Sides>)> = Vec::new();
    for tiles in (1..=limit).rev() {
        for rows in (1..=tiles).filter(|rows| tiles % rows == 0) {
            let columns = tiles / rows;
            let ratio = rows as f64 / columns as f64;
            let canvas =
                Sides { height: rows.saturating_mul(side), width: columns.saturating_mul(side) };
            match ratios.iter_mut().find(|(other, _)| *other == ratio) {
                Some((_, list)) => list.push(canvas),
                None => ratios.push((ratio, vec![canvas])),
            }
        }
    }
    ratios.into_iter().flat_map(|(_, list)| list).collect()
}

/// Returns the factor with which a frame fits a canvas, in single precision.
fn canvas_factor(frame: Sides, canvas: Sides) -> f32 {
    let across = canvas.width as f32 / frame.width as f32;
    let down = canvas.height as f32 / frame.height as f32;
    if down > across { across } else { down }
}

/// Returns the canvas that enlarges a frame least, or most if `largest`; if all are too small, the one that reduces
/// least. The factors have single precision, as tensors of the class.
fn best_canvas(frame: Sides, canvases: &[Sides], largest: bool) -> Option<Sides> {
    let factor = |canvas: &Sides| canvas_factor(frame, *canvas);
    let enlarging = canvases.iter().map(factor).filter(|factor| *factor >= 1.0);
    let chosen = if largest { enlarging.reduce(f32::max) } else { enlarging.reduce(f32::min) };
    let chosen = chosen.or_else(|| canvases.iter().map(factor).reduce(f32::max))?;
    let fitting = canvases.iter().filter(|canvas| factor(canvas) == chosen);
    fitting.copied().min_by_key(|canvas| canvas.height.saturating_mul(canvas.width))
}
