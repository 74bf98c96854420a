//! Line charts with a logarithmic axis, as SVG text.

use std::fmt::Write as _;

use crate::junit::escape;

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 190.0;
const LEFT: f64 = 42.0;
const BOTTOM: f64 = 22.0;
const TOP: f64 = 10.0;

/// One line.
pub(super) struct Series {
    /// In the legend and in tooltips.
    pub(super) name: String,
    /// Its look: `ours`, `floor`, `local`, `other`, `wrong`.
    pub(super) class: &'static str,
    /// Column and value.
    pub(super) points: Vec<(usize, f64)>,
    /// Columns to mark as failed.
    pub(super) failed: Vec<usize>,
}

/// One figure.
pub(super) struct Chart {
    pub(super) title: String,
    /// What each column is, for tooltips.
    pub(super) columns: Vec<String>,
    /// Under the axis, left and right.
    pub(super) ends: (String, String),
    pub(super) series: Vec<Series>,
    /// A bound that is the same everywhere.
    pub(super) limit: Option<f64>,
}

impl Chart {
    /// Draws it; nothing when there is nothing to draw.
    pub(super) fn svg(&self) -> String {
        let values =
            || self.series.iter().flat_map(|s| s.points.iter().map(|p| p.1)).chain(self.limit);
        let shown = |v: f64| v.is_finite() && v > 0.0;
        let most = values().filter(|v| shown(*v)).fold(0.0, f64::max);
        if values().next().is_none() {
            return String::new();
        }
        let top = if most > 0.0 { most.log10().ceil() } else { 0.0 };
        let least = values().filter(|v| shown(*v)).fold(most.max(1e-30), f64::min);
        let bottom = least.log10().floor().max(top - 9.0).min(top - 1.0);
        let plot = HEIGHT - TOP - BOTTOM;
        // Exact agreement (0) lies on the axis, what is not a number at the top edge.
        let y = |v: f64| {
            let log = if v == 0.0 {
                bottom
            } else if shown(v) {
                v.log10().clamp(bottom, top)
            } else {
                top
            };
            TOP + plot * (top - log) / (top - bottom)
        };
        let last = self.columns.len().saturating_sub(1).max(1) as f64;
        let x = |n: usize| LEFT + (WIDTH - LEFT - 8.0) * n as f64 / last;
        let mut out = format!("<figure><figcaption>{}", escape(&self.title));
        let mut named = std::collections::BTreeSet::new();
        for s in self.series.iter().filter(|s| !s.name.is_empty()) {
            if named.insert((s.class, &s.name)) && s.class != "other" {
                let _ = write!(
                    out,
                    " <svg style=\"display:inline;width:1.4em\" viewBox=\"0 0 14 6\" aria-hidden=\"true\"><path class=\"key {}\" d=\"M0 3H14\"/></svg> <span class=\"soft\">{}</span>",
                    s.class,
                    escape(&s.name)
                );
            }
        }
        let _ = write!(
            out,
            "</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(&self.title)
        );
        let stride = (((top - bottom) / 5.0).ceil() as i32).max(1);
        let mut power = bottom as i32;
        while power <= top as i32 {
            let at = y(10.0_f64.powi(power));
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{WIDTH}\"/><text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">1e{power}</text>",
                LEFT - 5.0,
                at + 3.0
            );
            power += stride;
        }
        if let Some(limit) = self.limit {
            let _ = write!(
                out,
                "<path class=\"limit\" d=\"M{LEFT} {0:.1}H{WIDTH}\"><title>bound {limit:.1e}</title></path>",
                y(limit)
            );
        }
        for s in &self.series {
            let _ = write!(out, "<g class=\"{}\"><path class=\"line\" d=\"", s.class);
            for (n, (column, value)) in s.points.iter().enumerate() {
                let _ = write!(
                    out,
                    "{}{:.1} {:.1}",
                    if n == 0 { 'M' } else { 'L' },
                    x(*column),
                    y(*value)
                );
            }
            out.push_str("\"/>");
            for (column, value) in &s.points {
                let bad = s.failed.contains(column);
                let _ = write!(
                    out,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{}\"{}><title>{}: {} {value:.2e}</title></circle>",
                    x(*column),
                    y(*value),
                    if bad { 3.2 } else { 1.8 },
                    if bad { " class=\"wrong\"" } else { "" },
                    escape(self.columns.get(*column).map_or("", String::as_str)),
                    escape(&s.name)
                );
            }
            out.push_str("</g>");
        }
        let base = HEIGHT - 6.0;
        let _ = write!(
            out,
            "<text x=\"{LEFT}\" y=\"{base}\">{}</text><text x=\"{WIDTH}\" y=\"{base}\" text-anchor=\"end\">{}</text></svg></figure>",
            escape(&self.ends.0),
            escape(&self.ends.1)
        );
        out
    }
}
