//! Sizes that the library computes of a setting that holds a size.

use registry::diag::{Finding, Span};
use registry::scalar::Scalar;

/// Sides in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sides {
    pub(super) height: usize,
    pub(super) width: usize,
}

/// Returns a field of a size; none if it is null or zero, as Python's conditions take them.
fn field(size: &Scalar, name: &str) -> Option<f64> {
    let Scalar::Map(entries) = size else { return None };
    let (_, value) = entries.iter().find(|(key, _)| key == name)?;
    value.as_f64().filter(|side| *side > 0.0 && *side < 1e9)
}

/// Returns the height and width of a size that states both.
pub(super) fn stated(size: &Scalar) -> Option<Sides> {
    let height = field(size, "height")? as usize;
    Some(Sides { height, width: field(size, "width")? as usize })
}

/// Returns the size of a resized frame, by the rule of the fields that a size has.
pub(super) fn resized(frame: Sides, size: &Scalar, at: &Span) -> Result<Sides, Finding> {
    let shortest = field(size, "shortest_edge");
    let longest = field(size, "longest_edge");
    let highest = field(size, "max_height");
    let widest = field(size, "max_width");
    match (shortest, longest, highest, widest) {
        (Some(shortest), Some(longest), ..) => Ok(between_edges(frame, shortest, longest)),
        (Some(shortest), None, ..) => Ok(by_shortest(frame, shortest)),
        (None, _, Some(height), Some(width)) => {
            let scale = (height / frame.height as f64).min(width / frame.width as f64);
            Ok(Sides {
                height: (frame.height as f64 * scale) as usize,
                width: (frame.width as f64 * scale) as usize,
            })
        }
        _ => stated(size).ok_or_else(|| {
            Finding::error(at, "the setting is no size to resize to").label(format!(
                "found {size}, expected `height` and `width`, `shortest_edge`, or `max_height` and `max_width`"
            ))
        }),
    }
}

/// Gives the shorter side a length, and keeps the ratio.
fn by_shortest(frame: Sides, shortest: f64) -> Sides {
    let short = frame.height.min(frame.width);
    let long = frame.height.max(frame.width);
    let short_side = shortest as usize;
    let long_side = (shortest * long as f64 / short as f64) as usize;
    if frame.width <= frame.height {
        Sides { height: long_side, width: short_side }
    } else {
        Sides { height: short_side, width: long_side }
    }
}

/// Gives the shorter side a length, or less where the longer would exceed a bound.
fn between_edges(frame: Sides, shortest: f64, longest: f64) -> Sides {
    let height = frame.height as f64;
    let width = frame.width as f64;
    let short = height.min(width);
    let long = height.max(width);
    let mut side = shortest;
    let mut exact = None;
    if long / short * side > longest {
        let bounded = longest * short / long;
        side = bounded.round_ties_even();
        exact = Some(bounded);
    }
    if (height <= width && height == side) || (width <= height && width == side) {
        return frame;
    }
    let factor = exact.unwrap_or(side);
    if width < height {
        Sides { height: (factor * height / width) as usize, width: side as usize }
    } else {
        Sides { height: side as usize, width: (factor * width / height) as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_keep_the_ratio() {
        let wide = Sides { height: 100, width: 333 };
        assert_eq!(by_shortest(wide, 50.0), Sides { height: 50, width: 166 });
        assert_eq!(between_edges(wide, 50.0, 120.0), Sides { height: 36, width: 120 });
        assert_eq!(between_edges(wide, 100.0, 400.0), wide);
    }
}
