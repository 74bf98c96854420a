//! A report as one page that needs nothing else: no script, no font, no address.

mod chart;

use std::fmt::Write as _;

use crate::diverge::message;
use crate::dump::Phase;
use crate::gate::{Gate, Mode, Subject, Verdict};
use crate::junit::escape;
use crate::report::{Divergence, Report, RunReport};
use chart::{Chart, Series};

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
    out.push_str(&summary(report));
    for run in &report.runs {
        let _ = writeln!(out, "<h2>{} {}</h2>", run.label(), badge(run.verdict()));
        if let Some(first) = run.headline() {
            out.push_str(&finding(first));
        }
        let charts: String = charts(run).iter().map(Chart::svg).collect();
        if !charts.is_empty() {
            let _ = writeln!(out, "<div class=\"charts\">{charts}</div>");
        }
        out.push_str(&gates(run));
    }
    out.push_str(&schedules(report));
    if !report.notes.is_empty() {
        out.push_str("<h2>Notes</h2><ul>");
        for note in &report.notes {
            let _ = write!(out, "<li>{}</li>", escape(note));
        }
        out.push_str("</ul>");
    }
    out.push_str("</body></html>\n");
    out
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

fn summary(report: &Report) -> String {
    let mut out = String::from(
        "<div class=\"card scroll\"><table><tr><th>run<th>phase<th>max |&Delta;logprob|<th>bound<th>mean<th>KL<th>top-1<th>worst tap<th>error<th></tr>",
    );
    for run in &report.runs {
        for p in &run.phases {
            let (tap, error) = p
                .worst_tap
                .as_ref()
                .map_or((String::new(), String::new()), |(t, e)| (escape(t), format!("{e:.1e}")));
            let _ = write!(
                out,
                "<tr><td>{}<td>{}<td>{:.1e}<td>{:.1e}<td>{:.1e}<td>{:.1e}<td>{:.1}%<td class=\"mono\">{tap}<td>{error}<td>{}</tr>",
                run.label(),
                p.phase,
                p.max,
                p.limit,
                p.mean,
                p.kl,
                p.top1 * 100.0,
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
                "<tr><td>{}<td>routers, {}<td colspan=\"7\">{} of {} choices <span class=\"soft\">{flip}</span><td>{}</tr>",
                run.label(),
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
                "<tr><td>{}<td>greedy<td colspan=\"7\">{} of {} tokens <span class=\"soft\">{} {flip}</span><td>{}</tr>",
                run.label(),
                g.agree,
                g.tokens,
                escape(&g.prompt),
                badge(g.verdict)
            );
        }
    }
    out + "</table></div>\n"
}

fn finding(first: &Divergence) -> String {
    let mut out = format!(
        "<div class=\"card bad\"><p>First divergence: <b class=\"mono\">{}</b></p><p>{}, step {}, prompt <code>{}</code>, {}</p><p>{}</p>",
        escape(&first.subject.to_string()),
        first.phase,
        first.step,
        escape(&first.prompt),
        match first.mode {
            Mode::Local => "on the reference's own inputs",
            Mode::Cumulative => "errors of earlier ops included",
        },
        escape(&first.message)
    );
    for hint in &first.hints {
        let _ = write!(out, "<p class=\"soft\">Hint: {}</p>", escape(hint));
    }
    out + "</div>\n"
}

fn charts(run: &RunReport) -> Vec<Chart> {
    let mut charts = Vec::new();
    for phase in Phase::ALL {
        charts.extend(by_op(run, phase));
    }
    for phase in Phase::ALL {
        charts.extend(by_position(run, phase));
    }
    charts.extend(by_step(run));
    charts
}

/// The error of every tap in order of execution: ours, the reference's own, and local.
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
        let mut s = Series { name: name.into(), class, points: Vec::new(), failed: Vec::new() };
        for gate in taps.iter().filter(|g| g.mode == mode) {
            let column = columns.iter().position(|c| *c == gate.subject.to_string()).unwrap_or(0);
            if let Some(value) = value(gate) {
                s.points.push((column, value));
                if gate.fails() && class != "floor" {
                    s.failed.push(column);
                }
            }
        }
        s
    };
    let ours = |g: &Gate| (g.error.count > 0).then_some(g.error.max);
    let all = vec![
        series("reference at this dtype", "floor", Mode::Cumulative, &|g| g.floor.map(|f| f.max)),
        series("own inputs", "ours", Mode::Cumulative, &ours),
        series("reference's inputs", "local", Mode::Local, &ours),
    ];
    let ends = (columns.first()?.clone(), columns.last()?.clone());
    let series = all.into_iter().filter(|s| !s.points.is_empty()).collect();
    Some(Chart { title: format!("Error by op, {phase}"), columns, ends, series, limit: None })
}

/// The largest difference of log-probabilities at each position, a line per prompt.
fn by_position(run: &RunReport, phase: Phase) -> Option<Chart> {
    let gates: Vec<&Gate> =
        run.gates.iter().filter(|g| g.phase == phase && g.subject == Subject::Logprobs).collect();
    let skip = usize::from(phase == Phase::Decode);
    let length = gates.iter().map(|g| g.by_step.len()).max().filter(|n| *n > skip)?;
    let series = gates
        .iter()
        .map(|g| Series {
            name: g.prompt.clone(),
            class: if g.fails() { "wrong" } else { "ours" },
            points: g.by_step.iter().copied().enumerate().skip(skip).collect(),
            failed: Vec::new(),
        })
        .collect();
    let limit = gates
        .iter()
        .filter_map(|g| g.bounds.iter().find(|b| b.measure == "max"))
        .map(|b| b.limit)
        .filter(|l| l.is_finite())
        .reduce(f64::max);
    let unit = if phase == Phase::Prefill { "position" } else { "step" };
    Some(Chart {
        title: format!("|Δlogprob| by {unit}, {phase}"),
        columns: (0..length).map(|n| format!("{unit} {n}")).collect(),
        ends: (format!("{unit} 0"), format!("{unit} {}", length - 1)),
        series,
        limit,
    })
}

/// The error of every state by decode step; those that fail stand out.
fn by_step(run: &RunReport) -> Option<Chart> {
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
        .map(|g| Series {
            name: g.subject.to_string(),
            class: if g.fails() { "wrong" } else { "other" },
            points: g.by_step.iter().copied().enumerate().collect(),
            failed: Vec::new(),
        })
        .collect();
    series.sort_by_key(|s| s.class);
    Some(Chart {
        title: "State error by decode step".into(),
        columns: (0..length).map(|n| format!("step {n}")).collect(),
        ends: ("what the prefix left".into(), format!("step {}", length - 1)),
        series,
        limit: None,
    })
}

fn gates(run: &RunReport) -> String {
    let failed = run.gates.iter().filter(|g| g.fails()).count();
    let mut sorted: Vec<&Gate> = run.gates.iter().collect();
    sorted.sort_by_key(|g| (!g.fails(), g.phase, g.mode, g.place));
    let mut out = format!(
        "<details{}><summary>{} comparisons, {failed} beyond a bound</summary><div class=\"scroll\"><table>\
         <tr><th>what<th>phase<th>inputs<th>prompt<th>p50<th>p99<th>max<th>reference's max<th><th></tr>",
        if failed > 0 { " open" } else { "" },
        run.gates.len()
    );
    for g in sorted {
        let _ = write!(
            out,
            "<tr><td class=\"mono\">{}<td>{}{}<td>{}<td>{}<td>{:.1e}<td>{:.1e}<td>{:.1e}<td>{}<td>{}<td class=\"wide soft\">{}</tr>",
            escape(&g.subject.to_string()),
            g.phase,
            g.moment.map_or(String::new(), |m| format!(" ({m})")),
            match g.mode {
                Mode::Local => "reference's",
                Mode::Cumulative => "own",
            },
            escape(&g.prompt),
            g.error.p50,
            g.error.p99,
            g.error.max,
            g.floor.map_or(String::new(), |f| format!("{:.1e}", f.max)),
            badge(g.verdict),
            if g.verdict == Verdict::Pass { String::new() } else { escape(&message(g)) }
        );
    }
    out + "</table></div></details>\n"
}

fn schedules(report: &Report) -> String {
    if report.schedules.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "<h2>Schedules</h2><p class=\"soft\">The same tokens fed in other ways must give what one prefill gives.</p>\
         <div class=\"card scroll\"><table><tr><th>run<th>schedule<th>shows<th>steps<th>max |&Delta;logprob|<th>bound<th><th></tr>",
    );
    for s in &report.schedules {
        let at = s.position.map_or(String::new(), |p| format!("from position {p}"));
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td class=\"soft\">{}<td>{}<td>{}<td>{:.1e}<td>{}<td class=\"wide soft\">{} {at}</tr>",
            s.dtype,
            escape(&s.name),
            escape(s.why),
            s.steps,
            if s.max == 0.0 { "exact".into() } else { format!("{:.1e}", s.max) },
            s.limit,
            badge(s.verdict),
            escape(s.note.as_deref().unwrap_or_default())
        );
    }
    out + "</table></div>\n"
}
