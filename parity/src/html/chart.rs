//! Line charts with a logarithmic axis, as SVG text.

use std::fmt::Write as _;

use super::number;
use crate::junit::escape;

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 190.0;
const LEFT: f64 = 42.0;
const RIGHT: f64 = 8.0;
const BOTTOM: f64 = 22.0;
const TOP: f64 = 10.0;

/// Line of a chart.
pub(super) struct Series {
    /// Name in tooltips.
    pub(super) name: String,
    /// Name in the legend, once per class; `name` if none.
    pub(super) legend: Option<&'static str>,
    /// CSS class: `ours`, `floor`, `local`, `other`, `wrong`, or `c0` to `c7` for one of several prompts.
    pub(super) class: &'static str,
    /// Column and value.
    pub(super) points: Vec<(usize, f64)>,
    /// Columns to mark as beyond a bound.
    pub(super) failed: Vec<usize>,
}

/// Chart with a title, axes and lines.
pub(super) struct Chart {
    pub(super) title: String,
    /// Names of the columns, for tooltips.
    pub(super) columns: Vec<String>,
    /// Labels under the axis, left and right.
    pub(super) ends: (String, String),
    pub(super) series: Vec<Series>,
    /// Constant bound.
    pub(super) limit: Option<f64>,
}

impl Chart {
    /// Renders the chart; empty without data.
    pub(super) fn svg(&self) -> String {
        let values = self.series.iter().flat_map(|s| s.points.iter().map(|p| p.1));
        let values = values.chain(self.limit).filter(|v| is_on_scale(*v));
        let largest = values.clone().fold(0.0, f64::max);
        if self.series.iter().all(|s| s.points.is_empty()) {
            return String::new();
        }
        let top = if largest > 0.0 { largest.log10().ceil() } else { 0.0 };
        let least = values.fold(largest.max(1e-30), f64::min);
        let bottom = least.log10().floor().max(top - 9.0).min(top - 1.0);
        let plot = HEIGHT - TOP - BOTTOM;
        // Exact agreement (0) is drawn on the axis, NaN at the top edge.
        let y = |v: f64| {
            let log = if v == 0.0 {
                bottom
            } else if is_on_scale(v) {
                v.log10().clamp(bottom, top)
            } else {
                top
            };
            TOP + plot * (top - log) / (top - bottom)
        };
        let last = self.columns.len().saturating_sub(1).max(1) as f64;
        let mut out = format!(
            "<figure><figcaption>{}</figcaption>{}<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(&self.title),
            self.legend(),
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
                // A gap is a position that was not compared.
                let follows = n > 0 && s.points[n - 1].0 + 1 == *column;
                let pen = if follows { 'L' } else { 'M' };
                let _ = write!(out, "{pen}{:.1} {:.1}", x_of(*column, last), y(*value));
            }
            out.push_str("\"/>");
            for (column, value) in &s.points {
                let bad = s.failed.contains(column);
                let _ = write!(
                    out,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{}\"{}><title>{}: {} {}</title></circle>",
                    x_of(*column, last),
                    y(*value),
                    if bad { 3.2 } else { 1.8 },
                    if bad { " class=\"beyond\"" } else { "" },
                    escape(self.columns.get(*column).map_or("", String::as_str)),
                    escape(&s.name),
                    number(*value)
                );
            }
            out.push_str("</g>");
        }
        let base = HEIGHT - 6.0;
        let _ = writeln!(
            out,
            "<text x=\"{LEFT}\" y=\"{base}\">{}</text><text x=\"{WIDTH}\" y=\"{base}\" text-anchor=\"end\">{}</text></svg></figure>",
            escape(&self.ends.0),
            escape(&self.ends.1)
        );
        out
    }

    /// Returns the legend with every colour in the chart.
    fn legend(&self) -> String {
        let mut entries: Vec<(&str, &str)> = Vec::new();
        for s in self.series.iter().filter(|s| !s.points.is_empty()) {
            let entry = (s.class, s.legend.unwrap_or(&s.name));
            if !entries.contains(&entry) {
                entries.push(entry);
            }
        }
        if self.series.iter().any(|s| !s.failed.is_empty()) {
            entries.push(("beyond", "beyond its bound"));
        }
        if self.limit.is_some() {
            entries.push(("limit", "bound"));
        }
        let items: String =
            entries.into_iter().map(|(class, name)| legend_item(class, name)).collect();
        format!("<ul class=\"legend\">{items}</ul>")
    }
}

/// True if a logarithmic axis has a place for a value.
fn is_on_scale(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

/// Returns the horizontal place of a column; `last` is the index of the last one.
fn x_of(column: usize, last: f64) -> f64 {
    LEFT + (WIDTH - LEFT - RIGHT) * column as f64 / last
}

/// Formats one colour of the legend.
fn legend_item(class: &str, name: &str) -> String {
    format!(
        "<li><svg viewBox=\"0 0 14 6\" aria-hidden=\"true\"><path class=\"key {class}\" d=\"M0 3H14\"/></svg>{}</li>",
        escape(name)
    )
}
