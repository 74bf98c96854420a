//! Writes a report as one self-contained page, without scripts, fonts or external addresses.

mod chart;

use std::fmt::Write as _;

use crate::diagnose::Diagnosis;
use crate::dump::Phase;
use crate::gate::{Gate, Mode, Subject, Verdict};
use crate::junit::escape;
use crate::report::{Divergence, Report, RunReport, ignored, restores};
use crate::schedules::ScheduleRow;
use chart::{Chart, Series};

/// CSS classes of prompts, in order; further prompts reuse them from the start.
const COLOURS: [&str; 8] = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"];

/// Writes a report as a self-contained HTML page.
pub fn html(report: &Report) -> String {
    let s = &report.subject;
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>parity: {}</title>\n<style>\n{}</style></head><body>\n",
        escape(&s.model),
        include_str!("html/style.css")
    );
    let word = if report.verdict() == Verdict::Fail { "differ" } else { "agree" };
    let _ = writeln!(
        out,
        "<h1>{} on {} <span class=\"badge {}\">{word}</span></h1>\
         <p class=\"soft\">{} &middot; model <code>{}</code> &middot; reference <code>{}</code> by {}</p>",
        escape(&s.spec),
        escape(&s.engine),
        class(report.verdict()),
        escape(&s.architecture),
        escape(&s.model),
        escape(&s.reference),
        escape(&s.producer)
    );
    if let Some(unproven) = report.unproven() {
        let _ = writeln!(out, "<p>Not proven: {}</p>", prose(&unproven));
    }
    if let Some(diagnosis) = &report.diagnosis {
        out.push_str(&causes(diagnosis));
    }
    let first = report.first_failing();
    if let Some((run, divergence)) = first.and_then(|run| Some((run, run.headline()?))) {
        out.push_str(&finding(run, divergence));
    }
    out.push_str(&summary(report));
    for of in &report.runs {
        out.push_str(&run(of, first.is_some_and(|first| std::ptr::eq(first, of))));
    }
    out.push_str(&schedules(report));
    if !report.notes.is_empty() {
        out.push_str("<h2>Notes</h2><ul>");
        for note in &report.notes {
            let _ = write!(out, "<li>{}</li>", prose(note));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("</body></html>\n");
    out
}

/// Formats a run: a run that agrees is folded, one that differs begins with its first divergence, unless the page has
/// begun with that.
fn run(run: &RunReport, is_first: bool) -> String {
    let charts: String = charts(run).iter().map(Chart::svg).collect();
    let charts = match charts.as_str() {
        "" => String::new(),
        charts => format!("<div class=\"charts\">{charts}</div>\n"),
    };
    let title = format!("{} {}", escape(&run.label()), badge(run.verdict()));
    let (failed, remaining): (Vec<&Gate>, Vec<&Gate>) = in_order(run).partition(|g| g.fails());
    if run.verdict() != Verdict::Fail {
        let all = format!("{title} {} comparisons", remaining.len());
        return folded(&all, &(charts + &gates(&remaining)));
    }
    let mut out = format!("<h2>{title}</h2>\n");
    if let Some(first) = run.headline().filter(|_| !is_first) {
        out.push_str(&finding(run, first));
    }
    out.push_str(&charts);
    let (listed, more) = failed.split_at(failed.len().min(LISTED));
    let _ = writeln!(
        out,
        "<p>{} of {} comparisons are beyond a bound.</p>",
        failed.len(),
        run.gates.len()
    );
    if !listed.is_empty() {
        out.push_str(&gates(listed));
    }
    if !more.is_empty() {
        out.push_str(&folded(&format!("{} more beyond a bound", more.len()), &gates(more)));
    }
    out + &folded(&format!("{} other comparisons", remaining.len()), &gates(&remaining))
}

/// Number of failed comparisons that are shown; the others are folded.
const LISTED: usize = 12;

/// Hides a part of the page behind a line.
fn folded(line: &str, part: &str) -> String {
    format!("<details><summary>{line}</summary>{part}</details>\n")
}

/// Returns the comparisons of a run in order of execution.
fn in_order(run: &RunReport) -> impl Iterator<Item = &Gate> {
    let mut sorted: Vec<&Gate> = run.gates.iter().collect();
    sorted.sort_by_key(|g| (g.phase, g.mode, g.place));
    sorted.into_iter()
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Skip => "skip",
        Verdict::Fail => "fail",
    }
}

fn badge(verdict: Verdict) -> String {
    format!("<span class=\"badge {0}\">{0}</span>", class(verdict))
}

/// Formats a number with two significant digits; a dash if nothing was compared.
fn number(x: f64) -> String {
    if x.is_nan() { "&ndash;".to_owned() } else { format!("{x:.1e}") }
}

/// Escapes a sentence and formats text between backticks as code.
fn prose(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    let mut out = String::new();
    for (n, part) in parts.iter().enumerate() {
        // An unpaired last backtick does not open code.
        let code = n % 2 == 1 && n + 1 < parts.len();
        let (open, close) = if code { ("<code>", "</code>") } else { ("", "") };
        out.extend([open, &escape(part), close]);
    }
    out
}

/// Returns the head of a table: each column's title, and its tooltip.
fn head(columns: &[(&str, &str)]) -> String {
    let cells: String = columns.iter().map(|(title, tip)| head_cell(title, tip)).collect();
    format!("<thead><tr>{cells}</tr></thead>")
}

/// Formats one cell of the head of a table.
fn head_cell(title: &str, tip: &str) -> String {
    format!("<th scope=\"col\" title=\"{tip}\">{title}</th>")
}

fn summary(report: &Report) -> String {
    let mut out = format!(
        "<div class=\"card scroll\"><table>{}<tbody>",
        head(&[
            ("run", "dtype of the run"),
            ("phase", "prefill: all tokens at once; decode: one at a time"),
            ("max |&Delta;logprob|", "largest difference of a log-probability, in nats"),
            ("bound", "the most that it may be"),
            ("mean", "mean difference of log-probabilities"),
            ("KL", "mean Kullback-Leibler divergence from the reference, in nats"),
            ("top-1", "share of positions with the same likeliest token"),
            ("worst tap", "the module whose output differs most"),
            ("error", "its largest difference over the rms of the reference"),
            ("verdict", "of all comparisons of the phase"),
        ])
    );
    for run in &report.runs {
        let label = escape(&run.label());
        for p in &run.phases {
            let (tap, error) = p
                .worst_tap
                .as_ref()
                .map_or((String::new(), String::new()), |(t, e)| (escape(t), number(*e)));
            let top1 =
                if p.top1.is_nan() { number(p.top1) } else { format!("{:.1}%", p.top1 * 100.0) };
            let _ = write!(
                out,
                "<tr><td>{label}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{top1}<td class=\"mono\">{tap}<td>{error}<td>{}</tr>",
                p.phase,
                number(p.max),
                number(p.limit),
                number(p.mean),
                number(p.kl),
                badge(p.verdict)
            );
        }
        for r in &run.routers {
            let flip = r.widest().map_or(String::new(), |f| {
                format!(
                    "widest margin {:.1e}, bound {:.1e}: {}, {}",
                    f.margin,
                    f.bound,
                    escape(&f.router),
                    escape(&f.place)
                )
            });
            let _ = write!(
                out,
                "<tr><td>{label}<td>routers, {}<td colspan=\"7\">{} of {} choices <span class=\"soft\">{flip}</span><td>{}</tr>",
                r.mode.name(),
                r.agree,
                r.choices,
                badge(r.verdict)
            );
        }
        for g in &run.greedy {
            let flip = g.first_flip.map_or(String::new(), |f| {
                format!("first flip at {}: margin {:.1e}, noise {:.1e}", f.index, f.margin, f.noise)
            });
            let _ = write!(
                out,
                "<tr><td>{label}<td>greedy<td colspan=\"7\">{} of {} tokens <span class=\"soft\">{} {flip}</span><td>{}</tr>",
                g.agree,
                g.tokens,
                escape(&g.prompt),
                badge(g.verdict)
            );
        }
    }
    out + "</tbody></table></div>\n"
}

fn finding(run: &RunReport, first: &Divergence) -> String {
    let mut out = format!(
        "<div class=\"card bad\"><p>First divergence in {}: <b class=\"mono\">{}</b></p><p>{}, prompt <code>{}</code>, {}</p><p>{}</p>",
        escape(&run.label()),
        escape(&first.subject.to_string()),
        first.place(),
        escape(&first.prompt),
        escape(first.mode.inputs()),
        prose(&first.message)
    );
    for hint in &first.hints {
        let _ = write!(out, "<p class=\"soft\">Hint: {}</p>", prose(hint));
    }
    out + "</div>\n"
}

fn causes(diagnosis: &Diagnosis) -> String {
    let title = if diagnosis.explained { "Cause" } else { "No edit explains the numbers" };
    let mut out = format!("<div class=\"card bad\"><p><b>{title}</b></p><ol>");
    // If one edit explains everything, partial explanations are omitted.
    for cause in diagnosis.causes.iter().filter(|cause| !diagnosis.explained || cause.exact) {
        let edits = cause
            .edits
            .iter()
            .map(|edit| format!("{} ({})", prose(&edit.edit), prose(&edit.place)));
        let edits = edits.collect::<Vec<_>>().join("<br>or ");
        let mut besides = String::new();
        for edit in &cause.with {
            let _ =
                write!(besides, "<br>and besides {} ({})", prose(&edit.edit), prose(&edit.place));
        }
        let _ = write!(
            out,
            "<li>{edits}{besides}<br><span class=\"soft\">{}</span></li>",
            restores(cause, diagnosis)
        );
    }
    out.push_str("</ol>");
    if let Some(remark) = ignored(diagnosis) {
        let _ = write!(out, "<p>{}</p>", prose(&remark));
    }
    let _ = writeln!(
        out,
        "<p class=\"soft\">Observed in {}: {}; {} edits of the model were run.</p></div>",
        diagnosis.dtype,
        prose(&diagnosis.observed),
        diagnosis.tried
    );
    out
}

fn charts(run: &RunReport) -> Vec<Chart> {
    let mut charts = Vec::new();
    for phase in Phase::ALL {
        charts.extend(by_op(run, phase));
    }
    for phase in Phase::ALL {
        charts.extend(by_position(run, phase));
    }
    charts.extend(by_state(run));
    charts
}

/// Plots the error of every tap in order of execution: the engine's, the reference's own, and local. Each
/// point is the largest of all prompts.
fn by_op(run: &RunReport, phase: Phase) -> Option<Chart> {
    let mut taps: Vec<&Gate> = run
        .gates
        .iter()
        .filter(|g| g.phase == phase && matches!(g.subject, Subject::Tap { .. }))
        .collect();
    taps.sort_by_key(|g| g.place);
    let mut columns: Vec<String> = Vec::new();
    for gate in &taps {
        let name = gate.subject.to_string();
        if !columns.contains(&name) {
            columns.push(name);
        }
    }
    let series = |name: &str, class, mode, value: &dyn Fn(&Gate) -> Option<f64>| {
        let mut largest = vec![None::<f64>; columns.len()];
        let mut failed = Vec::new();
        for gate in taps.iter().filter(|g| g.mode == mode) {
            let column = columns.iter().position(|c| *c == gate.subject.to_string()).unwrap_or(0);
            if let Some(value) = value(gate) {
                largest[column] = Some(largest[column].map_or(value, |known| known.max(value)));
                if gate.fails() && class != "floor" {
                    failed.push(column);
                }
            }
        }
        let points = largest.iter().enumerate().filter_map(|(n, value)| Some((n, (*value)?)));
        Series { name: name.into(), legend: None, class, points: points.collect(), failed }
    };
    let all = vec![
        series("reference at this dtype", "floor", Mode::Cumulative, &|g| g.floor.map(|f| f.max)),
        series("own inputs", "ours", Mode::Cumulative, &largest_error),
        series("reference's inputs", "local", Mode::Local, &largest_error),
    ];
    let ends = (columns.first()?.clone(), columns.last()?.clone());
    let series = all.into_iter().filter(|s| !s.points.is_empty()).collect();
    Some(Chart { title: format!("Error by op, {phase}"), columns, ends, series, limit: None })
}

/// Returns the largest error of a comparison; none if nothing was compared.
fn largest_error(gate: &Gate) -> Option<f64> {
    (gate.error.count > 0).then_some(gate.error.max)
}

/// Returns the name of a position: in decode, positions after the prefix are counted.
fn position(n: usize) -> String {
    format!("position {n}")
}

/// Plots the largest difference of log-probabilities at each position, with a colour per prompt.
fn by_position(run: &RunReport, phase: Phase) -> Option<Chart> {
    let gates: Vec<&Gate> =
        run.gates.iter().filter(|g| g.phase == phase && g.subject == Subject::Logprobs).collect();
    let first = usize::from(phase == Phase::Decode);
    let length = gates.iter().map(|g| g.by_step.len()).max().filter(|n| *n > first)?;
    // A prompt keeps its colour in both phases.
    let mut prompts: Vec<&str> = Vec::new();
    for gate in run.gates.iter().filter(|g| g.subject == Subject::Logprobs) {
        if !prompts.contains(&gate.prompt.as_str()) {
            prompts.push(&gate.prompt);
        }
    }
    let series = gates
        .iter()
        .map(|g| {
            let n = prompts.iter().position(|prompt| *prompt == g.prompt).unwrap_or(0);
            let points = points(g);
            let beyond = points.iter().filter(|(_, error)| g.fails() && *error > limit_of(g));
            let failed = beyond.map(|(position, _)| *position).collect();
            let class = COLOURS[n % COLOURS.len()];
            Series { name: g.prompt.clone(), legend: None, class, points, failed }
        })
        .collect();
    let limit = gates.iter().map(|g| limit_of(g)).filter(|l| l.is_finite()).reduce(f64::max);
    Some(Chart {
        title: format!("|Δlogprob| by position, {phase}"),
        columns: (0..length).map(position).collect(),
        ends: (position(first), position(length - 1)),
        series,
        limit,
    })
}

/// Returns the limit of the largest difference; infinity without one.
fn limit_of(gate: &Gate) -> f64 {
    gate.bounds.iter().find(|b| b.measure == "max").map_or(f64::INFINITY, |b| b.limit)
}

/// Returns the positions that were compared.
fn points(gate: &Gate) -> Vec<(usize, f64)> {
    gate.by_step.iter().enumerate().filter_map(|(n, error)| Some((n, (*error)?))).collect()
}

/// Plots the error of every state by position, with failures highlighted.
fn by_state(run: &RunReport) -> Option<Chart> {
    let gates: Vec<&Gate> = run
        .gates
        .iter()
        .filter(|g| {
            g.phase == Phase::Decode
                && g.mode == Mode::Cumulative
                && g.moment.is_none()
                && matches!(g.subject, Subject::State { .. })
        })
        .collect();
    let length = gates.iter().map(|g| g.by_step.len()).max().filter(|n| *n > 0)?;
    let mut series: Vec<Series> = gates
        .iter()
        .map(|g| {
            let (class, legend) = if g.fails() {
                ("wrong", "states beyond a bound")
            } else {
                ("other", "states within their bounds")
            };
            let name = format!("{}, prompt {}", g.subject, g.prompt);
            Series { name, legend: Some(legend), class, points: points(g), failed: Vec::new() }
        })
        .collect();
    series.sort_by_key(|s| s.class);
    Some(Chart {
        title: "State error by position, decode".into(),
        columns: (0..length).map(position).collect(),
        ends: ("what the prefix left".into(), position(length - 1)),
        series,
        limit: None,
    })
}

fn gates(sorted: &[&Gate]) -> String {
    let columns = [
        ("subject", "a module's output, a state, or the log-probabilities"),
        ("phase", "prefill: all tokens at once; decode: one at a time"),
        (
            "inputs",
            "own: errors of earlier ops included; reference&#39;s: the error of this op alone",
        ),
        ("prompt", "the prompt of the dump"),
        ("p50", "median difference over the rms of the reference"),
        ("p99", "99 in 100 differences are at most this"),
        ("max", "largest difference"),
        (
            "floor",
            "largest difference of the reference&#39;s own run in this dtype from its f32 run",
        ),
        (
            "unequal",
            "reference&#39;s inputs: elements that are not the reference&#39;s bit for bit",
        ),
        ("verdict", "of this comparison"),
    ];
    let mut out = format!("<div class=\"scroll\"><table>{}<tbody>", head(&columns));
    for g in sorted {
        let _ = write!(
            out,
            "<tr><td class=\"mono\">{}<td>{}{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
            escape(&g.subject.to_string()),
            g.phase,
            g.moment.map_or(String::new(), |m| format!(" ({m})")),
            match g.mode {
                Mode::Local => "reference&#39;s",
                Mode::Cumulative => "own",
            },
            escape(&g.prompt),
            compared(g, g.error.p50),
            compared(g, g.error.p99),
            compared(g, g.error.max),
            g.floor.map_or_else(|| number(f64::NAN), |f| number(f.max)),
            g.unequal.map_or_else(|| number(f64::NAN), |n| format!("{n} of {}", g.error.count)),
            badge(g.verdict),
        );
        if g.verdict != Verdict::Pass {
            let _ = write!(
                out,
                "<tr class=\"remark soft\"><td colspan=\"{}\">{}</tr>",
                columns.len(),
                prose(&g.message())
            );
        }
    }
    out + "</tbody></table></div>\n"
}

/// Formats an error of a comparison; NaN if nothing was compared.
fn compared(gate: &Gate, error: f64) -> String {
    if gate.error.count == 0 { number(f64::NAN) } else { number(error) }
}

fn schedules(report: &Report) -> String {
    if report.schedules.is_empty() {
        return String::new();
    }
    let (failed, remaining): (Vec<_>, Vec<_>) =
        report.schedules.iter().partition(|row| row.verdict == Verdict::Fail);
    let mut out = "<h2>Schedules</h2><p class=\"soft\">The same tokens fed in other ways must give what one prefill gives.</p>\n".to_owned();
    if !failed.is_empty() {
        out.push_str(&schedule_rows(&failed));
    }
    if !remaining.is_empty() {
        let line =
            format!("{} of {} schedules do not fail", remaining.len(), report.schedules.len());
        out.push_str(&folded(&line, &schedule_rows(&remaining)));
    }
    out
}

fn schedule_rows(rows: &[&ScheduleRow]) -> String {
    let mut out = format!(
        "<div class=\"card scroll\"><table>{}<tbody>",
        head(&[
            ("run", "dtype of the run"),
            ("schedule", "the way of feeding"),
            ("shows", "the mistakes that it would show"),
            ("steps", "calls of the engine"),
            ("max |&Delta;logprob|", "largest difference of a log-probability from one prefill"),
            ("bound", "the most that it may be"),
            ("verdict", "of this schedule"),
            ("remark", "the first position beyond the bound, or what the engine said"),
        ])
    );
    for s in rows {
        let at = s.position.map_or(String::new(), |p| format!("from position {p}"));
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td class=\"soft\">{}<td>{}<td>{}<td>{}<td>{}<td class=\"soft\">{} {at}</tr>",
            s.dtype,
            escape(&s.name),
            escape(s.why),
            s.steps,
            number_or_exact(s.max),
            number_or_exact(s.limit),
            badge(s.verdict),
            prose(s.note.as_deref().unwrap_or_default())
        );
    }
    out + "</tbody></table></div>\n"
}

/// Formats a number; 0 as `exact`.
fn number_or_exact(x: f64) -> String {
    if x == 0.0 { "exact".to_owned() } else { number(x) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::LAST;

    #[test]
    fn backticks_become_code_and_nothing_else() {
        for (text, want) in [
            ("state `kv` reaches", "state <code>kv</code> reaches"),
            ("`a` and `<b>`", "<code>a</code> and <code>&lt;b&gt;</code>"),
            ("one ` alone", "one  alone"),
            ("`a` and ` alone", "<code>a</code> and  alone"),
            ("\u{1b}[31m", "\u{fffd}[31m"),
        ] {
            assert_eq!(prose(text), want);
        }
    }

    #[test]
    fn a_position_that_was_not_compared_is_no_point() {
        let mut gate = Gate::new(Subject::Logprobs, "main", Phase::Prefill, Mode::Cumulative, LAST);
        gate.by_step = vec![None, Some(1.0), None, Some(0.0)];
        assert_eq!(points(&gate), [(1, 1.0), (3, 0.0)]);
    }
}
